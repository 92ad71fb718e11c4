"""A job that waits for free slots says so, and who has them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from tidegate.jobmanager.running_jobs import RunningJob, running_jobs

log = logging.getLogger("tidegate.jobmanager")

_PATIENCE_MS = 1_000.0


class Asked(Protocol):
    """What a job has asked Spark to run. All of them raise when Spark is gone."""

    def has_started(self) -> bool:
        """False: nothing of it runs, for want of slots."""

    def other_spark_jobs(self) -> int:
        """How many Spark jobs run beside it."""

    def at_work(self, groups: Collection[str]) -> bool:
        """Whether Spark jobs of these groups have slots now."""


class SlotWait:
    """Of one job, or of one attempt. `look` is to be called about once a second or more often; it asks Spark, on a
    thread of its own, when nothing of the job has run for a second. Who has the slots is told once, and again only
    when it is somebody else."""

    def __init__(self, job: RunningJob, asked: Asked, submitted_ms: float) -> None:
        self._job = job
        self._asked = asked
        self._look_at = submitted_ms + _PATIENCE_MS
        self._asking = threading.Lock()
        self._told = ""

    def look(self, runs: bool, now_ms: float) -> None:
        """`runs`: something of the job has slots, or it wants none, as far as the caller knows."""
        if runs:
            self._look_at = now_ms + _PATIENCE_MS
        elif now_ms >= self._look_at and self._asking.acquire(blocking=False):
            self._look_at = now_ms + _PATIENCE_MS
            threading.Thread(target=self._tell, name="tidegate-slot-wait", daemon=True).start()  # Spark may be slow

    def _tell(self) -> None:
        try:
            text = "" if self._asked.has_started() else self._who()
            if text and text != self._told:
                self._told = text
                log.warning(
                    "%s waits for free slots of Spark; these run in the same session: %s", self._job.label, text
                )
        except Exception:  # the session is gone, which the end of the job will tell
            pass
        finally:
            self._asking.release()

    def _who(self) -> str:
        others = self._asked.other_spark_jobs()
        holders = [job.label for job in running_jobs() if job is not self._job and self._has_slots(job)]
        if not holders and others:
            holders = [f"{others} other Spark {'job' if others == 1 else 'jobs'} of this session"]
        return ", ".join(holders)

    def _has_slots(self, job: RunningJob) -> bool:
        """Spark's own count of running tasks may be late: it writes at most ten times a second and then waits for the
        next event, so that a job whose tasks all start at once stands there with none for up to ten seconds."""
        return job.has_workers or self._asked.at_work(job.spark_groups)


class SparkJobs:
    """The Spark jobs of these groups, as `SlotWait` asks about them."""

    def __init__(self, sc: Any, groups: Callable[[], Iterable[str]]) -> None:
        self._sc = sc
        self._groups = groups

    def has_started(self) -> bool:
        """Also when no stage of it waits: it computes on the driver, or has nothing to do."""
        tracker = self._sc.statusTracker()
        active = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        waiting = {
            stage.stageId
            for stage in active
            if stage is not None and not stage.numActiveTasks and stage.numCompletedTasks < stage.numTasks
        }
        if not waiting:  # most often: nobody asks for the jobs of a group, which are hundreds after some time
            return True
        groups = list(self._groups())
        return self.at_work(groups) or waiting.isdisjoint(self._stages(groups))

    def other_spark_jobs(self) -> int:
        tracker = self._sc.statusTracker()
        own = {job for group in self._groups() for job in tracker.getJobIdsForGroup(group)}
        return len(set(tracker.getActiveJobsIds()) - own)

    def at_work(self, groups: Collection[str]) -> bool:
        tracker = self._sc.statusTracker()
        infos = (tracker.getStageInfo(stage) for stage in self._stages(groups))
        return any(info is not None and info.numActiveTasks for info in infos)

    def _stages(self, groups: Collection[str]) -> set[int]:
        """Of the jobs of these groups that run."""
        tracker = self._sc.statusTracker()
        active = set(tracker.getActiveJobsIds())
        jobs = {job for group in groups for job in tracker.getJobIdsForGroup(group) if job in active}
        infos = (tracker.getJobInfo(job) for job in jobs)
        return {stage for info in infos if info is not None for stage in info.stageIds}
