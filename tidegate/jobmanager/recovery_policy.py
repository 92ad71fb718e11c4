"""What follows a failure: a restart, from which point and when, or the end of the job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tidegate.common import options
from tidegate.common.errors import InternalError
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.job_side import JobFaultTolerance
from tidegate.fault_tolerance.recovery_points import Refusal
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter, RestartDecision, RestartStrategy
from tidegate.protocol.messages import FailureInfo

_DISTINCT = 100


@dataclass(frozen=True)
class FailureVerdict:
    decision: RestartDecision
    warning: str = ""
    falls_back: bool = False  # to a point before the latest: what was delivered since comes again


class RepeatedFailures:
    """How often each failure of user code has come since the latest restore point was made. `again` changes it."""

    def __init__(self) -> None:
        self._since: CheckpointId | None = None  # that restore point; None: the job starts from nothing
        self._times: dict[str, int] = {}  # by FailureInfo.cause, at most _DISTINCT

    def again(self, failure: FailureInfo, point: CheckpointId | None) -> int:
        """This failure has come: the how-manieth time. 0: there is no telling that it is the same as another one."""
        if point != self._since:
            self._since = point
            self._times.clear()
        if not failure.cause or (failure.cause not in self._times and len(self._times) >= _DISTINCT):
            return 0
        self._times[failure.cause] = self._times.get(failure.cause, 0) + 1
        return self._times[failure.cause]

    def given_up(self, failure: FailureInfo, point: CheckpointId | None, most: int) -> GiveUp | None:
        """Instead of `again`: whether the job is given up for it, which has come `most` times (0: never)."""
        times = self.again(failure, point)
        if not 0 < most <= times:
            return None
        return GiveUp(
            f"the same failure has come {times} times, and no checkpoint was completed in between: another restart "
            f"would end in it too. ({options.STOP_ON_REPEATED_FAILURE.key} = 0 lets the restart strategy go on)"
        )


class RecoveryPolicy:
    """The restart strategy, and above it: what cannot be cured by a restart, and checkpoints that are proved to be
    damaged. One that merely cannot be read now is for the restart strategy: the next attempt tries the same one.

    `max_repeats`: the same failure of user code ends the job when it has come so often without a checkpoint in between;
    0: it does not."""

    def __init__(self, restart: RestartStrategy, model: JobFaultTolerance, max_repeats: int = 0) -> None:
        self._restart = restart
        self._model = model
        self._max_repeats = max_repeats
        self._repeated = RepeatedFailures()

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
        return FailureVerdict(self.on_known_cause(failure) or self._restart.on_failure(now_ms))

    def on_known_cause(self, failure: FailureInfo) -> GiveUp | None:
        """Once for each attempt whose cause is known, be it at once or later: whether the job is given up for it."""
        point = self._model.restore_point()
        return self._repeated.given_up(failure, None if point is None else point.checkpoint_id, self._max_repeats)

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
