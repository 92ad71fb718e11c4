"""Tasks that outlive their job: of a run that failed, or the slower of a task and its speculative copy. Spark kills
them, which takes it a while, and until then they go on writing."""

from __future__ import annotations

from typing import Any


def tasks_are_gone(tracker: Any, group: str, newest: int | None = None) -> bool:
    """Whether no task of the group's jobs, which are over, runs any more. `tracker`: Spark's StatusTracker. `newest`:
    only of so many, the latest: each is asked for by itself, and a streaming query has a thousand.

    What it shows lags behind. Once it has heard of a job's end, it has heard of all tasks that were ever started."""
    wanted = sorted(tracker.getJobIdsForGroup(group))
    found = [tracker.getJobInfo(job) for job in (wanted if newest is None else wanted[-newest:])]
    jobs = [job for job in found if job is not None]
    if any(job.status == "RUNNING" for job in jobs):
        return False
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return not any(stage is not None and stage.numActiveTasks for stage in stages)
