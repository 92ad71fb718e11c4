"""The states of a job whose gang works for it: registering, restoring, running, finishing."""

from __future__ import annotations

import logging
from typing import assert_never

import msgspec

from tidegate.common.errors import InternalError, SnapshotError, check_internal
from tidegate.common.ids import AttemptNumber, OperatorId, SlotIndex, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.job_side import FailAttempt, FinishAttempt, Outcome, TellSlots
from tidegate.jobmanager.collect_ledger import ChunkVerdict
from tidegate.jobmanager.gang import Admission, Gang
from tidegate.jobmanager.gang_monitor import GangMonitor
from tidegate.jobmanager.job import Job
from tidegate.jobmanager.job_state import Due, JobState
from tidegate.jobmanager.leaving_states import (
    Ended,
    Ending,
    Failing,
    after_failure,
    lost_engine,
    lost_workers,
    suspend,
)
from tidegate.jobmanager.restart_strategies import RestartAfter
from tidegate.jobmanager.watermark_alignment import WatermarkAlignment
from tidegate.protocol.instructions import DeliverResults, FoundSplits, StateReadDone, SubmitGang
from tidegate.protocol.messages import (
    CollectAck,
    CollectChunk,
    Deploy,
    FailureInfo,
    FaultToleranceMessage,
    Finish,
    Leave,
    MasterHeartbeat,
    ReadState,
    Register,
    SlotFinished,
    SlotHeartbeat,
    SlotReady,
    SlotToMaster,
    SlotWarning,
    SourceSplits,
    Start,
    StateLookup,
    StateRead,
    TaskEndOfData,
    TaskFailed,
    WatermarkLimits,
    WatermarkReport,
)


class Attempt:
    """A gang that works, and what belongs to it."""

    def __init__(self, job: Job, number: AttemptNumber, now_ms: float) -> None:
        self.gang = Gang(number, job.graph, now_ms)
        self.monitor = GangMonitor(self.gang, job.settings)
        self.alignment = WatermarkAlignment(job.graph)


def submit(job: Job, attempt: AttemptNumber, now_ms: float) -> WaitingForSlots:
    """A new gang."""
    job.restored = None
    job.out.add(SubmitGang(attempt, job.graph.num_slots))
    return WaitingForSlots(job, Attempt(job, attempt, now_ms))


