"""Tasks that outlive their job: of a run that failed, or the slower of a task and its speculative copy. Spark kills
them, which takes it a while, and until then they go on writing."""

from __future__ import annotations

from typing import Any


def tasks_are_gone(tracker: Any, group: str) -> bool:
    """Whether no task of the group's jobs, which are over, runs any more. `tracker`: Spark's StatusTracker.

    What it shows lags behind. Once it has heard of a job's end, it has heard of all tasks that were ever started."""
    found = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    jobs = [job for job in found if job is not None]
    if any(job.status == "RUNNING" for job in jobs):
        return False
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return not any(stage is not None and stage.numActiveTasks for stage in stages)
