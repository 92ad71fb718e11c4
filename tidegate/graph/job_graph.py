"""The job as it runs: vertices (chains of operators) and the edges between them.

Made by `graph.chaining` from transformations, pickled to the slots, read by the JobManager. Everything a host needs to
number slots, subtasks and channels is derived here, the same way everywhere.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.ids import EdgeId, OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.graph.operator_specs import OperatorSpec


class PartitionKind(enum.Enum):
    """How an edge picks the downstream subtask of a record."""

    FORWARD = "forward"  # subtask i to subtask i
    HASH = "hash"  # by key group of the key
    REBALANCE = "rebalance"  # round robin over all
    RESCALE = "rescale"  # round robin over a few near ones
    SHUFFLE = "shuffle"  # random over all
    BROADCAST = "broadcast"  # to all
    GLOBAL = "global"  # to subtask 0
    CUSTOM = "custom"  # the user's Partitioner on the user's key

    @property
    def pointwise(self) -> bool:
        return self in (PartitionKind.FORWARD, PartitionKind.RESCALE)


@dataclass(frozen=True)
class PartitionSpec:
    kind: PartitionKind
    key_selector: Any = None  # callable(value) -> key, for HASH and CUSTOM
    partitioner: Any = None  # callable(key, n) -> index, for CUSTOM


@dataclass(frozen=True)
class ChainLink:
    """How an operator inside a chain gets its input: from which operator of the chain, which side output."""

    upstream: int  # index in JobVertex.operators
    side_output: str | None = None  # OutputTag.tag_id; None: the main output


@dataclass(frozen=True)
class OperatorNode:
    """One operator. Within a vertex, `operators[0]` is the head (reads the network or is a source; link is None); every
    other one has exactly one link to an earlier operator."""

    operator_id: OperatorId
    name: str
    uid: str | None
    spec: OperatorSpec
    link: ChainLink | None = None
    key_selectors: tuple[Any, ...] = ()  # one per input for keyed operators: callable(value) -> key
    key_type: Any = None  # declared TypeInformation of the key, None when undeclared
    output_type: Any = None  # declared TypeInformation of the main output, None when undeclared
    side_output_types: dict[str, Any] = field(default_factory=dict)  # tag_id -> TypeInformation


@dataclass(frozen=True)
class JobVertex:
    vertex_id: VertexId
    name: str
    operators: tuple[OperatorNode, ...]
    parallelism: int
    max_parallelism: int
    max_parallelism_derived: bool = field(default=False, kw_only=True)  # not set by the program
    slot_sharing_group: str = "default"
    buffer_timeout_ms: int = 100  # -1: flush only full buffers; 0: flush after every slice of work

    @property
    def is_source(self) -> bool:
        from tidegate.graph.operator_specs import SourceSpec

        return isinstance(self.operators[0].spec, SourceSpec)

    @property
    def links(self) -> dict[str, int]:
        """The operators inside the chain, each by a name of the way into it that is stable across restarts, as
        `JobEdge.key` is of an edge: "<upstream operator id>[/tag]-><operator id>"."""
        found = {}
        for index, node in enumerate(self.operators):
            if node.link is not None:
                tag = "" if node.link.side_output is None else f"/{node.link.side_output}"
                found[f"{self.operators[node.link.upstream].operator_id}{tag}->{node.operator_id}"] = index
        return found


@dataclass(frozen=True)
class JobEdge:
    """Records of one output of an operator in `source` to input `target_input` (0, 1) of the head of `target`.

    Several edges may feed the same input (union)."""

    edge_id: EdgeId
    source: VertexId
    source_operator: int  # index in the source vertex's operators
    side_output: str | None
    target: VertexId
    target_input: int
    partition: PartitionSpec
    key: str  # "<source operator id>[/tag]-><target operator id>:<input>[#n]", stable across restarts


@dataclass(frozen=True)
class JobGraph:
    job_id: str
    name: str
    vertices: tuple[JobVertex, ...]  # topological order; index == vertex_id
    edges: tuple[JobEdge, ...]  # index == edge_id

    # ------------------------------------------------------------ slots
    def slot_groups(self) -> dict[str, tuple[int, int]]:
        """Slot sharing group -> (first slot, number of slots). A group takes as many slots as its widest vertex."""
        widths: dict[str, int] = {}
        for v in self.vertices:
            widths[v.slot_sharing_group] = max(widths.get(v.slot_sharing_group, 0), v.parallelism)
        groups, first = {}, 0
        for name, width in widths.items():
            groups[name] = (first, width)
            first += width
        return groups

    @property
    def num_slots(self) -> int:
        return sum(width for _, width in self.slot_groups().values())

    def slot_of(self, vertex: VertexId, subtask: SubtaskIndex) -> SlotIndex:
        return SlotIndex(self.slot_groups()[self.vertices[vertex].slot_sharing_group][0] + subtask)

    def tasks_of_slot(self, slot: SlotIndex) -> list[tuple[VertexId, SubtaskIndex]]:
        """The subtasks that run in one slot, upstream vertices first."""
        groups = self.slot_groups()
        found = []
        for v in self.vertices:
            subtask = slot - groups[v.slot_sharing_group][0]
            if 0 <= subtask < v.parallelism:
                found.append((v.vertex_id, SubtaskIndex(subtask)))
        return found

    def all_tasks(self) -> Iterator[tuple[VertexId, SubtaskIndex]]:
        for v in self.vertices:
            for i in range(v.parallelism):
                yield v.vertex_id, SubtaskIndex(i)

    # ------------------------------------------------------------ channels
    def in_edges(self, vertex: VertexId) -> list[JobEdge]:
        return [e for e in self.edges if e.target == vertex]

    def out_edges(self, vertex: VertexId) -> list[JobEdge]:
        return [e for e in self.edges if e.source == vertex]

    def downstream_subtasks(self, edge: JobEdge, upstream: SubtaskIndex) -> list[SubtaskIndex]:
        """The subtasks of the target that subtask `upstream` of the source has a channel to, in order."""
        up, down = self.vertices[edge.source].parallelism, self.vertices[edge.target].parallelism
        if edge.partition.kind is PartitionKind.FORWARD:
            return [upstream]
        if edge.partition.kind is PartitionKind.RESCALE:
            if down >= up:  # each upstream subtask feeds its own contiguous share
                return [SubtaskIndex(d) for d in range(down) if d * up // down == upstream]
            return [SubtaskIndex(upstream * down // up)]
        return [SubtaskIndex(d) for d in range(down)]

    def upstream_subtasks(self, edge: JobEdge, downstream: SubtaskIndex) -> list[SubtaskIndex]:
        """The inverse of `downstream_subtasks`, in order."""
        up = self.vertices[edge.source].parallelism
        return [SubtaskIndex(u) for u in range(up) if downstream in self.downstream_subtasks(edge, SubtaskIndex(u))]
