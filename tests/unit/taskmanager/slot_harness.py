"""A job in one process and one thread: the real JobMaster and the real SlotRuntimes, on an in-memory network and a
clock that only moves when it is told to. No Spark, no sockets, no threads.

Made from the public API, so that what a configuration key does can be shown from the key to its effect::

    with InProcessJob(env) as job:
        job.run()                      # until nothing moves any more
        job.advance(1000)              # time passes, with heartbeats and whatever becomes due
        job.results                    # of a CollectSink; job.sent, job.frames, job.instructions, ...

`job.run_to_end()` lets time pass until the job has ended.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import msgspec

from tests.coroutines import Coroutines
from tidegate.common.configuration import Configuration
from tidegate.common.errors import SnapshotError
from tidegate.common.ids import AttemptNumber, ChannelAddress, SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.splits import make_splits
from tidegate.jobmanager.carrier import InstructionCarrier
from tidegate.jobmanager.preparation import PreparedJob, prepare_job
from tidegate.network.wire import CREDIT, Frame
from tidegate.protocol.instructions import (
    CancelGang,
    CheckpointRequestDone,
    DeleteClaimed,
    DeleteOrphans,
    DeleteSavepoint,
    DeleteState,
    DeliverResults,
    Instruction,
    JobEnded,
    Log,
    Send,
    StatusChanged,
    SubmitGang,
    WriteMetadata,
)
from tidegate.protocol.messages import (
    Deploy,
    Leave,
    MasterToSlot,
    Message,
    Register,
    SlotHeartbeat,
    TaskFailed,
    decode_from_master,
    decode_from_slot,
    encode,
)
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.storage.cleanup import Deletion
from tidegate.storage.filesystem import delete_claimed
from tidegate.storage.handles import SlotRestore
from tidegate.taskmanager.deployment import SlotPlan
from tidegate.taskmanager.failure import describe
from tidegate.taskmanager.slot import SlotRuntime

M = TypeVar("M")
EPOCH = 1_000_000.0


class ManualClock:
    def __init__(self) -> None:
        self.now = EPOCH

    def now_ms(self) -> float:
        return self.now


def graph_of(env: StreamExecutionEnvironment) -> JobGraph:
    """What `env.execute()` would submit."""
    name = env._configuration.get_string("pipeline.name", "job")
    return make_splits(build_job_graph(env._operators, env._graph_settings(), name, env._job_id()).job_graph)


class HarnessSlot:
    """Implements `taskmanager.slot_host.SlotHost` and its transport."""

    def __init__(self, job: InProcessJob, attempt: AttemptNumber, slot: SlotIndex) -> None:
        self.clock = job.clock
        self.runtime: SlotRuntime | None = None
        self.attempt = attempt
        self.slot = slot
        self.incarnation = f"{attempt}/{slot}"
        self.working = True  # neither failed nor left
        self.left = False  # told to leave, and did; or killed
        self.muted = False  # hears and says nothing: as if the process was frozen
        self.held = False  # processes nothing: as if user code did not return
        self.coroutines = Coroutines()
        self._job = job
        self._mail: deque[MasterToSlot] = deque()  # that came while it was held
        self._inbox: deque[Frame] = deque()
        self._async: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()

    # ------------------------------------------------------------ SlotHost
    @property
    def transport(self) -> HarnessSlot:
        return self

    def send(self, to: SlotIndex, frame: Frame) -> None:
        self._job.frames.append(frame)
        self._job.slots[to]._inbox.append(frame)

    def receive(self) -> list[Frame]:
        found = list(self._inbox)
        self._inbox.clear()
        return found

    def send_to_master(self, message: Message) -> None:
        if not self.muted:
            self._job.to_master.append(decode_from_slot(encode(message)))

    def run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._async.append((work, done))

    def run_coroutine(
        self, call: Callable[[], Awaitable[Any]], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        return self.coroutines.start(call, done, self.clock.now)

    def heartbeat(self) -> SlotHeartbeat:
        if self.runtime is None:
            return SlotHeartbeat(attempt=self.attempt, slot=self.slot)
        metrics, accumulators = self.runtime.metrics, self.runtime.report.accumulators
        return SlotHeartbeat(attempt=self.attempt, slot=self.slot, metrics=metrics, accumulators=accumulators)

    def trace(self, text: str) -> None:
        self._job.traces.append(text)

    # ------------------------------------------------------------ driven by the job
    def on_message(self, message: MasterToSlot) -> None:
        if self.muted or self.left:
            return
        if self.held:
            self._mail.append(message)
        elif isinstance(message, Leave):
            self.leave()
        elif not self.working:
            return
        elif isinstance(message, Deploy):
            self._guarded(lambda: self._deploy(message))
        elif self.runtime is not None:
            self._guarded(lambda: self._runtime().on_message(message))

    def leave(self) -> None:
        self.working, self.left = False, True
        if self.runtime is not None:
            self.runtime.close()

    def step(self) -> bool:
        if not self.working or self.runtime is None or self.held:
            return False
        while self._mail:
            self.on_message(self._mail.popleft())
        return self._guarded(self._round) if self.working else True

    def _round(self) -> bool:
        worked = False
        while self._async:
            work, done = self._async.popleft()
            result, error = None, None
            try:
                result = work()
            except Exception as failure:
                error = failure
            done(result, error)
            worked = True
        worked = self.coroutines.run(self.clock.now) or worked
        for frame in self.receive():
            self._runtime().on_frame(frame)
            worked = True
        worked = self._runtime().step() or worked
        self._runtime().check_invariants()
        return worked

    def _deploy(self, message: Deploy) -> None:
        plan: SlotPlan = cloudpickle.loads(message.plan)  # every slot has objects of its own
        restore = msgspec.msgpack.decode(message.restore, type=SlotRestore) if message.restore else None
        self.runtime = SlotRuntime(self.slot, message.attempt, plan, self)
        self.runtime.deploy(restore)

    def _runtime(self) -> SlotRuntime:
        assert self.runtime is not None
        return self.runtime

    def _guarded(self, call: Callable[[], Any]) -> bool:
        try:
            return bool(call())
        except Exception as error:
            self.working = False
            self.send_to_master(TaskFailed(attempt=self.attempt, slot=self.slot, failure=describe(error)))
            return True


class InProcessJob(InstructionCarrier):
    """See the module's docstring. `gang` of the current attempt is in `slots`."""

    def __init__(self, env: StreamExecutionEnvironment) -> None:
        self.graph = graph_of(env)
        self.clock = ManualClock()
        self.prepared: PreparedJob = prepare_job(self.graph, Configuration(env._configuration))
        self.master = self.prepared.master
        self.slots: list[HarnessSlot] = []
        self.to_master: deque[Message] = deque()
        self.instructions: list[Instruction] = []  # all so far
        self.received: list[Message] = []  # all messages to the master so far
        self.frames: list[Frame] = []  # all that went from slot to slot
        self.traces: list[str] = []
        self.problems: list[str] = []  # of deletions
        self.results: list[Any] = []
        self.ended: JobEnded | None = None
        self._exited: set[AttemptNumber] = set()

    def __enter__(self) -> InProcessJob:
        self.carry_out(self.master.start(self.clock.now))
        return self

    def __exit__(self, *exception: object) -> None:
        for slot in self.slots:
            if slot.runtime is not None:
                slot.runtime.close()
        self.prepared.discard()

    # ------------------------------------------------------------ running
    def run(self, rounds: int = 10_000) -> InProcessJob:
        """Until nothing moves any more without time passing."""
        for _ in range(rounds):
            moved = bool(self.to_master)
            while self.to_master and self.ended is None:
                message = self.to_master.popleft()
                self.received.append(message)
                self.carry_out(self.master.on_message(message, self.clock.now))  # type: ignore[arg-type]
            for slot in self.slots:
                moved = slot.step() or moved
            self._report_exit()
            if not moved and not self.to_master:
                return self
        return self

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
            due += [s.runtime.next_deadline() for s in self.slots if s.runtime is not None and s.working and not s.held]
            due += [s.coroutines.next_deadline() for s in self.slots if s.working and not s.held]
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

    # ------------------------------------------------------------ what has happened
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
        assert isinstance(model, BarrierCheckpoints)
        return model.coordinator

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
        self.slots = [HarnessSlot(self, attempt, SlotIndex(i)) for i in range(instruction.num_slots)]
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
        found = self.slots[instruction.slot]
        if found.incarnation == instruction.incarnation:
            found.on_message(decode_from_master(encode(instruction.message)))

    def write_metadata(self, instruction: WriteMetadata) -> None:
        storage, metadata = self.prepared.storage, instruction.metadata
        error: str | None = None
        try:
            if instruction.target:
                write_savepoint_metadata(storage.worker_storage().savepoint_files(instruction.target), metadata)
            else:
                storage.write_metadata(metadata)
        except Exception as failure:
            error = str(failure)
        answer = self.master.on_metadata_written
        self.carry_out(answer(instruction.attempt, metadata.checkpoint_id, error, self.clock.now))

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
        self.problems += delete_claimed(instruction.root, instruction.checkpoint_id, self.clock.now)

    def request_done(self, instruction: CheckpointRequestDone) -> None:
        """See `answer`."""

    def deliver_results(self, instruction: DeliverResults) -> None:
        self.results += pickle.loads(instruction.payload)
        taken = self.master.on_results_taken
        self.carry_out(taken(instruction.operator_id, instruction.subtask, instruction.seq, self.clock.now))

    def status_changed(self, instruction: StatusChanged) -> None:
        """Among `instructions`."""

    def job_ended(self, instruction: JobEnded) -> None:
        self.ended = instruction

    def log(self, instruction: Log) -> None:
        """See `logged`."""

    def _report_exit(self) -> None:
        attempt = self.master.attempt
        if self.slots and all(s.left for s in self.slots) and attempt not in self._exited:
            self._exited.add(attempt)
            self.carry_out(self.master.on_gang_exit(attempt, None, self.clock.now))
