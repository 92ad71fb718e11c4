"""A gang that waits for slots says so once, and only when somebody else has them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tidegate.spark.streaming import slot_wait
from tidegate.spark.streaming.slot_wait import SlotWait


class Gang:
    def __init__(self, started: bool = False, others: int = 0) -> None:
        self._started = started
        self._others = others

    def has_started(self) -> bool:
        return self._started

    def other_spark_jobs(self) -> int:
        return self._others


class Job:
    def __init__(self, label: str) -> None:
        self.label = label


def said(caplog: Any, seconds: float = 0.2) -> list[str]:
    time.sleep(seconds)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("gang", "jobs", "told"),
    [
        (Gang(others=1), ["other"], "me waits for free slots of Spark; these run in the same session: other"),
        (Gang(others=2), [], "me waits for free slots of Spark; these run in the same session: 2 other Spark jobs"),
        (Gang(), [], None),
        (Gang(started=True, others=1), ["other"], None),
    ],
)
def test_who_has_the_slots(monkeypatch: Any, caplog: Any, gang: Gang, jobs: list[str], told: str | None) -> None:
    me: Any = Job("me")
    monkeypatch.setattr(slot_wait, "running_jobs", lambda: [me, *map(Job, jobs)])
    of_this: Any = gang
    wait = SlotWait(me, of_this, 0.0)
    wait.look(0, 900.0)
    assert said(caplog) == []
    for now in (1_000.0, 2_000.0, 3_000.0):
        wait.look(0, now)
    assert [text[: len(told or "")] for text in said(caplog)] == ([] if told is None else [told])


def test_a_gang_whose_workers_are_there_says_nothing(monkeypatch: Any, caplog: Any) -> None:
    me: Any = Job("me")
    monkeypatch.setattr(slot_wait, "running_jobs", lambda: [me, Job("other")])
    gang: Any = Gang(others=1)
    SlotWait(me, gang, 0.0).look(1, 5_000.0)
    assert said(caplog) == []
