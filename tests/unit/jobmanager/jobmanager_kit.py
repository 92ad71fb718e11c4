"""Small graphs, snapshots and a driver that checks the invariants after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidegate.common.ids import AttemptNumber, CheckpointId, EdgeId, OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.job_status import JobStatus
from tidegate.connectors.collection import CollectionSource
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.fault_tolerance.none.job import NoFaultTolerance
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorNode, PartitionKind, PartitionSpec
from tidegate.graph.operator_specs import KeyedProcessSpec, MapSpec, SourceSpec
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.restart_strategies import NoRestart, RestartStrategy
from tidegate.protocol.instructions import Instruction, JobEnded, Send, StatusChanged, WriteMetadata
from tidegate.protocol.messages import (
    AckCheckpoint,
    FailureInfo,
    Register,
    SlotFinished,
    SlotHeartbeat,
    SlotReady,
    TaskEndOfData,
    TaskFailed,
)
from tidegate.storage.handles import (
    ChannelState,
    CheckpointMetadata,
    FileRange,
    InlineBytes,
    KeyedChunk,
    KeyedIncrement,
    KeyedSnapshot,
    KeyedStateInfo,
    OperatorListState,
    OperatorMetadata,
    OperatorSnapshot,
    TaskSnapshot,
)

T = TypeVar("T")
ROOT = "file:///checkpoints/job"
EPOCH = 1_000_000.0
SOURCE, KEYED = OperatorId("a" * 32), OperatorId("b" * 32)


def graph(parallelism: int = 2, sources: int | None = None, max_parallelism: int = 128) -> JobGraph:
    """source -> keyed, hash partitioned."""
    width = parallelism if sources is None else sources
    source = JobVertex(
        VertexId(0),
        "source",
        (OperatorNode(SOURCE, "source", "src", SourceSpec(CollectionSource([]))),),
        width,
        max_parallelism,
    )
    keyed = JobVertex(
        VertexId(1),
        "count",
        (OperatorNode(KEYED, "count", "cnt", KeyedProcessSpec(None)),),
        parallelism,
        max_parallelism,
    )
    edge = JobEdge(EdgeId(0), VertexId(0), 0, None, VertexId(1), 0, PartitionSpec(PartitionKind.HASH), edge_key())
    return JobGraph("job", "test job", (source, keyed), (edge,))


def chain_of(*names: str, parallelism: int = 1) -> JobGraph:
    """One vertex with operators of these names; the name is the uid."""
    nodes = tuple(
        OperatorNode(
            OperatorId(name.ljust(32, "0")), name, name, SourceSpec(CollectionSource([])) if i == 0 else MapSpec(None)
        )
        for i, name in enumerate(names)
    )
    return JobGraph("job", "test job", (JobVertex(VertexId(0), "chain", nodes, parallelism, 128),), ())


def edge_key() -> str:
    return f"{SOURCE}->{KEYED}:0"


def file(path: str, length: int = 10) -> FileRange:
    return FileRange(path, 0, length, "0" * 16)


def increment(checkpoint_id: int, *paths: str, full: bool = False) -> KeyedIncrement:
    chunks = [KeyedChunk(state="s", entries=1, handle=file(path)) for path in paths]
    return KeyedIncrement(checkpoint_id=CheckpointId(checkpoint_id), full=full, chunks=chunks)


def keyed_state(start: int, end: int, *increments: KeyedIncrement) -> KeyedSnapshot:
    states = [KeyedStateInfo(name="s", kind="value")]
    return KeyedSnapshot(
        backend="heap", key_group_start=start, key_group_end=end, states=states, increments=list(increments)
    )


def list_state(name: str, mode: str, count: int, data: bytes = b"") -> OperatorListState:
    return OperatorListState(name=name, mode=mode, count=count, handle=InlineBytes(data or name.encode(), "0" * 16))


def operator(
    operator_id: OperatorId, keyed: KeyedSnapshot | None = None, lists: tuple[OperatorListState, ...] = ()
) -> OperatorSnapshot:
    return OperatorSnapshot(operator_id=operator_id, name="x", uid="", keyed=keyed, lists=list(lists))


def metadata(
    *operators: OperatorMetadata, channels: tuple[ChannelState, ...] = (), checkpoint_id: int = 7
) -> CheckpointMetadata:
    return CheckpointMetadata(
        format_version=1,
        job_id="old",
        job_name="old job",
        checkpoint_id=CheckpointId(checkpoint_id),
        timestamp=0,
        savepoint=False,
        unaligned=bool(channels),
        operators=list(operators),
        channels=list(channels),
        tidegate_version="0",
    )


def operator_metadata(
    operator_id: OperatorId,
    *subtasks: OperatorSnapshot,
    max_parallelism: int = 128,
    name: str = "x",
    end_of_data: list[bool] | None = None,
) -> OperatorMetadata:
    return OperatorMetadata(
        operator_id=operator_id,
        name=name,
        uid="",
        parallelism=len(subtasks),
        max_parallelism=max_parallelism,
        subtasks=list(subtasks),
        end_of_data=end_of_data or [False] * len(subtasks),
    )


def channel(up: int, down: int, side: str, key: str | None = None) -> ChannelState:
    return ChannelState(
        edge_key=key or edge_key(),
        upstream=SubtaskIndex(up),
        downstream=SubtaskIndex(down),
        side=side,
        records=1,
        handle=InlineBytes(b"x", "0" * 16),
    )


def only(found: list[T]) -> T:
    assert len(found) == 1, found
    return found[0]


STATUS_STEPS = {
    ("CREATED", "RUNNING"),
    ("RUNNING", "FINISHED"),
    ("CREATED", "FAILING"),
    ("RUNNING", "FAILING"),
    ("RESTARTING", "FAILING"),
    ("FAILING", "RESTARTING"),
    ("FAILING", "FAILED"),
    ("RESTARTING", "RUNNING"),
    ("CREATED", "CANCELLING"),
    ("RUNNING", "CANCELLING"),
    ("FAILING", "CANCELLING"),
    ("RESTARTING", "CANCELLING"),
    ("CANCELLING", "CANCELED"),
    ("CANCELLING", "FAILING"),
    ("FAILING", "SUSPENDED"),
    ("CREATED", "SUSPENDED"),
}


class Driver:
    """Drives one JobMaster by hand: every call checks the invariants; all instructions are kept in `log`."""

    def __init__(
        self,
        job: JobGraph | None = None,
        restart: RestartStrategy | None = None,
        checkpoints: CheckpointSettings | None = None,
        initial: RestorePoint | None = None,
        settings: JobSettings | None = None,
        epoch: int = 0,
        older: Sequence[RestorePoint] = (),
    ) -> None:
        self.graph = job or graph()
        self.coordinator = (
            CheckpointCoordinator(self.graph, checkpoints, ROOT, initial, epoch=epoch, older=older)
            if checkpoints is not None
            else None
        )
        self.master = JobMaster(
            self.graph,
            settings or JobSettings("test job"),
            restart or NoRestart(),
            NoFaultTolerance(initial)
            if self.coordinator is None
            else BarrierCheckpoints(self.coordinator, initial, older),
            lambda attempt: b"plan%d" % attempt,
        )
        self.now = EPOCH
        self.log: list[Instruction] = []
        self.status = JobStatus.CREATED  # as the host was told

    # ------------------------------------------------------------ calls
    def do(self, call: Callable[..., list[Instruction]], *arguments: Any) -> list[Instruction]:
        out = call(*arguments, self.now)
        self.log += out
        for change in self.of(StatusChanged, out):
            assert (self.status.name, change.status.name) in STATUS_STEPS
            self.status = change.status
        self.master.check_invariants()
        return out

    def start(self) -> list[Instruction]:
        return self.do(self.master.start)

    def tell(self, message: Any) -> list[Instruction]:
        return self.do(self.master.on_message, message)

    def exit(self, error: str | None = None, attempt: int | None = None) -> list[Instruction]:
        return self.do(self.master.on_gang_exit, AttemptNumber(self.attempt if attempt is None else attempt), error)

    def cancel(self) -> list[Instruction]:
        return self.do(self.master.on_cancel)

    def written(self, checkpoint_id: int, error: str | None = None, attempt: int | None = None) -> list[Instruction]:
        number = self.attempt if attempt is None else AttemptNumber(attempt)
        return self.do(self.master.on_metadata_written, number, CheckpointId(checkpoint_id), error)

    def wait(self, ms: float, alive: bool = True) -> list[Instruction]:
        """Let time pass, tick by tick; `alive`: the slots send heartbeats meanwhile."""
        until, out = self.now + ms, []
        for _ in range(100_000):
            due = self.master.next_deadline()
            if due is None or due > until:
                self.now = until
                return out + self.do(self.master.on_tick)
            self.now = max(self.now, due)
            if alive:
                for slot in range(self.graph.num_slots):
                    self.tell(SlotHeartbeat(attempt=AttemptNumber(self.attempt), slot=SlotIndex(slot)))
            out += self.do(self.master.on_tick)
        raise AssertionError("the job master never comes to rest")

    # ------------------------------------------------------------ shorthands
    @property
    def attempt(self) -> AttemptNumber:
        return self.master.attempt

    def register(self, slot: int, incarnation: str = "", attempt: int | None = None) -> list[Instruction]:
        number = self.attempt if attempt is None else AttemptNumber(attempt)
        return self.tell(
            Register(
                attempt=number,
                slot=SlotIndex(slot),
                data_address=f"tcp://h:{slot}",
                host="h",
                pid=100 + slot,
                incarnation=incarnation or f"{number}/{slot}",
            )
        )

    def register_all(self) -> list[Instruction]:
        return [i for slot in range(self.graph.num_slots) for i in self.register(slot)]

    def ready_all(self) -> list[Instruction]:
        slots = range(self.graph.num_slots)
        return [i for s in slots for i in self.tell(SlotReady(attempt=self.attempt, slot=SlotIndex(s)))]

    def run(self) -> list[Instruction]:
        """A gang that was submitted comes up and is started."""
        return self.register_all() + self.ready_all()

    def end_of_data(self) -> list[Instruction]:
        tasks = list(self.graph.all_tasks())
        return [i for v, s in tasks for i in self.tell(TaskEndOfData(attempt=self.attempt, vertex=v, subtask=s))]

    def finish_all(self) -> list[Instruction]:
        slots = range(self.graph.num_slots)
        return [
            i
            for s in slots
            for i in self.tell(SlotFinished(attempt=self.attempt, slot=SlotIndex(s), accumulators=b"%d" % s))
        ]

    def fail(self, text: str = "boom", slot: int = 0, **more: Any) -> list[Instruction]:
        failure = FailureInfo(summary=text, **more)
        return self.tell(TaskFailed(attempt=self.attempt, slot=SlotIndex(slot), failure=failure))

    def ack(
        self, checkpoint_id: int, vertex: int, subtask: int, *increments: KeyedIncrement, attempt: int | None = None
    ) -> list[Instruction]:
        keyed = keyed_state(0, 128, *increments) if increments else None
        snapshot = TaskSnapshot(
            vertex=VertexId(vertex), subtask=SubtaskIndex(subtask), operators=[operator(KEYED, keyed)] if keyed else []
        )
        number = self.attempt if attempt is None else AttemptNumber(attempt)
        return self.tell(AckCheckpoint(attempt=number, checkpoint_id=CheckpointId(checkpoint_id), snapshot=snapshot))

    def ack_all(self, checkpoint_id: int) -> list[Instruction]:
        return [i for v, s in list(self.graph.all_tasks()) for i in self.ack(checkpoint_id, v, s)]

    def complete(self, checkpoint_id: int) -> list[Instruction]:
        out = self.ack_all(checkpoint_id)
        assert only(self.of(WriteMetadata, out)).metadata.checkpoint_id == checkpoint_id
        return out + self.written(checkpoint_id)

    # ------------------------------------------------------------ what came out
    @staticmethod
    def of(kind: type[T], instructions: list[Instruction]) -> list[T]:
        return [i for i in instructions if isinstance(i, kind)]

    @staticmethod
    def sent(kind: type[T], instructions: list[Instruction]) -> list[tuple[SlotIndex, T]]:
        return [(i.slot, i.message) for i in instructions if isinstance(i, Send) and isinstance(i.message, kind)]

    @property
    def ended(self) -> JobEnded | None:
        found = self.of(JobEnded, self.log)
        assert len(found) <= 1
        return found[0] if found else None
