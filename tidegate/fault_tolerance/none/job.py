"""The job's side of no fault tolerance: a failed attempt is followed by one that begins anew."""

from __future__ import annotations

from tidegate.common.errors import InternalError, check_internal
from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.checkpoint_view import CheckpointsView
from tidegate.fault_tolerance.job_side import FailAttempt, FinishAttempt, JobFaultTolerance, Outcome
from tidegate.fault_tolerance.recovery_points import RecoveryPoints, Refusal, RestorePoint
from tidegate.protocol.instructions import CheckpointRequestDone, Instruction
from tidegate.protocol.messages import FailureInfo, FaultToleranceMessage

_REFUSED = "this job runs without fault tolerance: neither checkpoints nor savepoints of it can be taken"


class NoFaultTolerance(JobFaultTolerance):
    """Every attempt starts from `initial`, the snapshot that the job was started from, or else from nothing. At the end
    of data nothing has to become durable."""

    def __init__(self, initial: RestorePoint | None = None) -> None:
        self._points = RecoveryPoints(initial, None)
        self._running = False  # between on_attempt_running and on_attempt_over

    def restore_point(self) -> RestorePoint | None:
        return self._points.current()

    def refuse(self, checkpoint_id: CheckpointId) -> Refusal:
        return self._points.refuse(checkpoint_id)

    @property
    def stopped(self) -> bool:
        return False

    def on_deployed(self, attempt: AttemptNumber, point: RestorePoint | None, now_ms: float) -> list[Instruction]:
        return []

    def on_attempt_running(self, attempt: AttemptNumber, now_ms: float) -> list[Outcome]:
        check_internal(not self._running, "an attempt starts beside another one")
        self._running = True
        return []

    def on_end_of_data(self, everywhere: bool, now_ms: float) -> list[Outcome]:
        return [FinishAttempt()] if everywhere else []

    def on_attempt_over(self, now_ms: float) -> list[Instruction]:
        self._running = False
        return []

    def on_job_end(self, status: JobStatus, keep: bool = False) -> list[Instruction]:
        return []

    @property
    def repeats_results(self) -> bool:
        return True

    def resume_path(self, keep: bool) -> str | None:
        return None

    def on_message(self, message: FaultToleranceMessage, now_ms: float) -> list[Outcome]:
        text = f"a task of a job without fault tolerance sent {type(message).__name__}: please file a bug"
        return [FailAttempt(FailureInfo(summary=text, permanent=True))]

    def on_late_message(self, message: FaultToleranceMessage) -> list[Instruction]:
        return []

    def next_deadline(self) -> float | None:
        return None

    def on_tick(self, now_ms: float) -> list[Outcome]:
        return []

    def on_metadata_written(
        self, attempt: AttemptNumber, checkpoint_id: CheckpointId, error: str | None, now_ms: float
    ) -> list[Outcome]:
        raise InternalError("metadata was written for a job without checkpoints")

    @property
    def awaits_storage(self) -> bool:
        return False

    def on_checkpoint_request(self, request_id: int, savepoint: bool, target: str, now_ms: float) -> list[Outcome]:
        return [CheckpointRequestDone(request_id, None, _REFUSED)]

    def on_stop_request(self, request_id: int, drain: bool, target: str, now_ms: float) -> list[Outcome]:
        return [CheckpointRequestDone(request_id, None, _REFUSED)]

    def view(self) -> CheckpointsView:
        return CheckpointsView()

    def check_invariants(self) -> None:
        """There is nothing that could be broken."""
