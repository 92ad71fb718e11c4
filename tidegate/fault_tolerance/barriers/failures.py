"""Why a checkpoint can fail: one closed list, each with its message, and what a failure means for the job."""

from __future__ import annotations

import enum
from typing import assert_never

from tidegate.protocol.messages import DeclineReason


class CheckpointFailureReason(enum.Enum):
    """(text, counts): `counts` says whether it moves the counter of tolerable failures."""

    EXPIRED = ("it was not complete within execution.checkpointing.timeout", True)
    SNAPSHOT_FAILED = ("a task could not take its snapshot", True)
    WRITE_FAILED = ("a task could not write its snapshot", True)
    STATE_TOO_LARGE = ("a snapshot is larger than the checkpoint storage takes", True)
    METADATA_FAILED = ("its metadata could not be written", True)
    BASE_GONE = ("a task built on files that do not belong to a checkpoint of this job any more", True)
    SUPERSEDED = ("a barrier of a newer checkpoint overtook it at a task", False)
    SUBSUMED = ("a newer checkpoint was completed before it", False)
    ATTEMPT_OVER = ("the attempt that it belonged to is over", False)
    JOB_ENDING = ("the job has come to its end", False)

    def __init__(self, text: str, counts: bool) -> None:
        self.text = text
        self.counts = counts

    @classmethod
    def of_decline(cls, reason: DeclineReason) -> CheckpointFailureReason:
        """What the reason that a task gave means for the checkpoint."""
        match reason:
            case DeclineReason.SNAPSHOT_FAILED:
                return cls.SNAPSHOT_FAILED
            case DeclineReason.WRITE_FAILED:
                return cls.WRITE_FAILED
            case DeclineReason.STATE_TOO_LARGE:
                return cls.STATE_TOO_LARGE
            case DeclineReason.SUPERSEDED:
                return cls.SUPERSEDED
            case _:
                assert_never(reason)


class Tolerance(enum.Enum):
    NOT_COUNTED = "not counted"  # nobody's fault: the counter stays
    TOLERATED = "tolerated"  # counted, and the job goes on
    EXCEEDED = "exceeded"  # one more in a row than the job tolerates: the attempt must fail


class FailureManager:
    """Counts the failures in a row. `on_failure`, `on_success` and `reset` change it."""

    def __init__(self, tolerable: int) -> None:
        self.tolerable = tolerable
        self._in_a_row = 0

    def on_failure(self, reason: CheckpointFailureReason) -> Tolerance:
        if not reason.counts:
            return Tolerance.NOT_COUNTED
        self._in_a_row += 1
        return Tolerance.TOLERATED if self._in_a_row <= self.tolerable else Tolerance.EXCEEDED

    def on_success(self) -> None:
        self._in_a_row = 0

    def reset(self) -> None:
        """A new attempt starts with a clean record."""
        self._in_a_row = 0
