"""The job's side of a model of fault tolerance: what the JobMaster tells it and asks it.

The JobMaster knows attempts: it starts them, sees them fail, starts the next. It does not know what makes an attempt
worth more than beginning anew. That is the model: it decides what the next attempt starts from, when everything that
was processed is durable, and what becomes of the requests of users. It is a protocol core like the JobMaster itself:
events in, outcomes out, no I/O and no clock.

The order of calls, of one attempt::

    restore_point()                                before the deployment: what the attempt starts from
    on_deployed(attempt, point)
    on_attempt_running(attempt)                    all tasks were told to start (not when `stopped`)
    on_message, on_end_of_data, on_tick, on_checkpoint_request, on_stop_request, on_metadata_written     at any time
    on_attempt_over()                              the gang was told to leave; also for an attempt that never ran
    on_job_end(status)                             once, at the end of everything

Late answers (`on_late_message`, `on_metadata_written`) come after that too, and requests of users at any time.

Why it is this small. Ways to be exactly or at least once differ in what they ask of the tasks, not of the JobMaster:

- *Barriers* (`barriers/`) make the whole job durable now and then: messages are acknowledgements of snapshots, the
  restore point is the latest complete checkpoint, and the attempt is done when a checkpoint of its end is complete.
- *Record acknowledgement* would keep results flowing and count, at the sources, which records are through: messages
  carry how far each source is acknowledged, the restore point is made of these offsets, FinishAttempt comes when all
  are. Nothing is durable besides, so savepoints are refused.
- *A transaction log* would hold the results of a bundle back in its task until the log has them: a message asks for a
  bundle to be logged, an instruction writes it, the storage's answer becomes a TellSlots that releases the results. The
  restore point is the end of the log, and a task that is given a bundle that the log has already recognises it by its
  id (task side: `task_side.py`).

So results that are held back are a matter of messages, TellSlots and answers of the storage, all of which are here; and
what was seen before is known by the tasks and by what they are restored from. A model adds its own messages as
subclasses of `FaultToleranceMessage`, and instructions where the storage has to do something new."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.common.errors import InternalError
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.checkpoint_view import CheckpointsView
from tidegate.fault_tolerance.recovery_points import Refusal, RestorePoint
from tidegate.protocol.instructions import Instruction
from tidegate.protocol.messages import FailureInfo, FaultToleranceMessage, MasterToSlot
from tidegate.storage.handles import EnumeratorState


@dataclass(frozen=True)
class TellSlots:
    """A control message to the workers of these slots in the current attempt."""

    slots: tuple[SlotIndex, ...]
    message: MasterToSlot


@dataclass(frozen=True)
class FailAttempt:
    """The current attempt cannot go on. The restart strategy is asked, unless `resume` says that the next attempt
    follows in any case, at once: nothing is broken then, the job only has to go back to its restore point."""

    failure: FailureInfo
    resume: bool = False


@dataclass(frozen=True)
class FinishAttempt:
    """Nothing is left to process and everything is durable: the tasks commit what is pending, close, and the job is
    finished."""


Outcome = TellSlots | FailAttempt | FinishAttempt | Instruction
"""What a model answers: three things for the JobMaster, and instructions that it hands to the host as they are."""


class JobFaultTolerance(ABC):
    """One model, for one job, over all its attempts. See the module's docstring for the order of calls."""

    # ------------------------------------------------------------ what attempts start from
    @abstractmethod
    def restore_point(self) -> RestorePoint | None:
        """What the next attempt starts from; None: from nothing."""

    @abstractmethod
    def refuse(self, checkpoint_id: CheckpointId) -> Refusal:
        """This restore point turned out to be unreadable. It is never given again."""

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """The job is stopped at its restore point: an attempt from there only commits, and processes nothing."""

    def keep_in_snapshots(self, enumerators: Callable[[], dict[OperatorId, EnumeratorState]]) -> None:
        """Called once, before everything else: what is known of splits that are discovered belongs into each snapshot,
        as it is at the moment at which the sources are told to take theirs. A model without snapshots needs none."""

    # ------------------------------------------------------------ the life of attempts
    @abstractmethod
    def on_deployed(self, attempt: AttemptNumber, point: RestorePoint | None, now_ms: float) -> list[Instruction]:
        """The workers of the attempt were told to restore from the point."""

    @abstractmethod
    def on_attempt_running(self, attempt: AttemptNumber, now_ms: float) -> list[Outcome]: ...

    @abstractmethod
    def on_end_of_data(self, everywhere: bool, now_ms: float) -> list[Outcome]:
        """One more task of the running attempt is at the end of its data. `everywhere`: now all are; FinishAttempt is
        due, at once or when everything is durable."""

    @abstractmethod
    def on_attempt_over(self, now_ms: float) -> list[Instruction]: ...

    @abstractmethod
    def on_job_end(self, status: JobStatus, keep: bool = False) -> list[Instruction]:
        """`status` is FINISHED, FAILED or CANCELED. Requests of users that are still open are answered now. `keep`:
        what attempts start from is not deleted, whatever the settings say."""

    @property
    @abstractmethod
    def repeats_results(self) -> bool:
        """Results of `execute_and_collect` leave before a snapshot covers them: what comes after a restart is something
        else under the same numbers."""

    @abstractmethod
    def resume_path(self, keep: bool) -> str | None:
        """Before `on_job_end` of a job that has failed: what another job can be started from after it; None: nothing is
        left then. `keep` as there."""

    # ------------------------------------------------------------ events
    @abstractmethod
    def on_message(self, message: FaultToleranceMessage, now_ms: float) -> list[Outcome]:
        """Of a slot of the current attempt."""

    @abstractmethod
    def on_late_message(self, message: FaultToleranceMessage) -> list[Instruction]:
        """Of an attempt that is over: nothing may follow from it but that what it wrote is deleted."""

    @abstractmethod
    def next_deadline(self) -> float | None: ...

    @abstractmethod
    def on_tick(self, now_ms: float) -> list[Outcome]: ...

    @abstractmethod
    def on_metadata_written(
        self, attempt: AttemptNumber, checkpoint_id: CheckpointId, error: str | None, now_ms: float
    ) -> list[Outcome]:
        """The answer to WriteMetadata of this attempt, which may be over."""

    @property
    @abstractmethod
    def awaits_storage(self) -> bool:
        """An answer of the storage is due. The end of the job waits for it for a moment, so that nothing is left behind
        half done."""

    # ------------------------------------------------------------ high availability
    def on_recorded(self, checkpoint_id: CheckpointId, recorded: bool, now_ms: float) -> list[Outcome]:
        """The answer to RecordSnapshot, of an attempt that may be over. `recorded`: False when the job's record names a
        newer one."""
        raise InternalError(f"{type(self).__name__} has recorded nothing")

    @property
    def undecided(self) -> bool:
        """An answer to RecordSnapshot is due that decides what the next attempt starts from: its deployment waits."""
        return False

    # ------------------------------------------------------------ users
    @abstractmethod
    def on_checkpoint_request(self, request_id: int, savepoint: bool, target: str, now_ms: float) -> list[Outcome]:
        """Answered by one CheckpointRequestDone, at once or later."""

    @abstractmethod
    def on_stop_request(self, request_id: int, drain: bool, target: str, now_ms: float) -> list[Outcome]:
        """Answered by one CheckpointRequestDone: when the job has ended or cannot be stopped this way."""

    # ------------------------------------------------------------ seen from outside
    @abstractmethod
    def view(self) -> CheckpointsView:
        """An immutable value for the published view of the job. Asked for some times a second: what does not change any
        more is not made again."""

    @abstractmethod
    def check_invariants(self) -> None:
        """For tests and simulations: holds between any two calls."""
