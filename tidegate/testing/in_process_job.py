"""A job in one process and one thread: the real JobMaster and the real slots, on an in-memory network and a clock that
moves only when it is told to. No Spark, no sockets, no threads.

::

    with InProcessJob.collecting(stream) as job:
        job.run()                      # until nothing moves any more without time passing
        job.advance(1000)              # a second passes, with whatever becomes due
        job.kill_worker()              # the restart strategy and the last checkpoint take over
        job.run_to_end()               # let time pass until the job has ended
        job.results                    # what came out

Everything else that happened can be looked at too: `instructions`, `received`, `frames`, `logged`.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import InternalError, SnapshotError, check_internal
from tidegate.common.ids import AttemptNumber, ChannelAddress, SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream.interception import intercepted
from tidegate.datastream.stream import DataStream
from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.splits import make_splits
from tidegate.jobmanager.carrier import InstructionCarrier
from tidegate.jobmanager.committed_state import CommittedState
from tidegate.jobmanager.discovery_work import DiscoveryWork
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.jobmanager.live_state import LiveStates, StateHandle
from tidegate.jobmanager.preparation import PreparedJob, prepare_job
from tidegate.jobmanager.runtime import Submission
from tidegate.jobmanager.state_queries import StateQueries
from tidegate.jobmanager.storage_work import write_metadata
from tidegate.network.wire import CREDIT, Frame
from tidegate.protocol.codec import decode_from_master, encode
from tidegate.protocol.instructions import (
    CancelGang,
    CheckpointRequestDone,
    DeleteClaimed,
    DeleteOrphans,
    DeleteSavepoint,
    DeleteState,
    DeliverResults,
    DiscoverSplits,
    Instruction,
    JobEnded,
    Log,
    RecordSnapshot,
    Send,
    StateReadDone,
    StatusChanged,
    SubmitGang,
    WriteMetadata,
)
from tidegate.protocol.messages import Message, Register, SlotToMaster, TriggerCheckpoint
from tidegate.storage.cleanup import Deletion
from tidegate.storage.filesystem import delete_claimed
from tidegate.storage.leases.keeper import DirectoryTakenError
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.testing.clock import ManualClock
from tidegate.testing.fault_plan import FaultPlan
from tidegate.testing.faults import CutConnections, DriverFault, Fault, FreezeWorker
from tidegate.testing.in_process_slot import InProcessSlot

M = TypeVar("M")


def graph_of(env: StreamExecutionEnvironment) -> JobGraph:
    """What `env.execute()` would submit."""
    return make_splits(_without_splits(env))


def _without_splits(env: StreamExecutionEnvironment) -> JobGraph:
    name = options.read(env._configuration, options.PIPELINE_NAME) or "job"
    return build_job_graph(env._operators, env._graph_settings(), name, env._job_id()).job_graph


class InProcessJob(InstructionCarrier):
    """See the module's docstring. The workers of the current attempt are in `slots`; `faults` happen on the way, each
    once."""

    def __init__(
        self, env: StreamExecutionEnvironment, faults: Sequence[Fault] = (), plan: FaultPlan | None = None
    ) -> None:
        """`plan`: instead of `faults`, when other drivers of the job came before or will follow."""
        self.faults = FaultPlan(faults, ManualClock()) if plan is None else plan
        self.clock = self.faults.clock
        alone = [fault for fault in faults if isinstance(fault, DriverFault)]
        if alone:
            raise ValueError(f"{alone[0]}: only assert_same_under_faults starts another driver")
        configuration = Configuration(env._configuration)
        if not configuration.contains_key(options.CHECK_MUTATIONS.key):
            configuration.set(options.CHECK_MUTATIONS, True)
        submission = intercepted(Submission(_without_splits(env), configuration))
        self.graph = make_splits(submission.graph)
        self.faults.check(self.graph.num_slots)
        self.prepared: PreparedJob = prepare_job(self.graph, submission.configuration, instrument=submission.instrument)
        self.master = self.prepared.master
        self._discovery = DiscoveryWork(self.graph)
        self.slots: list[InProcessSlot] = []
        self.to_master: deque[Message] = deque()
        self.instructions: list[Instruction] = []  # all so far
        self.received: list[Message] = []  # all messages to the master so far
        self.frames: list[Frame] = []  # all that went from slot to slot
        self.traces: list[str] = []
        self.problems: list[str] = []  # of deletions
        self.results: list[Any] = []
        self.ended: JobEnded | None = None
        self.error: BaseException | None = None  # the first failure of the job's own code, as it was raised
        self._exited: set[AttemptNumber] = set()
        self._loss: str | None = None  # how the current gang was lost
        self._late_metadata: list[tuple[float, WriteMetadata, str | None]] = []  # written, and (when) it is heard of
        self._requests = 0
        publisher = JobPublisher(self.graph, "STREAMING", self.graph.num_slots, self.clock.now, configuration)
        self._published = MasterPublisher(publisher, self.graph, self.master)
        self._queries = StateQueries(self.master, self._serve)
        source = self.prepared.storage.worker_storage().source
        committed = CommittedState(
            lambda: self.master.fault_tolerance.restore_point(),
            source,
            self.clock.now_ms,
            publisher.queries.committed_max_read,
            self.prepared.shown,
        )
        self._states = LiveStates(self.prepared.graph, publisher, self._queries, committed)

    @staticmethod
    def collecting(stream: DataStream, faults: Sequence[Fault] = ()) -> InProcessJob:
        """The job that makes this stream; its records are in `results`."""
        stream.sink_to(CollectSink())
        return InProcessJob(stream.get_execution_environment(), faults)

    def __enter__(self) -> InProcessJob:
        self.carry_out(self.master.start(self.clock.now))
        return self

    def __exit__(self, *exception: object) -> None:
        for slot in self.slots:
            if slot.runtime is not None:
                slot.runtime.close()
        self._discovery.close()
        self._states.close()
        self.prepared.discard()

    # ------------------------------------------------------------ running
    def run(self, rounds: int = 10_000) -> InProcessJob:
        """Until nothing moves any more without time passing."""
        for _ in range(rounds):
            moved = bool(self.to_master)
            while self.to_master and self.ended is None:
                self._take_message()
            for slot in self.slots:
                moved = slot.step() or moved
            moved = self._hear_late() or moved
            moved = self._strike() or moved
            self._report_exit()
            if not moved and not self.to_master:
                return self
        return self

    def _take_message(self) -> None:
        message = self.to_master.popleft()
        self.received.append(message)
        self.carry_out(self.master.on_message(cast(SlotToMaster, message), self.clock.now))

    def step(self, rounds: int = 1) -> InProcessJob:
        """A few rounds only, to look at the job in the middle of its work."""
        return self.run(rounds)

    def advance(self, ms: float) -> InProcessJob:
        """Let time pass, stopping wherever somebody has something to do."""
        until = self.clock.now + ms
        self.run()
        for _ in range(100_000):
            if self.ended is not None:
                return self
            due = [self.master.next_deadline()]
            due += [slot.next_deadline() for slot in self.slots]
            due += [self.faults.next_deadline(), *(when for when, _, _ in self._late_metadata)]
            following = min((t for t in due if t is not None), default=until)
            self.clock.now = min(until, max(following, self.clock.now))
            for slot in self.slots:
                if slot.working:
                    slot.send_to_master(slot.heartbeat())
            self.run()
            self.carry_out(self.master.on_tick(self.clock.now))
            self.run()
            if self.clock.now >= until:
                return self
            if following <= self.clock.now - 1:
                self.clock.now += 0.01  # a deadline that nobody could meet yet
        raise AssertionError("the job never comes to rest")

    def run_to_end(self, within_ms: float = 60_000) -> JobStatus:
        for _ in range(int(within_ms // 50)):
            self.advance(50)
            if self.ended is not None:
                return self.ended.status
        raise AssertionError(f"the job has not ended within {within_ms} ms: {self.master.status}")

    def kill_worker(self, slot: int = 0) -> InProcessJob:
        """As SIGKILL of a worker process: Spark ends the gang, the restart strategy decides what follows."""
        self._loss = f"worker {slot} was killed by the test"
        for one in self.slots:
            one.leave()
        return self.run()

    def checkpoint(self) -> InProcessJob:
        """Take a checkpoint now. Raises when it does not complete."""
        self._requests += 1
        number = -self._requests
        self.do(lambda now: self.master.on_checkpoint_request(number, False, now))
        self.advance(1.0)
        answer = self.answer(number)
        if answer is None or answer.error is not None:
            raise AssertionError(f"the checkpoint has failed: {'it hangs' if answer is None else answer.error}")
        return self

    def cancel(self) -> InProcessJob:
        self.carry_out(self.master.on_cancel(self.clock.now))
        return self.run()

    def savepoint(self, target: Path | str, request_id: int = 1) -> InProcessJob:
        return self.do(lambda now: self.master.on_checkpoint_request(request_id, True, now, str(target)))

    def stop(self, target: Path | str, drain: bool = False, request_id: int = 1) -> InProcessJob:
        return self.do(lambda now: self.master.on_stop_request(request_id, drain, str(target), now))

    def do(self, event: Callable[[float], list[Instruction]]) -> InProcessJob:
        self.carry_out(event(self.clock.now))
        return self

    def answer(self, request_id: int = 1) -> CheckpointRequestDone | None:
        """To a request, when it is there."""
        return next((d for d in self.of(CheckpointRequestDone) if d.request_id == request_id), None)

    def get_state(self, operator: str, state: str) -> StateHandle:
        """As `JobClient.get_state`: a keyed state, to look keys up in."""
        self._published.publish(self.clock.now)
        return self._states.handle(operator, state)

    def _serve(self, event: Callable[[float], list[Instruction]]) -> None:
        """Somebody looks at state: the slots answer at once, and nothing else moves."""
        self.do(event)
        while self.to_master and self.ended is None:
            self._take_message()

    def failed(self, error: Exception) -> None:
        """For the slots."""
        self.error = self.error or (error.cause if isinstance(error, OperatorFailure) else error)

    # ------------------------------------------------------------ what has happened
    @property
    def restarts(self) -> int:
        return int(self.master.attempt)

    def of(self, kind: type[M]) -> list[M]:
        """Instructions of one kind, in order."""
        return [i for i in self.instructions if isinstance(i, kind)]

    def told(self, kind: type[M], slot: int = 0) -> list[M]:
        """Messages of one kind that the master has sent to a slot."""
        return [i.message for i in self.of(Send) if i.slot == slot and isinstance(i.message, kind)]

    def heard(self, kind: type[M]) -> list[M]:
        """Messages of one kind that the master has got."""
        return [m for m in self.received if isinstance(m, kind)]

    def data_frames(self, address: ChannelAddress | None = None) -> list[Frame]:
        """Batches and control elements that went from slot to slot."""
        return [f for f in self.frames if f.kind != CREDIT and address in (None, f.address)]

    @property
    def completed(self) -> list[int]:
        """Checkpoints of the job, oldest first, that are complete and kept."""
        return [c.checkpoint_id for c in self.coordinator.store.checkpoints]

    @property
    def coordinator(self) -> CheckpointCoordinator:
        model = self.master.fault_tolerance
        check_internal(isinstance(model, BarrierCheckpoints), "the job has no checkpoints")
        return cast(BarrierCheckpoints, model).coordinator

    @property
    def logged(self) -> str:
        return "\n".join(entry.text for entry in self.of(Log))

    @property
    def failure(self) -> str:
        return self.master.failures[-1].failure.summary

    # ------------------------------------------------------------ the host
    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        self.master.check_invariants()
        for instruction in instructions:
            self.instructions.append(instruction)
            super().carry_out([instruction])

    def submit_gang(self, instruction: SubmitGang) -> None:
        attempt = instruction.attempt
        self.slots = [InProcessSlot(self, attempt, SlotIndex(i)) for i in range(instruction.num_slots)]
        for slot in self.slots:
            register = Register(
                attempt=attempt,
                slot=slot.slot,
                data_address=f"slot {slot.slot}",
                host="here",
                pid=100 + slot.slot,
                incarnation=slot.incarnation,
            )
            slot.send_to_master(register)

    def cancel_gang(self, instruction: CancelGang) -> None:
        for slot in self.slots:
            slot.leave()

    def send(self, instruction: Send) -> None:
        if isinstance(instruction.message, TriggerCheckpoint):
            self.faults.checkpoint_triggered(instruction.message.barrier.checkpoint_id)
        found = self.slots[instruction.slot]
        if found.incarnation == instruction.incarnation:
            found.on_message(decode_from_master(encode(instruction.message)))

    def write_metadata(self, instruction: WriteMetadata) -> None:
        error: str | None = None
        try:
            self.faults.bad_times.metadata_written()
            write_metadata(self.prepared.storage, instruction)
        except Exception as failure:
            error = str(failure)
            if isinstance(failure, DirectoryTakenError):
                self.carry_out(self.master.on_directory_taken(error, self.clock.now))
        until = self.faults.bad_times.take_delay()
        if until is None:
            self._metadata_written(instruction, error)
        else:
            self._late_metadata.append((until, instruction, error))

    def _metadata_written(self, instruction: WriteMetadata, error: str | None) -> None:
        answer = self.master.on_metadata_written
        self.carry_out(answer(instruction.attempt, instruction.metadata.checkpoint_id, error, self.clock.now))

    def _hear_late(self) -> bool:
        """Of the metadata whose writing has taken its time. False: of none."""
        due = [one for one in self._late_metadata if one[0] <= self.clock.now]
        self._late_metadata = [one for one in self._late_metadata if one[0] > self.clock.now]
        for _, instruction, error in due:
            self._metadata_written(instruction, error)
        return bool(due)

    def record_snapshot(self, instruction: RecordSnapshot) -> None:
        raise InternalError("a job in one process has no high availability")

    def delete_savepoint(self, instruction: DeleteSavepoint) -> None:
        try:
            self.prepared.storage.worker_storage().savepoint_files(instruction.target).delete_directory("")
        except SnapshotError as error:
            self.problems.append(str(error))

    def delete_state(self, instruction: DeleteState) -> None:
        self.problems += self.prepared.storage.delete(Deletion(list(instruction.files), list(instruction.directories)))

    def delete_orphans(self, instruction: DeleteOrphans) -> None:
        self.problems += self.prepared.storage.delete_orphans()

    def delete_claimed(self, instruction: DeleteClaimed) -> None:
        self.problems += delete_claimed(
            instruction.root, instruction.checkpoint_id, self.clock.now, options=self.prepared.storage.options
        )

    def request_done(self, instruction: CheckpointRequestDone) -> None:
        """See `answer`."""

    def deliver_results(self, instruction: DeliverResults) -> None:
        self.results += pickle.loads(instruction.payload)
        taken = self.master.on_results_taken
        self.carry_out(taken(instruction.operator_id, instruction.subtask, instruction.seq, self.clock.now))

    def discover_splits(self, instruction: DiscoverSplits) -> None:
        found = self._discovery.look(instruction)
        answer = self.master.on_splits_discovered
        self.carry_out(answer(instruction.attempt, instruction.operator_id, found, self.clock.now))

    def state_read_done(self, instruction: StateReadDone) -> None:
        self._queries.done(instruction, self.clock.now)

    def status_changed(self, instruction: StatusChanged) -> None:
        self._queries.status_changed(instruction.status)

    def job_ended(self, instruction: JobEnded) -> None:
        self.ended = instruction

    def log(self, instruction: Log) -> None:
        """See `logged`."""

    def _report_exit(self) -> None:
        attempt = self.master.attempt
        if self.slots and all(s.left for s in self.slots) and attempt not in self._exited:
            self._exited.add(attempt)
            loss, self._loss = self._loss, None
            self.carry_out(self.master.on_gang_exit(attempt, loss, self.clock.now))

    def _strike(self) -> bool:
        """Let what is due befall the workers. False: nothing is."""
        strike = self.faults.take_strike(len(self.slots)) if self._runs else None
        if strike is None:
            return False
        struck = self.slots[strike.slot]
        if isinstance(strike, FreezeWorker):
            struck.frozen_until = self.clock.now + strike.for_ms
        elif isinstance(strike, CutConnections):
            for peer in self.slots:
                if peer is not struck:
                    peer.cut(struck.slot)
                    struck.cut(peer.slot)
        else:
            self._loss = f"worker {strike.slot} was killed by the fault plan"
            for one in self.slots:
                one.leave()
        return True

    @property
    def _runs(self) -> bool:
        return self.master.status is JobStatus.RUNNING
