"""The job's side of checkpoints by barriers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import assert_never

from tidegate.common.errors import InternalError
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.checkpoint_view import CheckpointsView, CheckpointViews
from tidegate.fault_tolerance.job_side import (
    FailAttempt,
    FinishAttempt,
    JobFaultTolerance,
    Outcome,
    TellSlots,
)
from tidegate.fault_tolerance.recovery_points import RecoveryPoints, Refusal, RestorePoint
from tidegate.protocol.instructions import CheckpointRequestDone, Instruction, Log
from tidegate.protocol.messages import AckCheckpoint, DeclineCheckpoint, FaultToleranceMessage, WantCheckpoint
from tidegate.storage.handles import EnumeratorState
from tidegate.storage.job_directory import checkpoint_directory
from tidegate.storage.location import below

_NO_CHECKPOINTS = (
    "checkpointing is off for this job: call env.enable_checkpointing(interval), set execution.checkpointing.interval, "
    "or take a savepoint"
)


class BarrierCheckpoints(JobFaultTolerance):
    """Attempts start from the latest complete checkpoint, else from `initial`, or, when that is damaged, from one of
    `older` (newest first), else from nothing; once the job is stopped with a savepoint, only from that. Checkpoints
    themselves are the coordinator's."""

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        initial: RestorePoint | None = None,
        older: Sequence[RestorePoint] = (),
    ) -> None:
        self.coordinator = coordinator
        self._points = RecoveryPoints(initial, coordinator.store, older)
        self._views = CheckpointViews()

    # ------------------------------------------------------------ what attempts start from
    def restore_point(self) -> RestorePoint | None:
        stop = self.coordinator.stopped
        return self._points.current() if stop is None else stop.point

    def refuse(self, checkpoint_id: CheckpointId) -> Refusal:
        stop = self.coordinator.stopped
        if stop is None:
            refusal = self._points.refuse(checkpoint_id)
            if refusal is not Refusal.NOT_CURRENT:
                self.coordinator.on_refused(checkpoint_id)
            return refusal
        # Parts of the savepoint may be committed: nothing older will do any more.
        return Refusal.NOTHING_LEFT if stop.point.checkpoint_id == checkpoint_id else Refusal.NOT_CURRENT

    @property
    def stopped(self) -> bool:
        return self.coordinator.stopped is not None

    def keep_in_snapshots(self, enumerators: Callable[[], dict[OperatorId, EnumeratorState]]) -> None:
        self.coordinator.enumerators = enumerators

    # ------------------------------------------------------------ the life of attempts
    def on_deployed(self, attempt: AttemptNumber, point: RestorePoint | None, now_ms: float) -> list[Instruction]:
        if point is not None:
            self.coordinator.stats.on_restored(point.checkpoint_id, now_ms)
        elif attempt > 0 and self.coordinator.settings.enabled:
            return [Log(logging.WARNING, f"attempt {attempt} starts anew: no checkpoint was completed so far")]
        return []

    def on_attempt_running(self, attempt: AttemptNumber, now_ms: float) -> list[Outcome]:
        return self.coordinator.on_attempt_running(attempt, now_ms)

    def on_end_of_data(self, everywhere: bool, now_ms: float) -> list[Outcome]:
        self.coordinator.on_task_end_of_data()
        return self.coordinator.on_all_end_of_data(now_ms) if everywhere else []

    def on_attempt_over(self, now_ms: float) -> list[Instruction]:
        return _instructions(self.coordinator.on_attempt_over(now_ms))

    def on_job_end(self, status: JobStatus, keep: bool = False) -> list[Instruction]:
        return [*_instructions(self.coordinator.on_job_end(status, keep)), *self._answer_stop(status)]

    @property
    def repeats_results(self) -> bool:
        return not self.coordinator.settings.enabled

    def resume_path(self, keep: bool) -> str | None:
        point = self.restore_point()
        if point is None or not point.root:  # nothing, or in the driver's memory
            return None
        if point.metadata.savepoint:
            return point.root
        kept = keep or not point.owned or self.coordinator.keeps_after(JobStatus.FAILED)
        return below(point.root, checkpoint_directory(point.checkpoint_id)) if kept else None

    def _answer_stop(self, status: JobStatus) -> list[Instruction]:
        stop = self.coordinator.stopped
        if stop is None or stop.request_id is None:
            return []
        error = None
        if status is not JobStatus.FINISHED:
            error = (
                f"savepoint {stop.point.root} is complete, but the job ended as {status.name} before everything in "
                "it was committed: start a job from it, which commits the rest first"
            )
        return [CheckpointRequestDone(stop.request_id, stop.point.checkpoint_id, error, stop.point.root)]

    # ------------------------------------------------------------ events
    def on_message(self, message: FaultToleranceMessage, now_ms: float) -> list[Outcome]:
        match _mine(message):
            case AckCheckpoint() as ack:
                return self.coordinator.on_ack(ack, now_ms)
            case DeclineCheckpoint() as decline:
                return self.coordinator.on_decline(decline, now_ms)
            case WantCheckpoint():
                return self.coordinator.on_wanted(now_ms)
            case never:
                assert_never(never)

    def on_late_message(self, message: FaultToleranceMessage) -> list[Instruction]:
        match _mine(message):
            case AckCheckpoint() as ack:
                return _instructions(self.coordinator.on_fenced_ack(ack))
            case DeclineCheckpoint():
                return []  # what it had written it has deleted itself
            case WantCheckpoint():
                return []
            case never:
                assert_never(never)

    def next_deadline(self) -> float | None:
        return self.coordinator.next_deadline()

    def on_tick(self, now_ms: float) -> list[Outcome]:
        return self.coordinator.on_tick(now_ms)

    def on_metadata_written(
        self, attempt: AttemptNumber, checkpoint_id: CheckpointId, error: str | None, now_ms: float
    ) -> list[Outcome]:
        return self.coordinator.on_metadata_written(attempt, checkpoint_id, error, now_ms)

    @property
    def awaits_storage(self) -> bool:
        return self.coordinator.awaits_storage

    def on_recorded(self, checkpoint_id: CheckpointId, recorded: bool, now_ms: float) -> list[Outcome]:
        return self.coordinator.on_recorded(checkpoint_id, recorded, now_ms)

    @property
    def undecided(self) -> bool:
        return self.coordinator.undecided

    # ------------------------------------------------------------ users
    def on_checkpoint_request(self, request_id: int, savepoint: bool, target: str, now_ms: float) -> list[Outcome]:
        if not savepoint and not self.coordinator.settings.enabled:
            return [CheckpointRequestDone(request_id, None, _NO_CHECKPOINTS)]
        return self.coordinator.on_request(request_id, savepoint, now_ms, target)

    def on_stop_request(self, request_id: int, drain: bool, target: str, now_ms: float) -> list[Outcome]:
        return self.coordinator.on_stop_request(request_id, drain, target, now_ms)

    # ------------------------------------------------------------ seen from outside
    def view(self) -> CheckpointsView:
        return self._views.of(self.coordinator.stats)

    def check_invariants(self) -> None:
        self.coordinator.check_invariants()


def _mine(message: FaultToleranceMessage) -> AckCheckpoint | DeclineCheckpoint | WantCheckpoint:
    if isinstance(message, AckCheckpoint | DeclineCheckpoint | WantCheckpoint):
        return message
    raise InternalError(f"{type(message).__name__} does not belong to checkpoints by barriers")


def _instructions(outcomes: list[Outcome]) -> list[Instruction]:
    """Where no attempt runs that could be told anything."""
    found: list[Instruction] = []
    for outcome in outcomes:
        if isinstance(outcome, TellSlots | FailAttempt | FinishAttempt):
            raise InternalError(f"{outcome} after the end of the attempt")
        found.append(outcome)
    return found
