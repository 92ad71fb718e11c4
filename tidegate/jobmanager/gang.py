"""The workers of one attempt, as far as the JobManager has heard of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidegate.common.errors import check_internal
from tidegate.common.ids import AttemptNumber, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.metric_values import MetricReport
from tidegate.graph.job_graph import JobGraph
from tidegate.protocol.messages import Register, StateReport


class Admission(enum.Enum):
    """What becomes of a worker that registers itself."""

    ACCEPTED = "accepted"  # the first worker of this slot
    REPEATED = "repeated"  # the same worker again
    RIVAL = "rival"  # another process for a slot that is taken: Spark has run the stage again
    UNKNOWN_SLOT = "unknown slot"  # there is no such slot in this job


@dataclass
class Member:
    """One registered worker."""

    slot: SlotIndex
    incarnation: str
    host: str
    pid: int
    data_address: str
    last_heard_ms: float
    metrics: tuple[MetricReport, ...] = ()  # of its latest heartbeat
    accumulators: bytes = b""  # likewise
    heartbeat_ms: float = 0.0  # when that, or its registration, was sent, by the worker's clock
    states: tuple[StateReport, ...] = ()  # likewise

    def describe(self) -> str:
        return f"worker of slot {self.slot} ({self.host}, pid {self.pid})"


class Gang:
    """Book-keeping of one attempt; changes only through the methods below. Decides nothing."""

    def __init__(self, attempt: AttemptNumber, graph: JobGraph, submitted_ms: float) -> None:
        self.attempt = attempt
        self.submitted_ms = submitted_ms
        self.num_slots = graph.num_slots
        self.members: dict[SlotIndex, Member] = {}
        self.ready: set[SlotIndex] = set()  # subset of members
        self.finished: dict[SlotIndex, bytes] = {}  # slot -> accumulators; subset of members
        self.end_of_data: set[tuple[VertexId, SubtaskIndex]] = set()  # subset of all tasks
        self.exited = False  # Spark says that the gang is over
        self.killed = False  # Spark was asked to kill what is left of it
        self._all_tasks = frozenset(graph.all_tasks())

    def register(self, message: Register, now_ms: float) -> Admission:
        if not 0 <= message.slot < self.num_slots:
            return Admission.UNKNOWN_SLOT
        known = self.members.get(message.slot)
        if known is None:
            self.members[message.slot] = Member(
                message.slot,
                message.incarnation,
                message.host,
                message.pid,
                message.data_address,
                now_ms,
                heartbeat_ms=message.sent_ms,
            )
            return Admission.ACCEPTED
        if known.incarnation == message.incarnation:
            known.last_heard_ms = now_ms
            return Admission.REPEATED
        return Admission.RIVAL

    @property
    def complete(self) -> bool:
        return len(self.members) == self.num_slots

    @property
    def missing(self) -> list[SlotIndex]:
        return [SlotIndex(i) for i in range(self.num_slots) if i not in self.members]

    @property
    def addresses(self) -> list[str]:
        """Data addresses by slot, of a complete gang."""
        return [self.members[slot].data_address for slot in sorted(self.members)]

    def heard(self, slot: SlotIndex, now_ms: float, heartbeat_ms: float = 0.0) -> None:
        member = self.members.get(slot)
        if member is not None:
            member.last_heard_ms = now_ms
            member.heartbeat_ms = max(member.heartbeat_ms, heartbeat_ms)

    def report(
        self,
        slot: SlotIndex,
        metrics: tuple[MetricReport, ...],
        accumulators: bytes,
        states: tuple[StateReport, ...] = (),
    ) -> None:
        """What a worker tells of itself; b"" for accumulators that are too large to be told, and no states when nothing
        is new of them."""
        member = self.members.get(slot)
        if member is not None:
            member.metrics = metrics
            member.accumulators = accumulators or member.accumulators
            member.states = states or member.states

    def excuse_silence(self, gap_ms: float) -> None:
        """The JobManager itself did not run for a while: that is not the workers' silence."""
        for member in self.members.values():
            member.last_heard_ms += gap_ms

    def longest_silent(self) -> Member | None:
        return min(self.members.values(), key=lambda m: m.last_heard_ms, default=None)

    def mark_ready(self, slot: SlotIndex) -> bool:
        """True when this was the last one."""
        if slot in self.members:
            self.ready.add(slot)
        return self.all_ready

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == self.num_slots

    def mark_end_of_data(self, vertex: VertexId, subtask: SubtaskIndex) -> bool:
        """False when it was known already."""
        task = (vertex, subtask)
        check_internal(task in self._all_tasks, f"end of data of unknown task {vertex}/{subtask}")
        if task in self.end_of_data:
            return False
        self.end_of_data.add(task)
        return True

    @property
    def all_at_end(self) -> bool:
        return len(self.end_of_data) == len(self._all_tasks)

    def mark_finished(self, slot: SlotIndex, accumulators: bytes) -> bool:
        """True when this was the last one."""
        if slot in self.members:
            self.finished[slot] = accumulators
        return len(self.finished) == self.num_slots

    def check_invariants(self) -> None:
        check_internal(self.ready <= self.members.keys(), "a slot is ready that has not registered")
        check_internal(self.finished.keys() <= self.members.keys(), "a slot is finished that has not registered")
        check_internal(self.end_of_data <= self._all_tasks, "an unknown task is at end of data")
