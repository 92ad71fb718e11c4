"""What follows a failure: a restart, from which point and when, or the end of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tidegate.common.errors import InternalError
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.job_side import JobFaultTolerance
from tidegate.fault_tolerance.recovery_points import Refusal
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter, RestartDecision, RestartStrategy
from tidegate.protocol.messages import FailureInfo


@dataclass(frozen=True)
class FailureVerdict:
    decision: RestartDecision
    warning: str = ""
    falls_back: bool = False  # to a point before the latest: what was delivered since comes again


class RecoveryPolicy:
    """The restart strategy, and above it: what cannot be cured by a restart, and checkpoints that are proved to be
    damaged. One that merely cannot be read now is for the restart strategy: the next attempt tries the same one."""

    def __init__(self, restart: RestartStrategy, model: JobFaultTolerance) -> None:
        self._restart = restart
        self._model = model

    def on_running(self, now_ms: float) -> None:
        self._restart.on_running(now_ms)

    def on_failure(self, failure: FailureInfo, now_ms: float) -> FailureVerdict:
        if failure.corrupt_checkpoint:
            refused = CheckpointId(failure.corrupt_checkpoint)
            refusal = self._model.refuse(refused)
            match refusal:
                case Refusal.NOTHING_LEFT:
                    reason = f"checkpoint {refused} is damaged and there is no other one to start from"
                    return FailureVerdict(GiveUp(reason))
                case Refusal.FALL_BACK:
                    return self._fall_back(refused, failure)
                case Refusal.NOT_CURRENT:
                    pass
                case _:
                    assert_never(refusal)
        if failure.permanent:
            return FailureVerdict(GiveUp("a restart cannot help"))
        return FailureVerdict(self._restart.on_failure(now_ms))

    def _fall_back(self, refused: CheckpointId, failure: FailureInfo) -> FailureVerdict:
        """Does not use up restarts: it is no failure of the job, and there are only so many points to fall back to."""
        point = self._model.restore_point()
        if point is None:
            raise InternalError("the model falls back to nothing")
        return FailureVerdict(
            RestartAfter(0.0),
            f"checkpoint {refused} is damaged ({failure.summary}); falling back to checkpoint {point.checkpoint_id}: "
            f"what was read since checkpoint {point.checkpoint_id} is read again, so sinks that have committed since "
            "then get those records twice, unless they write by key",
            falls_back=True,
        )
