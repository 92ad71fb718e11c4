"""A JobMaster with its coordinator among scripted slots, on a simulated clock, with random delays and faults.

Nothing is computed here; what is checked is the protocol: the job always ends, ids grow, what is restored exists and
was complete, Finish comes only after a checkpoint of the end, and no file is lost or left behind.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from jobmanager_kit import EPOCH, KEYED, ROOT, STATUS_STEPS, graph, increment, keyed_state, list_state, operator

from tidegate.common.ids import AttemptNumber, CheckpointId, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings, Retention
from tidegate.jobmanager.carrier import InstructionCarrier
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.leadership.fence import without_effect
from tidegate.jobmanager.restart_strategies import FailureRate, FixedDelay, RestartStrategy
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
from tidegate.protocol.messages import (
    AckCheckpoint,
    DeclineCheckpoint,
    DeclineReason,
    Deploy,
    FailureInfo,
    Finish,
    Leave,
    NotifyCheckpointComplete,
    Register,
    SlotFinished,
    SlotHeartbeat,
    SlotReady,
    SlotToMaster,
    Start,
    TaskEndOfData,
    TaskFailed,
    TriggerCheckpoint,
)
from tidegate.storage.cleanup import checkpoint_files
from tidegate.storage.handles import (
    CheckpointMetadata,
    FileRange,
    KeyedIncrement,
    OperatorListState,
    SlotRestore,
    TaskSnapshot,
)

Task = tuple[VertexId, SubtaskIndex]


def _any_ms(rng: random.Random) -> float:
    """From one to ten thousand, every order of magnitude as likely as the others."""
    return float(10 ** rng.uniform(0, 4))


@dataclass
class Slot:
    attempt: AttemptNumber
    index: SlotIndex
    incarnation: str
    alive: bool = True
    frozen: bool = False  # silent, and deaf to Leave
    to_master_at: float = 0.0  # messages of one connection keep their order
    from_master_at: float = 0.0
    confirmed: dict[Task, list[KeyedIncrement]] = field(default_factory=dict)  # chain to build on
    unconfirmed: dict[tuple[Task, CheckpointId], list[KeyedIncrement]] = field(default_factory=dict)
    at_end: set[Task] = field(default_factory=set)


class World(InstructionCarrier):
    """`run()` plays one schedule and raises when something is wrong."""

    def __init__(self, seed: int, led: bool = False) -> None:
        """`led`: with high availability. Then the record decides which checkpoints are complete."""
        self.rng = random.Random(seed)
        rng = self.rng
        self.graph = graph(parallelism=rng.randint(1, 3), sources=rng.randint(1, 2))
        self.fault_rate = rng.choice([0.0, 0.02, 0.1])
        self.settings = CheckpointSettings(
            interval_ms=rng.choice([20, 100, 400]),
            timeout_ms=rng.choice([60, 500, 5_000]),
            min_pause_ms=rng.choice([0, 0, 50]),
            max_concurrent=rng.randint(1, 3),
            tolerable_failures=rng.choice([0, 2, 10]),
            num_retained=rng.randint(1, 3),
            retention=rng.choice(list(Retention)),
        )
        restart: RestartStrategy = rng.choice(
            [FixedDelay(rng.randint(0, 6), rng.choice([0, _any_ms(rng)])), FailureRate(5, 2_000, _any_ms(rng))]
        )
        self.led = led
        self.deposed = False
        self.recording_at = 0.0  # one after the other
        self.undecided_restarts = 0  # attempts that had to wait for the record
        self.coordinator = CheckpointCoordinator(self.graph, self.settings, ROOT, epoch=int(led))
        job_settings = JobSettings("world", 100, 800, 2_000, leave_grace_ms=_any_ms(rng))
        self.master = JobMaster(
            self.graph, job_settings, restart, BarrierCheckpoints(self.coordinator), lambda attempt: b""
        )
        self.now = EPOCH
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.slots: dict[str, Slot] = {}  # incarnation -> slot
        self.exited: set[AttemptNumber] = set()
        self.disk: set[str] = set()
        self.written: dict[CheckpointId, CheckpointMetadata] = {}
        self.completed: list[CheckpointId] = []  # that slots were told of; led: those in the record
        self.corrupt: set[CheckpointId] = set()
        self.triggered: list[CheckpointId] = []
        self.all_at_end_before: CheckpointId | None = None  # next id when the last task came to its end
        self.ended: JobEnded | None = None
        self.statuses: list[JobStatus] = []
        self.names = itertools.count()
        self.work_ms = rng.choice([50, 500, 2_000])

    # ------------------------------------------------------------ time
    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), action))

    def delay(self) -> float:
        return self.rng.choice([0.0, self.rng.uniform(0, 3), self.rng.uniform(0, 40)])

    def fault(self) -> bool:
        """Faults come in the first seconds only: after that every job must come to its end."""
        return self.rng.random() < self.fault_rate and self.now < EPOCH + 20_000

    def run(self) -> None:
        if self.rng.random() < 0.2:
            self.later(self.rng.uniform(0, 3_000), lambda: self.carry_out(self.master.on_cancel(self.now)))
        if self.led and self.rng.random() < 0.2:
            self.later(self.rng.uniform(0, 3_000), self.depose)
        self.carry_out(self.master.start(self.now))
        for _ in range(20_000):
            if self.ended is not None and not self.events:
                break
            due = self.master.next_deadline()
            if self.events and (due is None or self.events[0][0] <= due):
                self.now, _, action = heapq.heappop(self.events)
                action()
            else:
                assert due is not None, f"the job hangs in {self.master.status}"
                self.now = max(self.now, due)
                self.carry_out(self.master.on_tick(self.now))
        self.check_end()

    # ------------------------------------------------------------ the host
    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        self.master.check_invariants()
        super().carry_out([i for i in instructions if not self.deposed or without_effect(i)])
        if self.led and self.completed and self.ended is None:
            gone = checkpoint_files(self.written[self.completed[-1]]) - self.disk
            assert not gone, f"the record names checkpoint {self.completed[-1]}, which lacks {gone}"

    def depose(self) -> None:
        if self.ended is None:
            self.deposed = True
            self.carry_out(self.master.on_deposed("another driver leads", self.now))

    def record_snapshot(self, instruction: RecordSnapshot) -> None:
        assert self.led
        n = instruction.checkpoint_id
        assert f"chk-{n}/_metadata" in self.disk

        def recorded() -> None:
            if self.deposed:
                return
            newer = not self.completed or n > self.completed[-1]
            if newer:
                self.completed.append(n)
            self.undecided_restarts += self.master.attempt != instruction.attempt
            self.carry_out(self.master.on_recorded(n, newer, self.now))

        self.recording_at = max(self.recording_at, self.now + self.delay() * self.rng.choice([1, 10, 50]))
        self.later(self.recording_at - self.now, recorded)

    def cancel_gang(self, instruction: CancelGang) -> None:
        for slot in self.gang(instruction.attempt):
            self.later(self.delay(), lambda slot=slot: self.leave(slot))

    def write_metadata(self, instruction: WriteMetadata) -> None:
        self.later(self.delay(), lambda: self.metadata_written(instruction))

    def delete_state(self, instruction: DeleteState) -> None:
        self.disk -= set(instruction.files)
        for directory in instruction.directories:
            self.disk = {path for path in self.disk if not path.startswith(directory + "/")}

    def delete_savepoint(self, instruction: DeleteSavepoint) -> None:
        raise AssertionError(f"nobody asked for a savepoint: {instruction}")

    def delete_claimed(self, instruction: DeleteClaimed) -> None:
        raise AssertionError(f"nothing was claimed: {instruction}")

    def request_done(self, instruction: CheckpointRequestDone) -> None:
        raise AssertionError(f"nobody asked for a checkpoint: {instruction}")

    def deliver_results(self, instruction: DeliverResults) -> None:
        raise AssertionError(f"nobody collects results: {instruction}")

    def discover_splits(self, instruction: DiscoverSplits) -> None:
        raise AssertionError(f"no source has an enumerator: {instruction}")

    def state_read_done(self, instruction: StateReadDone) -> None:
        """Nobody looks at state here."""

    def status_changed(self, instruction: StatusChanged) -> None:
        before = self.statuses[-1] if self.statuses else JobStatus.CREATED
        assert (before.name, instruction.status.name) in STATUS_STEPS
        self.statuses.append(instruction.status)

    def job_ended(self, instruction: JobEnded) -> None:
        assert self.ended is None
        self.ended = instruction

    def log(self, instruction: Log) -> None:
        """Nobody reads it."""

    def gang(self, attempt: AttemptNumber) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.attempt == attempt]

    def submit_gang(self, instruction: SubmitGang) -> None:
        assert instruction.attempt not in {slot.attempt for slot in self.slots.values()}
        self.all_at_end_before = None
        for index in range(instruction.num_slots):
            slot = Slot(instruction.attempt, SlotIndex(index), f"{instruction.attempt}/{index}")
            self.slots[slot.incarnation] = slot
            self.later(self.delay(), lambda slot=slot: self.come_up(slot))
        if self.fault():  # Spark runs the stage again
            rival = Slot(instruction.attempt, SlotIndex(0), f"{instruction.attempt}/rival")
            self.slots[rival.incarnation] = rival
            self.later(self.rng.uniform(0, 500), lambda: self.come_up(rival))

    def come_up(self, slot: Slot) -> None:
        if self.fault():
            slot.frozen = True  # never registers
            return
        register = Register(
            attempt=slot.attempt,
            slot=slot.index,
            data_address="tcp://h:1",
            host="h",
            pid=1,
            incarnation=slot.incarnation,
        )
        self.tell(slot, register)
        self.heartbeat(slot)
        if self.fault():
            self.later(self.rng.uniform(0, 2_000), lambda: self.die(slot))

    def heartbeat(self, slot: Slot) -> None:
        if slot.alive and self.ended is None:
            self.tell(slot, SlotHeartbeat(attempt=slot.attempt, slot=slot.index))
            self.later(100, lambda: self.heartbeat(slot))

    def metadata_written(self, instruction: WriteMetadata) -> None:
        metadata = instruction.metadata
        error = "disk full" if self.fault() else None
        if error is None:
            self.disk.add(f"chk-{metadata.checkpoint_id}/_metadata")
            self.written[metadata.checkpoint_id] = metadata
        answer = self.master.on_metadata_written
        self.carry_out(answer(instruction.attempt, metadata.checkpoint_id, error, self.now))

    def delete_orphans(self, instruction: DeleteOrphans) -> None:
        complete = {n for n in self.written if f"chk-{n}/_metadata" in self.disk}
        needed = {f"chk-{n}/_metadata" for n in complete}
        for n in complete:
            needed |= checkpoint_files(self.written[n])
        self.disk &= needed

    # ------------------------------------------------------------ the network
    def tell(self, slot: Slot, message: SlotToMaster) -> None:
        """A message to the master, in order; now and then twice. What is under way arrives even if the slot dies."""
        if not slot.alive or slot.frozen:
            return
        for _ in range(2 if self.fault() else 1):
            slot.to_master_at = max(slot.to_master_at, self.now + self.delay())
            action = lambda: self.carry_out(self.master.on_message(message, self.now))  # noqa: E731
            self.later(slot.to_master_at - self.now, action)

    def send(self, instruction: Send) -> None:
        slot = self.slots[instruction.incarnation]
        message = instruction.message
        assert message.attempt == slot.attempt
        if isinstance(message, TriggerCheckpoint):
            number = message.barrier.checkpoint_id
            if number not in self.triggered:
                assert all(number > earlier for earlier in self.triggered), "ids must grow"
                self.triggered.append(number)
                self.barrier(slot.attempt, number)
            return
        if self.led and isinstance(message, NotifyCheckpointComplete):
            assert message.checkpoint_id in self.completed
        elif isinstance(message, NotifyCheckpointComplete) and message.checkpoint_id not in self.completed:
            assert all(message.checkpoint_id > earlier for earlier in self.completed)
            assert f"chk-{message.checkpoint_id}/_metadata" in self.disk
            self.completed.append(message.checkpoint_id)
        if isinstance(message, Finish):
            assert self.all_at_end_before is not None
            assert self.completed[-1] >= self.all_at_end_before, "Finish before the end of data is durable"
        slot.from_master_at = max(slot.from_master_at, self.now + self.delay())
        self.later(slot.from_master_at - self.now, lambda: self.receive(slot, message))

    # ------------------------------------------------------------ the slots
    def receive(self, slot: Slot, message: object) -> None:
        if not slot.alive or slot.frozen:
            return
        if isinstance(message, Leave):
            self.later(self.delay(), lambda: self.leave(slot))
        elif isinstance(message, Deploy):
            self.deploy(slot, message)
        elif isinstance(message, Start):
            for task in self.graph.tasks_of_slot(slot.index):
                self.later(self.rng.uniform(0, self.work_ms), lambda task=task: self.end_of_data(slot, task))
        elif isinstance(message, NotifyCheckpointComplete):
            for task in self.graph.tasks_of_slot(slot.index):
                chain = slot.unconfirmed.get((task, message.checkpoint_id))
                if chain is not None:
                    slot.confirmed[task] = chain
        elif isinstance(message, Finish):
            self.tell(slot, SlotFinished(attempt=slot.attempt, slot=slot.index))

    def deploy(self, slot: Slot, message: Deploy) -> None:
        if message.restore:
            restore = msgspec.msgpack.decode(message.restore, type=SlotRestore)
            assert restore.checkpoint_id in self.completed
            newer = [n for n in self.completed if n > restore.checkpoint_id and n not in self.corrupt]
            assert not newer, f"{restore.checkpoint_id} is restored although {newer} are complete"
            files = checkpoint_files(self.written[restore.checkpoint_id])
            assert files <= self.disk, f"checkpoint {restore.checkpoint_id} lacks {files - self.disk}"
            if self.fault():
                self.corrupt.add(restore.checkpoint_id)
                failure = FailureInfo(summary="checksum", corrupt_checkpoint=restore.checkpoint_id)
                self.tell(slot, TaskFailed(attempt=slot.attempt, slot=slot.index, failure=failure))
                return
            for task in restore.tasks:
                for item in task.operators:
                    for keyed in item.keyed:
                        slot.confirmed[task.vertex, task.subtask] = keyed.increments
        else:
            assert not self.completed, "a job with a completed checkpoint must not start from nothing"
        if self.fault():
            self.tell(slot, TaskFailed(attempt=slot.attempt, slot=slot.index, failure=FailureInfo(summary="open()")))
        else:
            self.tell(slot, SlotReady(attempt=slot.attempt, slot=slot.index))

    def end_of_data(self, slot: Slot, task: Task) -> None:
        if not slot.alive or slot.frozen:
            return
        slot.at_end.add(task)
        self.tell(slot, TaskEndOfData(attempt=slot.attempt, vertex=task[0], subtask=task[1]))
        if self.fault():
            failure = FailureInfo(summary="user code raised", consequence=self.rng.random() < 0.3)
            self.tell(slot, TaskFailed(attempt=slot.attempt, slot=slot.index, failure=failure))
        members = [s for s in self.gang(slot.attempt) if not s.incarnation.endswith("rival")]
        if sum(len(s.at_end) for s in members) == sum(1 for _ in self.graph.all_tasks()):
            self.all_at_end_before = CheckpointId(max(self.triggered, default=0) + 1)

    def barrier(self, attempt: AttemptNumber, checkpoint_id: CheckpointId) -> None:
        for slot in self.gang(attempt):
            if not slot.incarnation.endswith("rival"):
                for task in self.graph.tasks_of_slot(slot.index):
                    if not self.fault():  # otherwise it never answers
                        self.later(self.delay(), lambda s=slot, t=task: self.snapshot(s, t, checkpoint_id))

    def snapshot(self, slot: Slot, task: Task, checkpoint_id: CheckpointId) -> None:
        if not slot.alive or slot.frozen:
            return
        vertex, subtask = task
        if self.fault():
            reason = self.rng.choice(list(DeclineReason))
            decline = DeclineCheckpoint(
                attempt=slot.attempt, checkpoint_id=checkpoint_id, vertex=vertex, subtask=subtask, reason=reason
            )
            self.tell(slot, decline)
            return
        exclusive = f"chk-{checkpoint_id}/{next(self.names)}"
        self.disk.add(exclusive)
        mine = OperatorListState(name="l", mode="split", count=1, handle=FileRange(exclusive, 0, 1, "0" * 16))
        keyed = None
        if vertex == 1:
            path = f"shared/c{checkpoint_id}-{next(self.names)}"
            self.disk.add(path)
            chain = slot.confirmed.get(task, [])
            if not chain or len(chain) > 3:
                chain = [increment(checkpoint_id, path, full=True)]
            else:
                chain = [*chain, increment(checkpoint_id, path)]
            slot.unconfirmed[task, checkpoint_id] = chain
            bounds = [subtask * 128 // self.graph.vertices[1].parallelism + n for n in (0, 1)]
            keyed = keyed_state(bounds[0], bounds[1], *chain)
        operator_id = KEYED if vertex == 1 else self.graph.vertices[0].operators[0].operator_id
        snapshot = TaskSnapshot(
            vertex=vertex,
            subtask=subtask,
            operators=[operator(operator_id, keyed, (mine, list_state("m", "union", 0)))],
            end_of_data=task in slot.at_end,
        )
        self.later(
            self.delay(),  # the asynchronous part
            lambda: self.tell(
                slot, AckCheckpoint(attempt=slot.attempt, checkpoint_id=checkpoint_id, snapshot=snapshot)
            ),
        )

    def die(self, slot: Slot) -> None:
        if not slot.alive:
            return
        if self.rng.random() < 0.3:
            slot.frozen = True
            return
        slot.alive = False
        self.later(self.rng.uniform(0, 200), lambda: self.gang_exit(slot.attempt, "a worker was killed"))

    def leave(self, slot: Slot) -> None:
        slot.alive = False
        if not any(s.alive for s in self.gang(slot.attempt)):
            self.later(self.delay(), lambda: self.gang_exit(slot.attempt, None))

    def gang_exit(self, attempt: AttemptNumber, error: str | None) -> None:
        """Spark kills those that are left, a little later."""
        if attempt in self.exited:
            return
        self.exited.add(attempt)
        for slot in self.gang(attempt):
            self.later(self.delay(), lambda slot=slot: self.leave(slot))
        self.carry_out(self.master.on_gang_exit(attempt, error, self.now))

    # ------------------------------------------------------------ the end
    def check_end(self) -> None:
        assert self.ended is not None, f"no end after many steps: {self.master.status}, {self.statuses[-10:]}"
        assert self.statuses[-1] is self.ended.status
        if self.ended.status is JobStatus.SUSPENDED:
            assert self.deposed
            return
        kept = {c.checkpoint_id for c in self.coordinator.store.checkpoints}
        complete = {n for n in self.written if f"chk-{n}/_metadata" in self.disk}
        assert complete == kept, "on disk are other checkpoints than are kept"
        for n in kept:
            assert checkpoint_files(self.written[n]) <= self.disk
        if self.ended.status is JobStatus.FINISHED:
            assert not kept
            assert self.all_at_end_before is not None
        assert self.ended.failed_attempts >= len(self.ended.failures)