class Working(JobState):
    """What the four have in common: the gang is watched, and any failure, exit or cancel sends it away."""

    gang: Gang

    def __init__(self, job: Job, attempt: Attempt) -> None:
        super().__init__(job, attempt.gang)
        self.attempt = attempt

    # ------------------------------------------------------------ time
    def see_time(self, now_ms: float) -> None:
        self.attempt.monitor.see_time(now_ms)

    def next_deadline(self) -> float | None:
        due = (self.attempt.monitor.deadline(), self.job.model.next_deadline())
        return min((time for time in due if time is not None), default=None)

    def on_tick(self, now_ms: float) -> JobState:
        failure = self.attempt.monitor.silence(now_ms)
        if failure is not None:
            return self.fail(failure, now_ms)
        if self.attempt.monitor.heartbeat_due(now_ms):
            for slot, member in sorted(self.gang.members.items()):
                beat = MasterHeartbeat(attempt=self.gang.attempt, heard_ms=member.heartbeat_ms)
                self.job.out.send(self.gang, slot, beat)
        return self.apply(self.job.model.on_tick(now_ms), now_ms)

    # ------------------------------------------------------------ messages
    def on_message(self, message: SlotToMaster, now_ms: float) -> JobState:
        match message:
            case Register():
                return self._on_register(message, now_ms)
            case SlotHeartbeat():
                self.gang.heard(message.slot, now_ms, message.sent_ms)
                self.gang.report(message.slot, message.metrics, message.accumulators, message.states)
                return self
            case SourceSplits():
                self.job.discovery.on_restored(message.operator_id, message.names)
                return self
            case SlotReady():
                self.gang.heard(message.slot, now_ms)
                return self.on_slot_ready(message.slot, now_ms)
            case TaskEndOfData():
                self.gang.heard(self.job.graph.slot_of(message.vertex, message.subtask), now_ms)
                return self.on_end_of_data(message, now_ms)
            case WatermarkReport():
                self.gang.heard(message.slot, now_ms)
                limits = self.attempt.alignment.on_report(message.slot, message.watermarks)
                if limits:
                    self.job.out.send_all(self.gang, WatermarkLimits(attempt=self.gang.attempt, limits=limits))
                return self
            case SlotFinished():
                self.gang.heard(message.slot, now_ms)
                self.gang.report(message.slot, message.metrics, message.accumulators)
                return self.on_slot_finished(message, now_ms)
            case SlotWarning():
                self.gang.heard(message.slot, now_ms)
                self.job.out.log(logging.WARNING, message.text)
                return self
            case TaskFailed():
                return self.fail(message.failure, now_ms)
            case StateRead():
                self.gang.heard(message.slot, now_ms)
                self.job.out.add(StateReadDone(message.request_id, message.results, message.took_ms))
                return self
            case CollectChunk():
                return self._on_chunk(message, now_ms)
            case FaultToleranceMessage():
                return self.apply(self.job.model.on_message(message, now_ms), now_ms)
            case _:
                assert_never(message)

    def on_bad_message(self, failure: FailureInfo, now_ms: float) -> JobState:
        return self.fail(failure, now_ms)

    def _on_register(self, message: Register, now_ms: float) -> JobState:
        gang = self.gang
        admission = gang.register(message, now_ms)
        match admission:
            case Admission.ACCEPTED:
                return self.on_slot_registered(now_ms)
            case Admission.REPEATED:
                return self
            case Admission.RIVAL:
                # Spark runs a barrier stage again only after it has lost one of its tasks: the gang cannot be whole.
                self.job.out.refuse(message, f"slot {message.slot} of attempt {message.attempt} is taken")
                first = gang.members[message.slot].describe()
                text = f"Spark has lost a worker of the gang: it started a second one in the place of the {first}"
                return self.fail(FailureInfo(summary=text), now_ms)
            case Admission.UNKNOWN_SLOT:
                self.job.out.refuse(message, f"there is no slot {message.slot}: the job has {gang.num_slots}")
                return self
            case _:
                assert_never(admission)

    def on_slot_registered(self, now_ms: float) -> JobState:
        raise InternalError("one more slot in a gang that was complete")

    def on_slot_ready(self, slot: SlotIndex, now_ms: float) -> JobState:
        return self  # a repetition, or it comes too early: a slot is ready only after its deployment

    def on_end_of_data(self, message: TaskEndOfData, now_ms: float) -> JobState:
        self.gang.mark_end_of_data(message.vertex, message.subtask)
        return self

    def on_slot_finished(self, message: SlotFinished, now_ms: float) -> JobState:
        return self

    # ------------------------------------------------------------ results of execute_and_collect
    def _on_chunk(self, chunk: CollectChunk, now_ms: float) -> JobState:
        verdict = self.job.collected.take(chunk)
        match verdict:
            case ChunkVerdict.DELIVER:
                self.job.out.add(DeliverResults(chunk.operator_id, chunk.subtask, chunk.seq, chunk.payload))
                return self
            case ChunkVerdict.DUPLICATE:
                self.on_results_taken(chunk.operator_id, chunk.subtask, chunk.seq)
                return self
            case ChunkVerdict.GAP:
                expected = self.job.collected.expected(chunk.operator_id, chunk.subtask)
                text = (
                    f"subtask {chunk.subtask} of the collect sink sent chunk {chunk.seq} of its results when "
                    f"{expected} was due: results were lost on the way, please file a bug"
                )
                return self.fail(FailureInfo(summary=text, subtask=chunk.subtask, permanent=True), now_ms)
            case _:
                assert_never(verdict)

    def on_results_taken(self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int) -> None:
        for vertex in self.job.graph.vertices:
            if any(node.operator_id == operator_id for node in vertex.operators):
                ack = CollectAck(attempt=self.gang.attempt, operator_id=operator_id, subtask=subtask, seq=seq)
                self.job.out.send(self.gang, self.job.graph.slot_of(vertex.vertex_id, subtask), ack)
                return

    # ------------------------------------------------------------ what the model wants
    def on_outcome(self, outcome: Outcome, now_ms: float) -> JobState:
        match outcome:
            case TellSlots():
                for slot in outcome.slots:
                    self.job.out.send(self.gang, slot, outcome.message)
                return self
            case FailAttempt():
                return self.fail(outcome.failure, now_ms, resume=outcome.resume)
            case FinishAttempt():
                return self.finish()
            case _:
                return super().on_outcome(outcome, now_ms)

    def finish(self) -> JobState:
        raise InternalError(f"an attempt cannot finish in the state {type(self).__name__}")

    # ------------------------------------------------------------ the end of the attempt
    def fail(self, failure: FailureInfo, now_ms: float, resume: bool = False) -> Failing | Ending:
        """The attempt has failed: this is its first cause. `resume`: another one follows in any case, at once."""
        job, attempt = self.job, self.gang.attempt
        job.failures.record(attempt, failure, now_ms)
        job.tell_of(attempt, failure)
        job.show(JobStatus.FAILING)
        if resume:
            job.failures.decided("restart at once, to commit what the savepoint holds")
        decision = RestartAfter(0.0) if resume else job.decide(failure, now_ms)
        leave_by = self._send_away("another part of the job has failed", now_ms)
        return after_failure(job, self.gang, now_ms, leave_by, decision)

    def on_gang_exit(self, error: str | None, now_ms: float) -> JobState | Due:
        self.gang.exited = True
        failed = self.fail(lost_workers(self.gang.attempt, error), now_ms)
        return failed.on_gang_exit(None, now_ms)

    def on_engine_gone(self, error: str, now_ms: float) -> JobState | Due:
        self.gang.exited = self.job.engine_gone = True
        failed = self.fail(lost_engine(error), now_ms)
        return failed.on_gang_exit(None, now_ms)

    def on_cancel(self, now_ms: float) -> Ending:
        self.job.show(JobStatus.CANCELLING)
        return Ending(self.job, self.gang, JobStatus.CANCELED, self._send_away("the job was cancelled", now_ms))

    def on_deposed(self, reason: str, now_ms: float) -> Ending | Ended:
        self._send_away("another driver leads the job", now_ms)
        return suspend(self.job, self.gang, reason, now_ms)

    def _send_away(self, reason: str, now_ms: float) -> float:
        """Leave to all. When nobody has registered, nobody can be asked: Spark drops the gang at once. Returns until
        when they have time."""
        if self.gang.members:
            self.job.out.send_all(self.gang, Leave(attempt=self.gang.attempt, reason=reason))
        else:
            self.job.kill(self.gang)
        self.job.out.extend(self.job.model.on_attempt_over(now_ms))
        return now_ms + self.job.settings.leave_grace_ms

    def check_invariants(self) -> None:
        super().check_invariants()
        check_internal(not self.gang.exited and not self.gang.killed, "a gang works that is gone")


