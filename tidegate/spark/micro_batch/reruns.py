"""Batches of which Spark has run a part twice by itself.

When an executor is lost, Spark may run a stage again whose output others have read already, and let them keep what they
had. That is right for tasks that give the same rows each time. Ours need not: a source may read other records, and what
it has read, what others got of it and what its state says would then be of two different runs. Such a batch is refused,
and run again as a whole, from the state that it began with. Tasks that Spark tries again before anybody has read their
output do no harm.

A session that we have made never does this (`spark.stage.maxConsecutiveAttempts` is 1, and the batch fails); one that
the user has made may.
"""

from __future__ import annotations

import time
from typing import Any

_SETTING, _SPARKS_DEFAULT = "spark.stage.maxConsecutiveAttempts", "4"
_PATIENCE_S, _POLL_S = 10.0, 0.01


class StageRunAgainError(Exception):
    """The batch does not count. It is nobody's fault: a lost executor."""


class StageReruns:
    """`tracker`: Spark's StatusTracker. Used from one thread at a time."""

    def __init__(self, tracker: Any, settings: Any) -> None:
        self._tracker = tracker
        self._possible = int(settings.get(_SETTING, _SPARKS_DEFAULT)) > 1
        self._seen: set[int] = set()  # jobs of earlier batches

    def check(self, group: str) -> None:
        """After a batch, whose jobs are those of the group that are new. Raises StageRunAgainError."""
        if not self._possible:
            return
        known = set(self._tracker.getJobIdsForGroup(group))  # some hundred: Spark forgets the oldest
        jobs, self._seen = known - self._seen, known
        for job in jobs:
            for stage in self._ended(job).stageIds:
                info = self._tracker.getStageInfo(stage)
                if info is not None and info.currentAttemptId > 0:
                    raise StageRunAgainError(
                        f"Spark has run stage {stage} ('{info.name}') again within a batch, after it had lost an "
                        "executor; the batch is run again as a whole"
                    )

    def _ended(self, job: int) -> Any:
        """What is shown of a job lags behind: once its end is known, so is all that it has run."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            info = self._tracker.getJobInfo(job)
            if info is not None and info.status != "RUNNING":
                return info
            if time.monotonic() > deadline:
                raise StageRunAgainError(f"Spark does not say whether it has run a part of a batch twice (job {job})")
            time.sleep(_POLL_S)
