"""A gang that waits for free slots says so, and who has them."""

from __future__ import annotations

import logging
import threading

from tidegate.jobmanager.running_jobs import RunningJob, running_jobs
from tidegate.spark.streaming.gang import SparkGang

log = logging.getLogger("tidegate.jobmanager")

_PATIENCE_MS = 1_000.0


class SlotWait:
    """Of one gang: `look` is to be called about once a second, with the number of its workers that are there."""

    def __init__(self, job: RunningJob, gang: SparkGang, submitted_ms: float) -> None:
        self._job = job
        self._gang = gang
        self._tell_at = submitted_ms + _PATIENCE_MS
        self._told = False

    def look(self, registered: int, now_ms: float) -> None:
        if self._told or now_ms < self._tell_at or registered:
            return
        self._told = True
        threading.Thread(target=self._tell, name="tidegate-slot-wait", daemon=True).start()  # Spark may take its time

    def _tell(self) -> None:
        try:
            if self._gang.has_started():
                return  # it has its slots; its workers are on their way
            others = self._gang.other_spark_jobs()
        except Exception:  # the session is gone, which the end of the gang will tell
            return
        holders = [job.label for job in running_jobs() if job is not self._job]
        if not holders and others:
            holders = [f"{others} other Spark {'job' if others == 1 else 'jobs'} of this session"]
        if holders:
            log.warning(
                "%s waits for free slots of Spark; these run in the same session: %s",
                self._job.label,
                ", ".join(holders),
            )
