"""What the JobManager costs as a job grows: its CPU time, the bytes on its port and the memory that is needed for it,
per checkpoint, per round of heartbeats (in both directions) and per recovery, for 100, 1,000 and 10,000 subtasks. No
Spark and no slots: the messages that slots would send are made beforehand, and what is measured is decoding, the
JobMaster, and encoding its answers."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Figure
from tidegate.common.ids import AttemptNumber, CheckpointId, EdgeId, OperatorId, SlotIndex, VertexId
from tidegate.connectors.number_sequence import NumberSequenceSource
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorNode, PartitionKind, PartitionSpec
from tidegate.graph.operator_specs import KeyedProcessSpec, SourceSpec
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.protocol.codec import decode_from_slot, encode
from tidegate.protocol.instructions import Instruction, Send, WriteMetadata
from tidegate.protocol.messages import (
    AckCheckpoint,
    FailureInfo,
    Message,
    Register,
    SlotHeartbeat,
    SlotReady,
    TaskFailed,
)
from tidegate.storage.handles import (
    FileRange,
    InlineBytes,
    KeyedChunk,
    KeyedIncrement,
    KeyedSnapshot,
    KeyedStateInfo,
    OperatorListState,
    OperatorSnapshot,
    TaskSnapshot,
)

SOURCE, KEYED = OperatorId("a" * 32), OperatorId("b" * 32)


def graph(parallelism: int) -> JobGraph:
    """A source and a keyed count behind a hash exchange, two subtasks to a slot."""
    source = OperatorNode(SOURCE, "source", "source", SourceSpec(NumberSequenceSource(0, 1)))
    count = OperatorNode(KEYED, "count", "count", KeyedProcessSpec(None))
    vertices = (
        JobVertex(VertexId(0), "source", (source,), parallelism, 1 << 15),
        JobVertex(VertexId(1), "count", (count,), parallelism, 1 << 15),
    )
    partition = PartitionSpec(PartitionKind.HASH)
    edge = JobEdge(EdgeId(0), VertexId(0), 0, None, VertexId(1), 0, partition, f"{SOURCE}->{KEYED}:0")
    return JobGraph("c" * 32, "control plane", vertices, (edge,))


class Host:
    """Feeds a JobMaster with encoded messages and encodes what it sends, as the real host does."""

    def __init__(self, subtasks: int) -> None:
        self.graph = graph(subtasks // 2)
        settings = CheckpointSettings(interval_ms=1e12)  # only those that are asked for
        coordinator = CheckpointCoordinator(self.graph, settings, "file:///checkpoints")
        restart = FixedDelay(1_000_000, 0.0)
        model = BarrierCheckpoints(coordinator)
        self.job_settings = JobSettings("control plane")
        self.master = JobMaster(self.graph, self.job_settings, restart, model, lambda _: b"plan" * 1000)
        publisher = JobPublisher(self.graph, "STREAMING", self.graph.num_slots, 0.0)
        self.publisher = MasterPublisher(publisher, self.graph, self.master)
        self.now = 1_000_000.0
        self.sent = self.received = 0  # bytes
        self.writes: list[WriteMetadata] = []
        self.spent_s = 0.0  # of the processor, while something was measured
        self.needed = 0  # bytes of memory at most, while something was measured and tracemalloc runs

    def carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                self.sent += len(encode(instruction.message))
            elif isinstance(instruction, WriteMetadata):
                self.writes.append(instruction)
        self.publisher.after_step(instructions, self.now)

    def tell(self, messages: list[bytes]) -> None:
        for message in messages:
            self.received += len(message)
            self.carry_out(self.master.on_message(decode_from_slot(message), self.now))

    def event(self, call: Callable[..., list[Instruction]], *arguments: Any) -> None:
        self.carry_out(call(*arguments, self.now))

    # ------------------------------------------------------------ what slots say
    def slots(self, make: Callable[[int], Message]) -> list[bytes]:
        return [encode(make(slot)) for slot in range(self.graph.num_slots)]

    def registrations(self) -> list[bytes]:
        attempt = self.master.attempt
        return self.slots(
            lambda s: Register(
                attempt=attempt,
                slot=SlotIndex(s),
                data_address=f"tcp://10.0.{s // 250}.{s % 250}:40000",
                host=f"worker-{s}",
                pid=1000 + s,
                incarnation=f"{attempt}/{s}",
            )
        )

    def acknowledgements(self, checkpoint_id: CheckpointId) -> list[bytes]:
        return [
            encode(
                AckCheckpoint(
                    attempt=self.master.attempt,
                    checkpoint_id=checkpoint_id,
                    snapshot=TaskSnapshot(vertex=v, subtask=s, operators=[self._operator(v, s, checkpoint_id)]),
                )
            )
            for v, s in self.graph.all_tasks()
        ]

    def _operator(self, vertex: int, subtask: int, checkpoint_id: CheckpointId) -> OperatorSnapshot:
        if vertex == 0:
            handle = InlineBytes(b"offset" * 10, "0" * 16)
            offsets = OperatorListState(name="splits", mode="split", count=1, handle=handle)
            return OperatorSnapshot(operator_id=SOURCE, name="source", uid="source", keyed=None, lists=[offsets])
        path = f"shared/count-{subtask}-{checkpoint_id}.state"
        chunk = KeyedChunk(state="count", entries=1000, handle=FileRange(path, 0, 10_000, "0" * 16))
        increment = KeyedIncrement(checkpoint_id=checkpoint_id, full=True, chunks=[chunk])
        width = (1 << 15) // self.graph.vertices[1].parallelism
        keyed = KeyedSnapshot(
            backend="heap",
            key_group_start=subtask * width,
            key_group_end=(subtask + 1) * width,
            states=[KeyedStateInfo(name="count", kind="value")],
            increments=[increment],
        )
        return OperatorSnapshot(operator_id=KEYED, name="count", uid="count", keyed=keyed, lists=[])

    # ------------------------------------------------------------ the three rounds
    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        if tracemalloc.is_tracing():
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        began = time.process_time()
        yield
        self.spent_s += time.process_time() - began
        if tracemalloc.is_tracing():
            self.needed = max(self.needed, tracemalloc.get_traced_memory()[1] - before)

    def ready(self) -> list[bytes]:
        return self.slots(lambda s: SlotReady(attempt=self.master.attempt, slot=SlotIndex(s)))

    def come_up(self) -> None:
        registrations = self.registrations()
        with self.measured():
            self.tell(registrations)
        ready = self.ready()
        with self.measured():
            self.tell(ready)

    def checkpoint(self) -> None:
        self.now += 10.0
        with self.measured():
            self.event(self.master.on_checkpoint_request, 1, False)
        acknowledgements = self.acknowledgements(CheckpointId(self._checkpoint()))
        with self.measured():
            self.tell(acknowledgements)
            write = self.writes.pop()
            self.event(self.master.on_metadata_written, write.attempt, write.metadata.checkpoint_id, None)
            self.publisher.publish(self.now)

    def _checkpoint(self) -> int:
        model = self.master.fault_tolerance
        assert isinstance(model, BarrierCheckpoints)
        return model.coordinator.in_progress[-1]

    def heartbeats(self) -> None:
        """One of every slot, and one to every slot."""
        beats = self.slots(lambda s: SlotHeartbeat(attempt=self.master.attempt, slot=SlotIndex(s), sent_ms=self.now))
        self.now += self.job_settings.heartbeat_interval_ms
        with self.measured():
            self.tell(beats)
            self.event(self.master.on_tick)

    def recovery(self) -> None:
        """From a failure to the next attempt running, with the state assigned anew."""
        attempt = self.master.attempt
        failure = encode(TaskFailed(attempt=attempt, slot=SlotIndex(0), failure=FailureInfo(summary="killed")))
        with self.measured():
            self.tell([failure])
            self.event(self.master.on_gang_exit, AttemptNumber(attempt), "killed")
            self.event(self.master.on_tick)
        self.come_up()


@dataclass(frozen=True)
class Cost:
    cpu_s: float  # of the fastest round
    bytes: float  # on the port, both ways
    memory: int  # bytes, at most and beyond what was there before


def cost_of(host: Host, call: Callable[[], None], rounds: int = 3) -> Cost:
    times: list[float] = []
    before = host.sent + host.received
    for _ in range(rounds):
        host.spent_s = 0.0
        call()
        times.append(host.spent_s)
    carried = (host.sent + host.received - before) / rounds
    host.needed = 0
    tracemalloc.start()
    call()
    tracemalloc.stop()
    return Cost(min(times), carried, host.needed)


def measure(subtasks: int) -> tuple[dict[str, Cost], float]:
    """By what is done; and the memory of the JobMaster with one checkpoint, in MB."""
    tracemalloc.start()
    host = Host(subtasks)
    host.event(host.master.start)
    host.come_up()
    host.checkpoint()
    memory = tracemalloc.get_traced_memory()[0] / (1 << 20)
    tracemalloc.stop()
    calls = {"checkpoint": host.checkpoint, "round of heartbeats": host.heartbeats, "recovery": host.recovery}
    return {what: cost_of(host, call) for what, call in calls.items()}, memory


def run(quick: bool) -> list[Figure]:
    return figures_of((100, 1_000) if quick else (100, 1_000, 10_000))


def figures_of(sizes: tuple[int, ...]) -> list[Figure]:
    """The growth is that from the second largest size to the largest."""
    figures: list[Figure] = []
    per_thousand: dict[int, float] = {}  # subtasks -> ms of a checkpoint, for each thousand
    for subtasks in sizes:
        costs, memory = measure(subtasks)
        name = f"{subtasks:,} subtasks:"
        for what, cost in costs.items():
            wanted, reached = "", None
            if what == "checkpoint":
                per_thousand[subtasks] = cost.cpu_s * 1e6 / subtasks
                wanted, reached = f"< {50 * subtasks / 1000:g} ms", per_thousand[subtasks] < 50
            figures += [
                Figure(f"{name} driver CPU per {what}", f"{cost.cpu_s * 1000:.1f} ms", wanted, reached),
                Figure(f"{name} bytes per {what}", f"{cost.bytes / 1000:.0f} kB"),
                Figure(f"{name} memory needed per {what}", f"{cost.memory / (1 << 20):.1f} MB"),
            ]
        figures.append(Figure(f"{name} memory of the JobMaster with one checkpoint", f"{memory:.1f} MB"))
    if len(sizes) > 1:
        least, most = sorted(sizes)[-2:]
        growth = per_thousand[most] / per_thousand[least]
        name = f"CPU per subtask and checkpoint, {most:,} over {least:,}"
        figures.append(Figure(name, f"{growth:.2f}", "<= 1.3", growth <= 1.3))
    return figures
