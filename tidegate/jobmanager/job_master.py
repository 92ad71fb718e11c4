"""The JobMaster: one job from its submission to its end, over as many attempts as the restart strategy allows.

A pure state machine. The host calls one of the `on_...` methods for everything that happens and carries out the
instructions that come back, in order; it calls `on_tick` at `next_deadline()` at the latest.

One attempt::

    SubmitGang   slots register        -> Deploy to all (addresses, plan, state to restore)
                 all slots are ready   -> Start to all; the job is RUNNING
                 all tasks at the end  -> when the model of fault tolerance says that all is durable: Finish to all
                 all slots finished    -> Leave to all, wait for the gang's exit -> JobEnded(FINISHED)

A job that was stopped (with a savepoint) and fails after that is told to Finish instead of Start in every further
attempt: it commits what its restore point holds, and nothing is processed any more.

A failure at any point before "all slots finished": Leave to all at once; the restart strategy is asked at that moment,
so that its delay and the leaving of the workers overlap; when the gang is gone, or its time to leave is over, and the
delay has passed, the next attempt is submitted; or the job ends. Nothing that an earlier attempt says changes anything
any more.

The states are classes: `job_state` has the picture. What is durable, and what attempts start from, is the business of
the model (`fault_tolerance.job_side`).

`now_ms` is milliseconds since the epoch (checkpoints are stamped with it) from a clock that never goes backwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidegate.common.errors import InternalError
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SlotIndex, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.job_side import JobFaultTolerance
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.gang import Member
from tidegate.jobmanager.job import Job
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.job_state import Due, JobState
from tidegate.jobmanager.leaving_states import Created
from tidegate.jobmanager.message_check import MessageCheck
from tidegate.jobmanager.recovery_policy import RecoveryPolicy
from tidegate.jobmanager.restart_strategies import RestartStrategy
from tidegate.jobmanager.state_assignment import StateAssigner
from tidegate.jobmanager.working_states import submit
from tidegate.protocol.instructions import AttemptFailure, FoundSplits, Instruction
from tidegate.protocol.messages import FailureInfo, SlotToMaster, StateLookup


class JobMaster:
    """See the module docstring for the order of events. After `JobEnded` every call is harmless.

    Raises SnapshotError from the constructor when what the job is to start from does not fit the graph: before anything
    has started. Only `_become` changes the state."""

    def __init__(
        self,
        graph: JobGraph,
        settings: JobSettings,
        restart: RestartStrategy,
        model: JobFaultTolerance,
        plan_for: Callable[[AttemptNumber], bytes],
        assigner: StateAssigner | None = None,
    ) -> None:
        assigner = assigner or StateAssigner(graph, settings.allow_non_restored_state)
        first = model.restore_point()
        if first is not None:
            assigner.assign(first)
        policy = RecoveryPolicy(restart, model, settings.max_repeated_failures)
        self._job = Job(graph, settings, model, policy, assigner, plan_for, from_snapshot=first is not None)
        self._check = MessageCheck(graph)
        self._state: JobState = Created(self._job)

    # ------------------------------------------------------------ what can be seen from outside
    @property
    def status(self) -> JobStatus:
        return self._job.status

    @property
    def num_slots(self) -> int:
        return self._job.graph.num_slots

    @property
    def attempt(self) -> AttemptNumber:
        """Of the current or latest gang."""
        gang = self._state.gang
        return AttemptNumber(0) if gang is None else gang.attempt

    @property
    def failures(self) -> tuple[AttemptFailure, ...]:
        return self._job.failures.entries

    @property
    def members(self) -> tuple[Member, ...]:
        """The workers of the current attempt, with the metrics of their latest heartbeat."""
        gang = self._state.gang
        return () if gang is None else tuple(gang.members.values())

    @property
    def restored_checkpoint(self) -> CheckpointId | None:
        """What the current attempt was started from."""
        point = self._job.restored
        return None if point is None else point.checkpoint_id

    @property
    def fault_tolerance(self) -> JobFaultTolerance:
        return self._job.model

    @property
    def fenced_messages(self) -> int:
        """Messages of attempts that are over, dropped so far."""
        return self._job.fenced_messages

    def next_deadline(self) -> float | None:
        """When `on_tick` has to be called at the latest; None when only an event can change anything."""
        return self._state.next_deadline()

    # ------------------------------------------------------------ events
    def start(self, now_ms: float) -> list[Instruction]:
        if not isinstance(self._state, Created):
            raise InternalError("a job can be started only once")
        return self._become(self._state.start(now_ms), now_ms)

    def on_message(self, message: SlotToMaster, now_ms: float) -> list[Instruction]:
        state = self._at(now_ms)
        if state.gang is None or state.gang.attempt != message.attempt:
            self._job.fence(message)
            return self._become(state, now_ms)
        unknown = self._check.problem(message)
        if unknown is not None:
            text = f"a worker sent {type(message).__name__} of {unknown}, which this job does not have"
            return self._become(state.on_bad_message(FailureInfo(summary=text), now_ms), now_ms)
        return self._become(state.on_message(message, now_ms), now_ms)

    def on_unreadable(self, incarnation: str, problem: str, permanent: bool, now_ms: float) -> list[Instruction]:
        """What the process with this incarnation has sent is no message. That fails the attempt when it is one of its
        workers, or may be one that has yet to register; otherwise it is only logged. `permanent`: another attempt would
        not be understood either."""
        state = self._at(now_ms)
        gang = state.gang
        workers = [] if gang is None else [m for m in gang.members.values() if m.incarnation == incarnation]
        if not workers and (gang is None or gang.complete):
            self._job.out.log(logging.WARNING, f"from a process that is no worker of the current attempt: {problem}")
            return self._become(state, now_ms)
        sender = workers[0].describe() if workers else "worker that has not registered"
        failure = FailureInfo(summary=f"from a {sender}: {problem}", permanent=permanent)
        return self._become(state.on_bad_message(failure, now_ms), now_ms)

    def on_gang_exit(self, attempt: AttemptNumber, error: str | None, now_ms: float) -> list[Instruction]:
        """The Spark job of an attempt is over: normally (`error` None) or with Spark's story in one line."""
        state = self._at(now_ms)
        if state.gang is None or state.gang.attempt != attempt or state.gang.exited:
            return []
        return self._become(state.on_gang_exit(error, now_ms), now_ms)

    def on_engine_gone(self, attempt: AttemptNumber, error: str, now_ms: float) -> list[Instruction]:
        """Instead of `on_gang_exit`: Spark itself is gone (its session was stopped, its JVM has died, its master is
        lost), so the job fails, whatever its restart strategy says. Its checkpoints are kept."""
        state = self._at(now_ms)
        if state.gang is None or state.gang.attempt != attempt or state.gang.exited:
            return []
        return self._become(state.on_engine_gone(error, now_ms), now_ms)

    def on_cancel(self, now_ms: float) -> list[Instruction]:
        """May be called at any time and repeatedly. A job that has committed everything already still finishes."""
        return self._become(self._at(now_ms).on_cancel(now_ms), now_ms)

    def on_tick(self, now_ms: float) -> list[Instruction]:
        return self._become(self._at(now_ms).on_tick(now_ms), now_ms)

    def on_metadata_written(
        self, attempt: AttemptNumber, checkpoint_id: CheckpointId, error: str | None, now_ms: float
    ) -> list[Instruction]:
        """The answer to WriteMetadata. One of an attempt that is over goes to the model too: it deletes what was
        written."""
        state = self._at(now_ms)
        outcomes = self._job.model.on_metadata_written(attempt, checkpoint_id, error, now_ms)
        return self._become(state.apply(outcomes, now_ms).on_storage_answered(now_ms), now_ms)

    def on_splits_discovered(
        self, attempt: AttemptNumber, operator_id: OperatorId, found: FoundSplits | FailureInfo, now_ms: float
    ) -> list[Instruction]:
        """The answer to DiscoverSplits: what was found, or why the enumerator of the source could not say. One of an
        attempt that is over changes nothing: what it found is found again."""
        state = self._at(now_ms)
        if state.gang is None or state.gang.attempt != attempt:
            return self._become(state, now_ms)
        return self._become(state.on_discovery(operator_id, found, now_ms), now_ms)

    def on_recorded(self, checkpoint_id: CheckpointId, recorded: bool, now_ms: float) -> list[Instruction]:
        """The answer to RecordSnapshot. `recorded`: False when the job's record names a newer one. A record that is not
        ours any more is no answer but `on_deposed`."""
        state = self._at(now_ms)
        outcomes = self._job.model.on_recorded(checkpoint_id, recorded, now_ms)
        return self._become(state.apply(outcomes, now_ms).on_storage_answered(now_ms), now_ms)

    def on_directory_taken(self, why: str, now_ms: float) -> list[Instruction]:
        """Another run has taken the job's checkpoint directory for good, so none of its checkpoints will ever be
        complete again, and another attempt would only write to sinks what the other run writes too: the job fails. Not
        with high availability, where the lease of the job decides."""
        state = self._at(now_ms)
        text = f"another run has taken the checkpoint directory of this job, which ends here: {why}"
        return self._become(state.on_bad_message(FailureInfo(summary=text, permanent=True), now_ms), now_ms)

    def on_deposed(self, reason: str, now_ms: float) -> list[Instruction]:
        """High availability: this JobManager does not lead the job any more, or cannot know. Its workers are sent away,
        and the job ends here as SUSPENDED: another JobManager goes on with it. The host deletes and writes nothing more
        for it, whatever the instructions say. May be called repeatedly."""
        return self._become(self._at(now_ms).on_deposed(reason, now_ms), now_ms)

    def on_checkpoint_request(
        self, request_id: int, savepoint: bool, now_ms: float, target: str = ""
    ) -> list[Instruction]:
        """A user asks for a checkpoint, or for a savepoint in the folder `target`. Answered by one
        CheckpointRequestDone with the same id, at once or later."""
        state = self._at(now_ms)
        outcomes = self._job.model.on_checkpoint_request(request_id, savepoint, target, now_ms)
        return self._become(state.apply(outcomes, now_ms), now_ms)

    def on_stop_request(self, request_id: int, drain: bool, target: str, now_ms: float) -> list[Instruction]:
        """A user wants the job to end with a savepoint in the folder `target`. Answered like a checkpoint request, when
        the job has ended or the savepoint has failed; in the second case the job goes on.

        `drain`: event time comes to its end first, as at the end of bounded input."""
        state = self._at(now_ms)
        outcomes = self._job.model.on_stop_request(request_id, drain, target, now_ms)
        return self._become(state.apply(outcomes, now_ms), now_ms)

    def on_results_taken(
        self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int, now_ms: float
    ) -> list[Instruction]:
        """The client has taken all chunks of this subtask up to and including `seq`."""
        state = self._at(now_ms)
        state.on_results_taken(operator_id, subtask, seq)
        return self._become(state, now_ms)

    def on_read_state(
        self, request_id: int, slot: SlotIndex, lookups: tuple[StateLookup, ...], now_ms: float
    ) -> list[Instruction]:
        """Somebody looks at the state of tasks. Answered by one StateReadDone with the same id, at once or later; never
        when the attempt ends before the slot has answered."""
        state = self._at(now_ms)
        state.on_read_state(request_id, slot, lookups)
        return self._become(state, now_ms)

    def _at(self, now_ms: float) -> JobState:
        """The state, at the beginning of an event."""
        self._state.see_time(now_ms)
        return self._state

    def _become(self, state: JobState | Due, now_ms: float) -> list[Instruction]:
        """The end of an event: the state that follows, and what is to be done."""
        self._state = submit(self._job, state.attempt, now_ms) if isinstance(state, Due) else state
        return self._job.out.flush()

    # ------------------------------------------------------------ invariants
    def check_invariants(self) -> None:
        """For tests and simulations: holds between any two calls."""
        self._state.check_invariants()
        self._job.model.check_invariants()
        self._job.discovery.check_invariants()