class WaitingForSlots(Working):
    """The gang is submitted; not all its slots have registered yet."""

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (JobStatus.RESTARTING,) if self.gang.attempt else (JobStatus.CREATED,)

    @property
    def _start_by(self) -> float:
        return self.gang.submitted_ms + self.job.settings.start_timeout_ms

    def next_deadline(self) -> float:
        due = super().next_deadline()
        return self._start_by if due is None else min(due, self._start_by)

    def on_tick(self, now_ms: float) -> JobState:
        if now_ms < self._start_by:
            return super().on_tick(now_ms)
        gang = self.gang
        missing = ", ".join(str(slot) for slot in gang.missing[:10])
        text = (
            f"only {len(gang.members)} of {gang.num_slots} workers came up within "
            f"{(now_ms - gang.submitted_ms) / 1000:g} s (missing: slot {missing}); Spark may have no free cores: check "
            "its page, or set tidegate.slot.start-timeout higher"
        )
        return self.fail(FailureInfo(summary=text), now_ms)

    def on_slot_registered(self, now_ms: float) -> JobState:
        return self._deploy(now_ms) if self.gang.complete and not self.job.model.undecided else self

    def on_storage_answered(self, now_ms: float) -> JobState:
        return self.on_slot_registered(now_ms)

    def _deploy(self, now_ms: float) -> Restoring | Failing | Ending:
        job, gang = self.job, self.gang
        point = job.model.restore_point()
        restores: dict[SlotIndex, bytes] = {}
        if point is not None:
            try:
                assigned = job.assigner.assign(point)
            except SnapshotError as error:
                return self.fail(FailureInfo(summary=str(error), permanent=True), now_ms)
            restores = {slot: msgspec.msgpack.encode(restore) for slot, restore in assigned.items()}
            job.out.log(logging.INFO, f"attempt {gang.attempt} starts from checkpoint {point.checkpoint_id}")
        job.restored = point
        job.discovery.begin(gang.attempt, point)
        job.out.extend(job.model.on_deployed(gang.attempt, point, now_ms))
        plan, addresses = job.plan_for(gang.attempt), msgspec.msgpack.encode(gang.addresses)
        for slot, member in sorted(gang.members.items()):
            deploy = Deploy(
                attempt=gang.attempt,
                addresses=addresses,
                plan=plan,
                restore=restores.get(slot, b""),
                heard_ms=member.heartbeat_ms,
            )
            job.out.send(gang, slot, deploy)
        return Restoring(job, self.attempt, now_ms)

    def check_invariants(self) -> None:
        super().check_invariants()
        waits = not self.gang.complete or self.job.model.undecided
        check_internal(waits, "all slots are here, and nothing is deployed")


