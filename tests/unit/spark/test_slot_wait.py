"""A gang that waits for slots says so once, and only when somebody else has them."""

from __future__ import annotations

import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.spark import slot_wait
from tidegate.spark.slot_wait import SlotWait, SparkJobs


class Gang:
    def __init__(self, started: bool = False, others: int = 0) -> None:
        self._started = started
        self._others = others

    def has_started(self) -> bool:
        return self._started

    def other_spark_jobs(self) -> int:
        return self._others

    def at_work(self, groups: Collection[str]) -> bool:
        return "waits as well" not in groups and "has workers" not in groups  # Spark is late with the latter


class Job:
    def __init__(self, label: str) -> None:
        self.label = label
        self.spark_groups = (label,)
        self.has_workers = label == "has workers"


def asked(wait: SlotWait) -> None:
    """It has, on its thread."""
    with wait._asking:
        pass


def said(caplog: Any, seconds: float = 0.2) -> list[str]:
    time.sleep(seconds)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("gang", "jobs", "told"),
    [
        (Gang(others=1), ["other"], "me waits for free slots of Spark; these run in the same session: other"),
        (
            Gang(others=2),
            ["waits as well", "other"],
            "me waits for free slots of Spark; these run in the same session: other",
        ),
        (
            Gang(others=2),
            ["waits as well"],
            "me waits for free slots of Spark; these run in the same session: 2 other Spark jobs",
        ),
        (
            Gang(others=2),
            ["waits as well", "has workers"],
            "me waits for free slots of Spark; these run in the same session: has workers",
        ),
        (Gang(), [], None),
        (Gang(started=True, others=1), ["other"], None),
    ],
)
def test_who_has_the_slots(monkeypatch: Any, caplog: Any, gang: Gang, jobs: list[str], told: str | None) -> None:
    me: Any = Job("me")
    monkeypatch.setattr(slot_wait, "running_jobs", lambda: [me, *map(Job, jobs)])
    of_this: Any = gang
    wait = SlotWait(me, of_this, 0.0)
    wait.look(False, 900.0)
    assert said(caplog, 0.0) == []
    for now in (1_000.0, 2_000.0, 3_000.0):
        wait.look(False, now)
        asked(wait)
    assert [text[: len(told or "")] for text in said(caplog)] == ([] if told is None else [told])


def test_a_gang_whose_workers_are_there_says_nothing(monkeypatch: Any, caplog: Any) -> None:
    me: Any = Job("me")
    monkeypatch.setattr(slot_wait, "running_jobs", lambda: [me, Job("other")])
    gang: Any = Gang(others=1)
    SlotWait(me, gang, 0.0).look(True, 5_000.0)
    assert said(caplog) == []


def test_a_later_wait_is_told_when_others_have_the_slots(monkeypatch: Any, caplog: Any) -> None:
    """A job of many batches or stages waits again and again."""
    me: Any = Job("me")
    running = [me, Job("first")]
    monkeypatch.setattr(slot_wait, "running_jobs", lambda: running)
    gang: Any = Gang(others=1)
    wait = SlotWait(me, gang, 0.0)
    for now in range(1_000, 20_000, 500):
        wait.look(now % 3_000 == 0, float(now))  # between them it has slots
        asked(wait)
        if now == 10_000:
            running[1] = Job("second")
    assert [text.rpartition(": ")[2] for text in said(caplog)] == ["first", "second"]


class Tracker:
    """Stages: number -> tasks that run, tasks that are done; each job has one stage of its own number, of two tasks."""

    def __init__(self, jobs: dict[str, list[int]], stages: dict[int, tuple[int, int]]) -> None:
        self._jobs = jobs
        self._stages = stages

    def getActiveStageIds(self) -> list[int]:
        return list(self._stages)

    def getActiveJobsIds(self) -> list[int]:
        return list(self._stages)

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return self._jobs[group]

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(stageIds=[job])

    def getStageInfo(self, stage: int) -> Any:
        if stage not in self._stages:
            return None
        runs, done = self._stages[stage]
        return SimpleNamespace(stageId=stage, numTasks=2, numActiveTasks=runs, numCompletedTasks=done)


@pytest.mark.parametrize(
    ("stages", "started"),
    [
        ({1: (2, 0), 2: (0, 0)}, False),  # another one has the slots
        ({1: (2, 0), 2: (1, 0)}, True),
        ({1: (2, 0), 2: (0, 2)}, True),  # done: the driver is at work
        ({1: (2, 0), 2: (0, 1)}, False),  # they went to another one in between
        ({1: (2, 0)}, True),  # it has nothing for Spark to run
        ({1: (0, 0), 2: (1, 0)}, True),  # another one waits
        ({1: (2, 0), 2: (0, 0), 3: (1, 0)}, True),  # one of two stages has slots
    ],
)
def test_a_job_waits_when_a_stage_is_to_run_and_none_of_its_tasks_has_a_slot(
    stages: dict[int, tuple[int, int]], started: bool
) -> None:
    tracker = Tracker({"theirs": [1], "mine": [0, 2, 3]}, stages)
    context = SimpleNamespace(statusTracker=lambda: tracker)
    jobs = SparkJobs(context, lambda: ["mine"])
    assert jobs.has_started() is started
    assert jobs.other_spark_jobs() == 1
    assert jobs.at_work(["theirs"]) is (stages[1] == (2, 0))
    assert jobs.at_work(["mine"]) is any(runs for stage, (runs, _) in stages.items() if stage != 1)
