"""When the tasks of a job that is over are taken for gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.spark.batch.remaining_tasks import tasks_are_gone


class Tracker:
    """Knows two jobs of the group; the second is the one whose stage 3 may have tasks left."""

    def __init__(self, status: str, active: int) -> None:
        self.status, self.active = status, active

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [0, 1, 2] if group == "ours" else []

    def getJobInfo(self, job: int) -> Any:
        if job == 2:
            return None  # Spark has forgotten it
        return SimpleNamespace(status="FAILED" if job == 0 else self.status, stageIds=[job * 2, job * 2 + 1])

    def getStageInfo(self, stage: int) -> Any:
        return None if stage == 1 else SimpleNamespace(numActiveTasks=self.active if stage == 3 else 0)


@pytest.mark.parametrize(
    ("status", "active", "gone"),
    [
        ("SUCCEEDED", 0, True),
        ("FAILED", 0, True),
        ("SUCCEEDED", 1, False),  # the loser of a race, which is about to be killed
        ("FAILED", 2, False),
        ("RUNNING", 0, False),  # it is over, but the tracker has not heard of it, and may not know of a task either
    ],
)
def test_tasks_are_gone_when_spark_has_told_the_end_and_shows_none(status: str, active: int, gone: bool) -> None:
    assert tasks_are_gone(Tracker(status, active), "ours") is gone


def test_a_job_that_was_never_started_has_no_tasks() -> None:
    assert tasks_are_gone(Tracker("RUNNING", 1), "nobody's")


def test_only_the_newest_jobs_are_asked_for_when_that_is_enough() -> None:
    assert tasks_are_gone(Tracker("RUNNING", 1), "ours", newest=1)
    assert not tasks_are_gone(Tracker("RUNNING", 1), "ours", newest=2)