class Restoring(Working):
    """Deployed; not all slots are ready yet. Tasks that are restored at the end of their data may say so already. A
    storage that hangs raises no error, and the workers' heartbeats go on: only the time limit ends this state then."""

    def __init__(self, job: Job, attempt: Attempt, now_ms: float) -> None:
        super().__init__(job, attempt)
        self._deployed_ms = now_ms

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (JobStatus.RESTARTING,) if self.gang.attempt else (JobStatus.CREATED,)

    @property
    def _ready_by(self) -> float:
        return self._deployed_ms + self.job.settings.restore_timeout_ms

    def next_deadline(self) -> float:
        due = super().next_deadline()
        return self._ready_by if due is None else min(due, self._ready_by)

    def on_tick(self, now_ms: float) -> JobState:
        if now_ms < self._ready_by:
            return super().on_tick(now_ms)
        gang, point = self.gang, self.job.restored
        late = [gang.members[slot] for slot in sorted(gang.members) if slot not in gang.ready]
        doing = "opened their functions" if point is None else f"restored checkpoint {point.checkpoint_id}"
        text = (
            f"{len(late)} of {gang.num_slots} workers have not {doing} within "
            f"{(now_ms - self._deployed_ms) / 1000:g} s ({late[0].describe()}{', …' if len(late) > 1 else ''}); the "
            "storage may hang: their log names calls that have not returned; if they only need longer, set "
            "tidegate.slot.restore-timeout higher"
        )
        return self.fail(FailureInfo(summary=text), now_ms)

    def on_slot_ready(self, slot: SlotIndex, now_ms: float) -> JobState:
        if not self.gang.mark_ready(slot):
            return self
        job = self.job
        job.show(JobStatus.RUNNING)
        job.policy.on_running(now_ms)
        if job.model.stopped:
            return finishing(job, self.attempt)
        job.out.send_all(self.gang, Start(attempt=self.gang.attempt))
        running: JobState = Running(job, self.attempt)
        running = running.apply(job.discovery.start(now_ms), now_ms)
        running = running.apply(job.model.on_attempt_running(self.gang.attempt, now_ms), now_ms)
        if self.gang.end_of_data:
            running = running.apply(job.model.on_end_of_data(self.gang.all_at_end, now_ms), now_ms)
        return running

    def check_invariants(self) -> None:
        super().check_invariants()
        check_internal(self.gang.complete and not self.gang.all_ready, "all slots are ready, and nothing is started")


class Running(Working):
    """All tasks were told to start."""

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (JobStatus.RUNNING,)

    def next_deadline(self) -> float | None:
        due = (super().next_deadline(), self.job.discovery.next_deadline())
        return min((time for time in due if time is not None), default=None)

    def on_tick(self, now_ms: float) -> JobState:
        state = super().on_tick(now_ms)
        return state if state is not self else self.apply(self.job.discovery.on_tick(now_ms), now_ms)

    def on_discovery(self, operator_id: OperatorId, found: FoundSplits | FailureInfo, now_ms: float) -> JobState:
        if isinstance(found, FailureInfo):
            return self.fail(found, now_ms)
        return self.apply(self.job.discovery.on_found(operator_id, found, now_ms), now_ms)

    def on_end_of_data(self, message: TaskEndOfData, now_ms: float) -> JobState:
        if not self.gang.mark_end_of_data(message.vertex, message.subtask):
            return self
        return self.apply(self.job.model.on_end_of_data(self.gang.all_at_end, now_ms), now_ms)

    def on_read_state(self, request_id: int, slot: SlotIndex, lookups: tuple[StateLookup, ...]) -> None:
        message = ReadState(attempt=self.gang.attempt, request_id=request_id, lookups=lookups)
        self.job.out.send(self.gang, slot, message)

    def finish(self) -> Finishing:
        return finishing(self.job, self.attempt)

    def check_invariants(self) -> None:
        super().check_invariants()
        check_internal(self.gang.all_ready, "started before all slots were ready")


def finishing(job: Job, attempt: Attempt) -> Finishing:
    job.out.send_all(attempt.gang, Finish(attempt=attempt.gang.attempt))
    return Finishing(job, attempt)


class Finishing(Working):
    """Nothing is left to process and everything is durable; the slots commit and close."""

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        return (JobStatus.RUNNING,)

    def on_slot_finished(self, message: SlotFinished, now_ms: float) -> JobState:
        if not self.gang.mark_finished(message.slot, message.accumulators):
            return self
        return Ending(self.job, self.gang, JobStatus.FINISHED, self._send_away("the job is finished", now_ms))

    def check_invariants(self) -> None:
        super().check_invariants()
        at_end = self.gang.all_at_end or self.job.model.stopped
        check_internal(at_end, "finishing before all tasks were at end of data")
