"""The JobMaster: one job from its submission to its end, over as many attempts as the restart strategy allows.

A pure state machine. The host calls one of the `on_...` methods for everything that happens and carries out the
instructions that come back, in order; it calls `on_tick` at `next_deadline()` at the latest.

One attempt::

    SubmitGang   slots register        -> Deploy to all (addresses, plan, state to restore)
                 all slots are ready   -> Start to all; the job is RUNNING, checkpoints begin
                 all tasks at the end  -> last checkpoint (when checkpointing is on) -> Finish to all
                 all slots finished    -> Leave to all, wait for the gang's exit -> JobEnded(FINISHED)

Stop with a savepoint: the sources, and then everybody, stand still behind its barrier; when it is complete, Finish to
all. From then on the savepoint is what every further attempt starts from, and such an attempt is told to Finish
instead of Start: it commits what the savepoint holds, and nothing is processed any more.

A failure at any point before "all slots finished": Leave to all at once; the restart strategy is asked at that moment,
so that its delay and the leaving of the workers overlap; when the gang is gone, or its time to leave is over, the next
attempt is submitted or the job ends. Nothing that an earlier attempt says changes anything any more.

`now_ms` is milliseconds since the epoch (checkpoints are stamped with it) from a clock that never goes backwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from tidegate.common.errors import SnapshotError, check_internal
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SlotIndex, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.effects import (
    Effect,
    EverythingDurable,
    FailAttempt,
    ResumeAfterDrain,
    StoppedWithSavepoint,
    ToSlots,
)
from tidegate.fault_tolerance.recovery_points import RecoveryPoints, RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.collect_ledger import ChunkVerdict, CollectLedger
from tidegate.jobmanager.failure_history import FailureHistory
from tidegate.jobmanager.gang import Gang, GangPhase, Member, Registration
from tidegate.jobmanager.gang_monitor import GangMonitor
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.job_status_machine import JobStatusMachine
from tidegate.jobmanager.outbox import Outbox
from tidegate.jobmanager.recovery_policy import RecoveryPolicy
from tidegate.jobmanager.restart_strategies import GiveUp, RestartAfter, RestartDecision, RestartStrategy
from tidegate.jobmanager.state_assignment import assign_state
from tidegate.jobmanager.watermark_alignment import WatermarkAlignment
from tidegate.protocol.instructions import (
    AttemptFailure,
    CancelGang,
    CheckpointRequestDone,
    DeliverResults,
    Instruction,
    JobEnded,
    StatusChanged,
    SubmitGang,
)
from tidegate.protocol.messages import (
    AckCheckpoint,
    CollectAck,
    CollectChunk,
    DeclineCheckpoint,
    Deploy,
    FailureInfo,
    Finish,
    Leave,
    MasterHeartbeat,
    Register,
    SlotFinished,
    SlotHeartbeat,
    SlotReady,
    SlotToMaster,
    Start,
    TaskEndOfData,
    TaskFailed,
    WatermarkLimits,
    WatermarkReport,
)

if TYPE_CHECKING:
    from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator


_NO_CHECKPOINTS = (
    "checkpointing is off for this job: call env.enable_checkpointing(interval), set execution.checkpointing.interval, "
    "or take a savepoint"
)
_METADATA_GRACE_MS = 2_500.0  # how long the end of a job waits for metadata that is being written


class JobMaster:
    """See the module docstring for the order of events. After `JobEnded` every call is harmless.

    Raises SnapshotError from the constructor when `initial` does not fit the graph: before anything has started."""

    def __init__(
        self,
        graph: JobGraph,
        settings: JobSettings,
        restart: RestartStrategy,
        coordinator: CheckpointCoordinator | None,
        plan_for: Callable[[AttemptNumber], bytes],
        initial: RestorePoint | None = None,
    ) -> None:
        self._graph = graph
        self._settings = settings
        self._coordinator = coordinator
        self._plan_for = plan_for
        self._recovery = RecoveryPoints(initial, coordinator.store if coordinator is not None else None)
        self._policy = RecoveryPolicy(restart, self._recovery)
        if initial is not None:
            self._assign(initial)
        self._machine = JobStatusMachine()
        self._gang: Gang | None = None  # of the current or latest attempt; None only before the first
        self._monitor: GangMonitor | None = None  # of that gang
        self._alignment = WatermarkAlignment(graph)  # of that gang's sources
        self._restored: RestorePoint | None = None  # what the current attempt was deployed with
        self._decision: RestartDecision | None = None  # set exactly while FAILING
        self._failures = FailureHistory()
        self._failed_at_ms = 0.0  # when the current attempt failed
        self._leave_deadline: float | None = None  # set while a gang that was told to leave has not exited
        self._gang_cancelled = False  # CancelGang was sent for the current attempt
        self._restart_at: float | None = None  # set exactly while RESTARTING without a gang
        self._collected = CollectLedger(any_first=initial is not None)
        self._stop: StoppedWithSavepoint | None = None  # the job ends with this savepoint, which is complete
        self._started_ms: float | None = None
        self._ended = False
        self._out = Outbox()
        self.fenced_messages = 0  # messages of attempts that are over, dropped

    # ------------------------------------------------------------ what can be seen from outside
    @property
    def status(self) -> JobStatus:
        return self._machine.status

    @property
    def num_slots(self) -> int:
        return self._graph.num_slots

    @property
    def attempt(self) -> AttemptNumber:
        """Of the current or latest gang."""
        return self._gang.attempt if self._gang is not None else AttemptNumber(0)

    @property
    def failures(self) -> tuple[AttemptFailure, ...]:
        return self._failures.entries

    @property
    def members(self) -> tuple[Member, ...]:
        """The workers of the current attempt, with the metrics of their latest heartbeat."""
        return tuple(self._gang.members.values()) if self._gang is not None else ()

    @property
    def restored_checkpoint(self) -> CheckpointId | None:
        """What the current attempt was started from."""
        return self._restored.checkpoint_id if self._restored is not None else None

    @property
    def coordinator(self) -> CheckpointCoordinator | None:
        return self._coordinator

    def next_deadline(self) -> float | None:
        """When `on_tick` has to be called at the latest; None when only an event can change anything."""
        if self._ended or self._gang is None:
            return None
        due: list[float] = []
        if self._leave_deadline is not None:
            due.append(self._leave_deadline)
        if self._restart_at is not None:
            due.append(self._restart_at)
        if self._active:
            assert self._monitor is not None
            checkpoint = self._coordinator.next_deadline() if self._coordinator is not None else None
            due += [time for time in (self._monitor.deadline(), checkpoint) if time is not None]
        return min(due, default=None)

    # ------------------------------------------------------------ events
    def start(self, now_ms: float) -> list[Instruction]:
        check_internal(self._gang is None and self.status is JobStatus.CREATED, "a job can be started only once")
        self._started_ms = now_ms
        self._submit(AttemptNumber(0), now_ms)
        return self._out.flush()

    def on_message(self, message: SlotToMaster, now_ms: float) -> list[Instruction]:
        self._see_time(now_ms)
        gang = self._gang
        if isinstance(message, Register):
            self._on_register(message, now_ms)
        elif gang is None or message.attempt != gang.attempt or not self._active:
            self._on_fenced(message, now_ms)
        else:
            self._on_current(gang, message, now_ms)
        return self._out.flush()

    def on_gang_exit(self, attempt: AttemptNumber, error: str | None, now_ms: float) -> list[Instruction]:
        """The Spark job of an attempt is over: normally (`error` None) or with Spark's story in one line."""
        self._see_time(now_ms)
        gang = self._gang
        if gang is None or gang.attempt != attempt or gang.exited or self._ended:
            return []
        gang.exited = True
        if error is None:
            text = f"the workers of attempt {attempt} went away before the job was finished"
        else:
            text = f"the workers of attempt {attempt} were lost: {error}"
        if gang.phase is not GangPhase.LEAVING:
            self._fail(FailureInfo(summary=text), now_ms)
        elif self.status is JobStatus.FAILING and error is not None and self._failures.latest_is_consequence():
            self._failures.replace_latest(FailureInfo(summary=text))
        self._leave_deadline = None
        self._on_gang_gone(now_ms)
        return self._out.flush()

    def on_cancel(self, now_ms: float) -> list[Instruction]:
        """May be called at any time and repeatedly. A job that has committed everything already still finishes."""
        self._see_time(now_ms)
        if self._machine.terminal or self.status is JobStatus.CANCELLING or self._all_finished:
            return []
        self._step(JobStatus.CANCELLING)
        self._decision = None
        self._restart_at = None
        if self._active:
            self._tell_to_leave("the job was cancelled", now_ms)
        elif self._leave_deadline is None:  # not started yet, or between two attempts
            self._on_gang_gone(now_ms)
        return self._out.flush()

    def on_tick(self, now_ms: float) -> list[Instruction]:
        self._see_time(now_ms)
        gang = self._gang
        if gang is None or self._ended:
            return []
        if self._leave_deadline is not None and now_ms >= self._leave_deadline:
            self._on_leave_timeout(gang, now_ms)
        if self._restart_at is not None and now_ms >= self._restart_at:
            self._restart_at = None
            self._submit(AttemptNumber(gang.attempt + 1), now_ms)
        if self._active:
            self._look_after_gang(now_ms)
        if self._active and self._coordinator is not None:
            self._apply(self._coordinator.on_tick(now_ms), now_ms)
        return self._out.flush()

    def on_metadata_written(
        self, attempt: AttemptNumber, checkpoint_id: CheckpointId, error: str | None, now_ms: float
    ) -> list[Instruction]:
        """The answer to WriteMetadata. One of an attempt that is over goes to the coordinator too: it deletes what was
        written."""
        self._see_time(now_ms)
        check_internal(self._coordinator is not None, "metadata was written for a job without checkpoints")
        assert self._coordinator is not None
        self._apply(self._coordinator.on_metadata_written(checkpoint_id, error, now_ms), now_ms)
        if not self._ended and self._leave_deadline is not None and self._gang is not None and self._gang.exited:
            self._on_gang_gone(now_ms)
        return self._out.flush()

    def on_checkpoint_request(
        self, request_id: int, savepoint: bool, now_ms: float, target: str = ""
    ) -> list[Instruction]:
        """A user asks for a checkpoint, or for a savepoint in the folder `target`. Answered by one
        CheckpointRequestDone with the same id, at once or later."""
        self._see_time(now_ms)
        if self._coordinator is None or not (savepoint or self._coordinator.settings.enabled):
            return [CheckpointRequestDone(request_id, None, _NO_CHECKPOINTS)]
        self._apply(self._coordinator.on_request(request_id, savepoint, now_ms, target), now_ms)
        return self._out.flush()

    def on_stop_request(self, request_id: int, drain: bool, target: str, now_ms: float) -> list[Instruction]:
        """A user wants the job to end with a savepoint in the folder `target`. Answered like a checkpoint request, when
        the job has ended or the savepoint has failed; in the second case the job goes on.

        `drain`: event time comes to its end first, as at the end of bounded input."""
        self._see_time(now_ms)
        if self._coordinator is None:
            return [CheckpointRequestDone(request_id, None, _NO_CHECKPOINTS)]
        if self._stop is not None:
            return [CheckpointRequestDone(request_id, None, "the job is being stopped already")]
        self._apply(self._coordinator.on_stop_request(request_id, drain, target, now_ms), now_ms)
        return self._out.flush()

    def on_results_taken(
        self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int, now_ms: float
    ) -> list[Instruction]:
        """The client has taken all chunks of this subtask up to and including `seq`."""
        self._see_time(now_ms)
        if self._active:
            self._acknowledge_chunk(operator_id, subtask, seq)
        return self._out.flush()

    # ------------------------------------------------------------ messages of slots
    @property
    def _active(self) -> bool:
        """The current gang works for the job: not before it is submitted, not once it was told to leave."""
        return self._gang is not None and not self._gang.exited and self._gang.phase is not GangPhase.LEAVING

    @property
    def _all_finished(self) -> bool:
        return self._gang is not None and len(self._gang.finished) == self._gang.num_slots

    def _on_register(self, message: Register, now_ms: float) -> None:
        gang = self._gang
        if gang is None or message.attempt != gang.attempt or not self._active:
            self.fenced_messages += 1
            self._out.refuse(message, f"attempt {message.attempt} of the job is over")
            return
        verdict = gang.register(message, now_ms)
        if verdict is Registration.ACCEPTED:
            if gang.complete:
                self._deploy(gang, now_ms)
        elif verdict is Registration.RIVAL:
            # Spark runs a barrier stage again only after it has lost one of its tasks: the gang cannot be whole.
            self._out.refuse(message, f"slot {message.slot} of attempt {message.attempt} is taken")
            first = gang.members[message.slot].describe()
            text = f"Spark has lost a worker of the gang: it started a second one in the place of the {first}"
            self._fail(FailureInfo(summary=text), now_ms)
        elif verdict is Registration.UNKNOWN_SLOT:
            self._out.refuse(message, f"there is no slot {message.slot}: the job has {gang.num_slots}")

    def _on_fenced(self, message: SlotToMaster, now_ms: float) -> None:
        self.fenced_messages += 1
        if isinstance(message, AckCheckpoint) and self._coordinator is not None:
            self._apply(self._coordinator.on_fenced_ack(message), now_ms)
        elif isinstance(message, TaskFailed) and self._gang is not None and message.attempt == self._gang.attempt:
            self._on_better_cause(message.failure, now_ms)

    def _on_current(self, gang: Gang, message: SlotToMaster, now_ms: float) -> None:
        if isinstance(message, SlotHeartbeat):
            gang.heard(message.slot, now_ms)
            member = gang.members.get(message.slot)
            if member is not None:
                member.metrics = message.metrics
                member.accumulators = message.accumulators or member.accumulators
        elif isinstance(message, SlotReady):
            gang.heard(message.slot, now_ms)
            if gang.phase is GangPhase.RESTORING and gang.mark_ready(message.slot):
                self._start_gang(gang, now_ms)
        elif isinstance(message, TaskEndOfData):
            gang.heard(self._graph.slot_of(message.vertex, message.subtask), now_ms)
            all_at_end = gang.mark_end_of_data(message.vertex, message.subtask)
            if gang.phase is GangPhase.RUNNING and self._coordinator is not None:
                self._coordinator.on_task_end_of_data()
            if all_at_end and gang.phase is GangPhase.RUNNING:
                self._on_all_end_of_data(gang, now_ms)
        elif isinstance(message, WatermarkReport):
            gang.heard(message.slot, now_ms)
            limits = self._alignment.on_report(message.slot, message.watermarks)
            if limits:
                self._out.send_all(gang, WatermarkLimits(attempt=gang.attempt, limits=limits))
        elif isinstance(message, SlotFinished):
            gang.heard(message.slot, now_ms)
            if message.slot in gang.members:
                gang.members[message.slot].metrics = message.metrics
                gang.members[message.slot].accumulators = message.accumulators
            if gang.phase is GangPhase.FINISHING and gang.mark_finished(message.slot, message.accumulators):
                self._tell_to_leave("the job is finished", now_ms)
        elif isinstance(message, TaskFailed):
            self._fail(message.failure, now_ms)
        elif isinstance(message, CollectChunk):
            self._on_chunk(message, now_ms)
        elif isinstance(message, AckCheckpoint) and self._coordinator is not None:
            self._apply(self._coordinator.on_ack(message, now_ms), now_ms)
        elif isinstance(message, DeclineCheckpoint) and self._coordinator is not None:
            self._apply(self._coordinator.on_decline(message, now_ms), now_ms)

    def _on_chunk(self, chunk: CollectChunk, now_ms: float) -> None:
        verdict = self._collected.take(chunk)
        if verdict is ChunkVerdict.DELIVER:
            self._out.add(DeliverResults(chunk.operator_id, chunk.subtask, chunk.seq, chunk.payload))
        elif verdict is ChunkVerdict.DUPLICATE:
            self._acknowledge_chunk(chunk.operator_id, chunk.subtask, chunk.seq)
        else:
            expected = self._collected.expected(chunk.operator_id, chunk.subtask)
            self._fail(
                FailureInfo(
                    summary=f"subtask {chunk.subtask} of the collect sink sent chunk {chunk.seq} of its results when "
                    f"{expected} was due: results were lost on the way, please file a bug",
                    subtask=chunk.subtask,
                    permanent=True,
                ),
                now_ms,
            )

    def _acknowledge_chunk(self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int) -> None:
        assert self._gang is not None
        for vertex in self._graph.vertices:
            if any(node.operator_id == operator_id for node in vertex.operators):
                ack = CollectAck(attempt=self._gang.attempt, operator_id=operator_id, subtask=subtask, seq=seq)
                self._out.send(self._gang, self._graph.slot_of(vertex.vertex_id, subtask), ack)
                return

    # ------------------------------------------------------------ the steps of an attempt
    def _submit(self, attempt: AttemptNumber, now_ms: float) -> None:
        self._gang = Gang(attempt, self._graph, now_ms)
        self._gang_cancelled = False
        self._restored = None
        self._alignment = WatermarkAlignment(self._graph)
        self._monitor = GangMonitor(self._gang, self._settings)
        self._out.add(SubmitGang(attempt, self._gang.num_slots))

    def _deploy(self, gang: Gang, now_ms: float) -> None:
        point = self._recovery.current()
        restores: dict[SlotIndex, bytes] = {}
        if point is not None:
            try:
                restores = self._assign(point)
            except SnapshotError as error:
                self._fail(FailureInfo(summary=str(error), permanent=True), now_ms)
                return
            self._out.log(logging.INFO, f"attempt {gang.attempt} starts from checkpoint {point.checkpoint_id}")
        elif gang.attempt > 0 and self._coordinator is not None and self._coordinator.settings.enabled:
            self._out.log(logging.WARNING, f"attempt {gang.attempt} starts anew: no checkpoint was completed so far")
        self._restored = point
        if point is not None and self._coordinator is not None:
            self._coordinator.stats.on_restored(point.checkpoint_id, now_ms)
        gang.enter(GangPhase.RESTORING)
        plan = self._plan_for(gang.attempt)
        addresses = [gang.members[SlotIndex(i)].data_address for i in range(gang.num_slots)]
        for slot in sorted(gang.members):
            deploy = Deploy(attempt=gang.attempt, addresses=addresses, plan=plan, restore=restores.get(slot, b""))
            self._out.send(gang, slot, deploy)

    def _assign(self, point: RestorePoint) -> dict[SlotIndex, bytes]:
        allow = self._settings.allow_non_restored_state
        encode = msgspec.msgpack.encode
        return {slot: encode(restore) for slot, restore in assign_state(self._graph, point, allow).items()}

    def _start_gang(self, gang: Gang, now_ms: float) -> None:
        gang.enter(GangPhase.RUNNING)
        self._step(JobStatus.RUNNING)
        self._policy.on_running(now_ms)
        if self._stop is not None:
            self._finish(gang)
            return
        self._out.send_all(gang, Start(attempt=gang.attempt))
        if self._coordinator is not None:
            self._apply(self._coordinator.on_attempt_running(gang.attempt, now_ms), now_ms)
        if gang.all_at_end:
            self._on_all_end_of_data(gang, now_ms)

    def _on_all_end_of_data(self, gang: Gang, now_ms: float) -> None:
        if self._coordinator is None:
            self._finish(gang)
        else:
            self._apply(self._coordinator.on_all_end_of_data(now_ms), now_ms)

    def _finish(self, gang: Gang) -> None:
        gang.stopped = self._stop is not None
        gang.enter(GangPhase.FINISHING)
        self._out.send_all(gang, Finish(attempt=gang.attempt))

    def _tell_to_leave(self, reason: str, now_ms: float) -> None:
        """Leave to all. When nobody has registered, nobody can be asked: Spark drops the gang at once."""
        gang = self._gang
        assert gang is not None
        gang.enter(GangPhase.LEAVING)
        self._leave_deadline = now_ms + self._settings.leave_grace_ms
        if gang.members:
            self._out.send_all(gang, Leave(attempt=gang.attempt, reason=reason))
        elif not gang.exited:
            self._cancel_gang(gang)
        if self._coordinator is not None:
            self._apply(self._coordinator.on_attempt_over(now_ms), now_ms)

    def _look_after_gang(self, now_ms: float) -> None:
        assert self._gang is not None
        assert self._monitor is not None
        failure = self._monitor.failure(now_ms)
        if failure is not None:
            self._fail(failure, now_ms)
        elif self._monitor.heartbeat_due(now_ms):
            self._out.send_all(self._gang, MasterHeartbeat(attempt=self._gang.attempt))

    def _see_time(self, now_ms: float) -> None:
        if self._monitor is not None:
            self._monitor.see_time(now_ms)

    def _cancel_gang(self, gang: Gang) -> None:
        if not self._gang_cancelled:
            self._gang_cancelled = True
            self._out.add(CancelGang(gang.attempt))

    # ------------------------------------------------------------ failure and end
    def _fail(self, failure: FailureInfo, now_ms: float, decision: RestartDecision | None = None) -> None:
        """The current attempt has failed. Only the first cause of an attempt comes here. `decision`: what follows, when
        the restart strategy has no say in it."""
        gang = self._gang
        assert gang is not None
        check_internal(gang.phase is not GangPhase.LEAVING, "an attempt failed that was over already")
        self._failures.record(gang.attempt, failure, now_ms)
        self._failed_at_ms = now_ms
        job = self._settings.job_name
        self._out.log(logging.WARNING, f"attempt {gang.attempt} of job '{job}' failed: {failure.summary}")
        self._step(JobStatus.FAILING)
        self._decision = self._decide(failure, now_ms) if decision is None else decision
        self._tell_to_leave("another part of the job has failed", now_ms)

    def _on_better_cause(self, failure: FailureInfo, now_ms: float) -> None:
        """A slot tells of a failure while the gang is leaving: kept when what is known so far only followed from it."""
        if self.status is JobStatus.FAILING and self._failures.latest_is_consequence() and not failure.consequence:
            self._failures.replace_latest(failure)
            if failure.permanent or failure.corrupt_checkpoint:
                self._decision = self._decide(failure, now_ms)

    def _decide(self, failure: FailureInfo, now_ms: float) -> RestartDecision:
        verdict = self._policy.on_failure(failure, now_ms)
        if verdict.warning:
            self._out.log(logging.WARNING, verdict.warning)
        if verdict.falls_back:
            self._collected.start_over()
        return verdict.decision

    def _on_leave_timeout(self, gang: Gang, now_ms: float) -> None:
        """The gang, or a metadata file that is being written, has had its time."""
        if not gang.exited and not self._gang_cancelled and not isinstance(self._decision, RestartAfter):
            # The job ends here: give Spark as long again to kill what is left, so that nothing outlives the job.
            self._cancel_gang(gang)
            self._leave_deadline = now_ms + self._settings.leave_grace_ms
            return
        if not gang.exited:
            self._cancel_gang(gang)
        self._leave_deadline = None
        self._on_gang_gone(now_ms, patient=False)

    def _on_gang_gone(self, now_ms: float, patient: bool = True) -> None:
        """The gang has exited, or was waited for long enough (not `patient`): restart or end."""
        decision = self._decision
        if self.status is JobStatus.FAILING and isinstance(decision, RestartAfter):
            self._decision = None
            self._leave_deadline = None
            self._step(JobStatus.RESTARTING)
            self._restart_at = max(now_ms, self._failed_at_ms + decision.delay_ms)
            if self._restart_at <= now_ms:
                self._restart_at = None
                assert self._gang is not None
                self._submit(AttemptNumber(self._gang.attempt + 1), now_ms)
            return
        if patient and self._coordinator is not None and self._coordinator.writing_metadata:
            if self._leave_deadline is None:
                self._leave_deadline = now_ms + min(self._settings.leave_grace_ms, _METADATA_GRACE_MS)
            return
        self._end(now_ms)

    def _end(self, now_ms: float) -> None:
        reason = self._decision.reason if isinstance(self._decision, GiveUp) else ""
        self._decision = None
        self._leave_deadline = None
        terminal = {
            JobStatus.FAILING: JobStatus.FAILED,
            JobStatus.CANCELLING: JobStatus.CANCELED,
            JobStatus.RUNNING: JobStatus.FINISHED,
        }[self.status]
        self._step(terminal)
        if self._coordinator is not None:
            self._apply(self._coordinator.on_job_end(terminal), now_ms)
        accumulators: tuple[bytes, ...] = ()
        if terminal is JobStatus.FINISHED and self._gang is not None:
            accumulators = tuple(self._gang.finished[slot] for slot in sorted(self._gang.finished))
        self._answer_stop(terminal)
        self._ended = True
        runtime = now_ms - self._started_ms if self._started_ms is not None else 0.0
        self._out.add(JobEnded(terminal, self._failures.entries, self._failures.total, runtime, accumulators, reason))

    def _answer_stop(self, terminal: JobStatus) -> None:
        stop = self._stop
        if stop is None or stop.request_id is None:
            return
        error = None
        if terminal is not JobStatus.FINISHED:
            error = (
                f"savepoint {stop.point.root} is complete, but the job ended as {terminal.name} before everything in "
                "it was committed: start a job from it, which commits the rest first"
            )
        self._out.add(CheckpointRequestDone(stop.request_id, stop.point.checkpoint_id, error, stop.point.root))

    def _on_stopped(self, stop: StoppedWithSavepoint) -> None:
        self._stop = stop
        self._recovery.stop_at(stop.point)
        if self._active:
            assert self._gang is not None
            self._finish(self._gang)

    # ------------------------------------------------------------ output
    def _apply(self, effects: Iterable[Effect], now_ms: float) -> None:
        for effect in effects:
            if isinstance(effect, ToSlots):
                assert self._gang is not None
                for slot in effect.slots:
                    self._out.send(self._gang, slot, effect.message)
            elif isinstance(effect, FailAttempt):
                if self._active:
                    self._fail(effect.failure, now_ms)
            elif isinstance(effect, ResumeAfterDrain):
                if self._active:
                    self._fail(effect.failure, now_ms, RestartAfter(0.0))
            elif isinstance(effect, StoppedWithSavepoint):
                self._on_stopped(effect)
            elif isinstance(effect, EverythingDurable):
                if self._active:
                    assert self._gang is not None
                    self._finish(self._gang)
            else:
                self._out.add(effect)

    def _step(self, to: JobStatus) -> None:
        self._machine.step(to)
        self._out.add(StatusChanged(to))

    # ------------------------------------------------------------ invariants
    def check_invariants(self) -> None:
        """For tests and simulations: holds between any two calls."""
        check_internal(self._out.empty, "instructions were left behind")
        check_internal(self._ended == self._machine.terminal, "ended without a terminal status, or the reverse")
        check_internal((self._decision is not None) == (self.status is JobStatus.FAILING), "decision outside FAILING")
        gang = self._gang
        if gang is None:
            check_internal(self.status in (JobStatus.CREATED, JobStatus.CANCELED), "no gang in a started job")
            return
        gang.check_invariants()
        if self._restart_at is not None:
            check_internal(self.status is JobStatus.RESTARTING and not self._active, "a restart beside a working gang")
        if self._active:
            check_internal(
                self.status in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING),
                f"a working gang in status {self.status.name}",
            )
            check_internal(self._leave_deadline is None, "a deadline to leave for a working gang")
        elif not self._ended:
            check_internal(
                self._leave_deadline is not None or self._restart_at is not None, "nothing will wake this job up"
            )
        if self._coordinator is not None:
            self._coordinator.check_invariants()
