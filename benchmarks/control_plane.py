"""What the JobManager costs as a job grows: its CPU time and the bytes on its port, per checkpoint, per round of
heartbeats and per recovery, for 100, 1,000 and 10,000 subtasks. No Spark and no slots: the messages that slots would
send are made beforehand, and what is timed is decoding, the JobMaster, and encoding its answers."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.report import Figure
from tidegate.common.ids import AttemptNumber, CheckpointId, EdgeId, OperatorId, SlotIndex, VertexId
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorNode, PartitionKind, PartitionSpec
from tidegate.graph.operator_specs import KeyedProcessSpec, SourceSpec
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.protocol.instructions import Instruction, Send, SubmitGang, WriteMetadata
from tidegate.protocol.messages import (
    AckCheckpoint,
    FailureInfo,
    Message,
    Register,
    SlotHeartbeat,
    SlotReady,
    TaskFailed,
    decode_from_slot,
    encode,
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
    source = OperatorNode(SOURCE, "source", "source", SourceSpec(None))
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
        settings = CheckpointSettings(interval_ms=1_000.0)
        coordinator = CheckpointCoordinator(self.graph, settings, "file:///checkpoints")
        restart = FixedDelay(1_000_000, 0.0)
        model = BarrierCheckpoints(coordinator)
        self.master = JobMaster(self.graph, JobSettings("control plane"), restart, model, lambda _: b"plan" * 1000)
        publisher = JobPublisher(self.graph, "STREAMING", self.graph.num_slots, 0.0)
        self.publisher = MasterPublisher(publisher, self.graph, self.master)
        self.now = 1_000_000.0
        self.sent = self.received = 0  # bytes
        self.writes: list[WriteMetadata] = []
        self.gangs = 0

    def carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                self.sent += len(encode(instruction.message))
            elif isinstance(instruction, WriteMetadata):
                self.writes.append(instruction)
            elif isinstance(instruction, SubmitGang):
                self.gangs += 1
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
    def come_up(self) -> None:
        self.tell(self.registrations())
        self.tell(self.slots(lambda s: SlotReady(attempt=self.master.attempt, slot=SlotIndex(s))))

    def checkpoint(self) -> float:
        """The CPU seconds of one checkpoint, without the making of the acknowledgements."""
        self.now += 1_000.0
        began = time.process_time()
        self.event(self.master.on_tick)
        spent = time.process_time() - began
        acknowledgements = self.acknowledgements(CheckpointId(self._checkpoint()))
        began = time.process_time()
        self.tell(acknowledgements)
        write = self.writes.pop()
        self.event(self.master.on_metadata_written, write.attempt, write.metadata.checkpoint_id, None)
        self.publisher.publish(self.now)
        return spent + time.process_time() - began

    def _checkpoint(self) -> int:
        model = self.master.fault_tolerance
        assert isinstance(model, BarrierCheckpoints)
        return model.coordinator.in_progress[-1]

    def heartbeats(self) -> float:
        round_ = self.slots(lambda s: SlotHeartbeat(attempt=self.master.attempt, slot=SlotIndex(s)))
        self.now += 10.0
        began = time.process_time()
        self.tell(round_)
        return time.process_time() - began

    def recovery(self) -> float:
        """From a failure to the next attempt running, with the state assigned anew."""
        attempt = self.master.attempt
        failure = encode(TaskFailed(attempt=attempt, slot=SlotIndex(0), failure=FailureInfo(summary="killed")))
        began = time.process_time()
        self.tell([failure])
        self.event(self.master.on_gang_exit, AttemptNumber(attempt), "killed")
        self.event(self.master.on_tick)
        spent = time.process_time() - began
        registrations = self.registrations()
        ready = self.slots(lambda s: SlotReady(attempt=self.master.attempt, slot=SlotIndex(s)))
        began = time.process_time()
        self.tell(registrations)
        self.tell(ready)
        return spent + time.process_time() - began


def run(quick: bool) -> list[Figure]:
    figures: list[Figure] = []
    per_thousand: dict[int, float] = {}
    for subtasks in (100, 1_000) if quick else (100, 1_000, 10_000):
        tracemalloc.start()
        host = Host(subtasks)
        host.event(host.master.start)
        host.come_up()
        host.checkpoint()
        memory = tracemalloc.get_traced_memory()[0] / (1 << 20)
        tracemalloc.stop()
        rounds = 3
        sent, received = host.sent, host.received
        checkpoint = min(host.checkpoint() for _ in range(rounds))
        bytes_each = (host.sent + host.received - sent - received) / rounds
        heartbeat = min(host.heartbeats() for _ in range(rounds))
        recovery = min(host.recovery() for _ in range(2))
        per_thousand[subtasks] = checkpoint * 1e6 / subtasks
        name = f"{subtasks:,} subtasks:"
        figures += [
            Figure(
                f"{name} driver CPU per checkpoint",
                f"{checkpoint * 1000:.1f} ms",
                f"< {50 * subtasks / 1000:g} ms",
                per_thousand[subtasks] < 50,
            ),
            Figure(f"{name} bytes per checkpoint", f"{bytes_each / 1000:.0f} kB"),
            Figure(f"{name} driver CPU per round of heartbeats", f"{heartbeat * 1000:.1f} ms"),
            Figure(f"{name} driver CPU per recovery", f"{recovery * 1000:.1f} ms"),
            Figure(f"{name} memory of the JobMaster with one checkpoint", f"{memory:.1f} MB"),
        ]
    most, least = max(per_thousand), 1_000 if 1_000 in per_thousand else min(per_thousand)
    growth = per_thousand[most] / per_thousand[least]
    figures.append(
        Figure(f"CPU per subtask and checkpoint, {most:,} over {least:,}", f"{growth:.2f}", "<= 1.3", growth <= 1.3)
    )
    return figures
