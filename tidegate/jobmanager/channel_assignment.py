"""Where the records go that were on their way when a checkpoint was taken: in the channels, of an unaligned one, and
inside the chains, of any.

When nothing has changed on an edge, to where they were: those queued at the receiver to the downstream task, those
queued at the sender to the upstream one. When the parallelism of either side has changed, all of them go to receivers,
who process them before anything else, so that the records of a key keep their order:

- HASH: to the subtask that now owns the key. Every receiver whose key groups overlap those of an old one reads that
  one's records and keeps its own.
- BROADCAST: new subtask i takes what was on its way to old subtask i modulo the old parallelism, from which it also
  takes its broadcast state.
- REBALANCE, SHUFFLE, GLOBAL: any subtask will do; what was on its way to old subtask i goes to i modulo the new one.
- FORWARD, RESCALE with other neighbours, and CUSTOM cannot be moved: who processes the later records of the same key
  is not known (or only the user's partitioner knows, which need not give the same answer twice).

What waited between two operators of a chain goes back there, before anything else. It cannot be moved either: who
processes the later records of the same split or key is not known.

Watermarks among the records are left out where they are moved: every task sends its current one again when it starts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tidegate.common.errors import SnapshotError
from tidegate.common.ids import OperatorId, SubtaskIndex, VertexId
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorNode, PartitionKind
from tidegate.storage.handles import CHAIN, ChannelState, CheckpointMetadata, MovedChannel, OperatorMetadata

Task = tuple[VertexId, SubtaskIndex]

_WITHOUT = "a checkpoint without in-flight records (a savepoint has none, most aligned checkpoints have none)"


class UnmovableRecordsError(SnapshotError):
    """In-flight records cannot be given to other subtasks: a checkpoint without any can be restored all the same."""


@dataclass
class AssignedChannels:
    kept: dict[Task, list[ChannelState]] = field(default_factory=lambda: defaultdict(list))
    moved: dict[Task, list[MovedChannel]] = field(default_factory=lambda: defaultdict(list))


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> tuple[int, int]:
    """The key groups [start, end) of a subtask: contiguous, as in Flink."""
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    end = ((subtask + 1) * max_parallelism + parallelism - 1) // parallelism
    return start, end


def assign_channels(graph: JobGraph, metadata: CheckpointMetadata, allow_non_restored: bool) -> AssignedChannels:
    """UnmovableRecordsError, also when an edge is gone."""
    old = {operator.operator_id: operator for operator in metadata.operators}
    edges = {edge.key: edge for edge in graph.edges}
    assigned = AssignedChannels()
    links = {key: (vertex, i) for vertex in graph.vertices for key, i in vertex.links.items()}
    by_edge: dict[str, list[ChannelState]] = defaultdict(list)
    for channel in metadata.channels:
        if channel.side != CHAIN:
            by_edge[channel.edge_key].append(channel)
        elif channel.edge_key in links:
            vertex, index = links[channel.edge_key]
            _check_same_parallelism(metadata, vertex, index, old)
            assigned.kept[vertex.vertex_id, channel.upstream].append(channel)
        elif not allow_non_restored:
            raise UnmovableRecordsError(_gone(metadata, f"the chain {channel.edge_key}"))
    for key, channels in by_edge.items():
        edge = edges.get(key)
        if edge is not None:
            _assign_edge(_OldEdge(graph, metadata, edge, old), channels, assigned)
        elif not allow_non_restored:
            raise UnmovableRecordsError(_gone(metadata, f"the edge {key}"))
    return assigned


def _gone(metadata: CheckpointMetadata, what: str) -> str:
    return (
        f"Checkpoint {metadata.checkpoint_id} holds in-flight records of {what}, which this job does not have (an "
        f"operator was removed, or is chained differently). Resume the unchanged job, or start from {_WITHOUT}."
    )


def _check_same_parallelism(
    metadata: CheckpointMetadata, vertex: JobVertex, index: int, old: dict[OperatorId, OperatorMetadata]
) -> None:
    node = vertex.operators[index]
    before = _old_parallelism(old, node, vertex.parallelism)
    if before != vertex.parallelism:
        raise UnmovableRecordsError(
            f"Checkpoint {metadata.checkpoint_id} holds records that waited inside a chain, for {title(node)}, and its "
            f"parallelism has changed from {before} to {vertex.parallelism}: these records cannot be moved, since "
            f"nobody knows who processes the later ones of the same key. Resume with parallelism {before}, or start "
            f"from {_WITHOUT}."
        )


class _OldEdge:
    """An edge as it is, and the parallelism that it had."""

    def __init__(
        self, graph: JobGraph, metadata: CheckpointMetadata, edge: JobEdge, old: dict[OperatorId, OperatorMetadata]
    ) -> None:
        self.graph = graph
        self.metadata = metadata
        self.edge = edge
        self.source, self.target = graph.vertices[edge.source], graph.vertices[edge.target]
        self.source_node, self.target_node = self.source.operators[edge.source_operator], self.target.operators[0]
        self.old_up = _old_parallelism(old, self.source_node, self.source.parallelism)
        self.old_down = _old_parallelism(old, self.target_node, self.target.parallelism)

    @property
    def changed(self) -> bool:
        return (self.old_up, self.old_down) != (self.source.parallelism, self.target.parallelism)


def _old_parallelism(old: dict[OperatorId, OperatorMetadata], node: OperatorNode, otherwise: int) -> int:
    return old[node.operator_id].parallelism if node.operator_id in old else otherwise


def _assign_edge(edge: _OldEdge, channels: list[ChannelState], assigned: AssignedChannels) -> None:
    if not edge.changed:
        for channel in channels:
            _check_still_connected(edge, channel)
            if channel.side == "input":
                assigned.kept[edge.edge.target, channel.downstream].append(channel)
            else:
                assigned.kept[edge.edge.source, channel.upstream].append(channel)
        return
    _check_movable(edge)
    # Of one old channel, what was at the receiver was sent before what was still at the sender.
    ordered = sorted(channels, key=lambda c: (c.upstream, c.downstream, c.side != "input"))
    for subtask in range(edge.target.parallelism):
        receiver = edge.edge.target, SubtaskIndex(subtask)
        senders = edge.graph.upstream_subtasks(edge.edge, receiver[1])
        for channel in ordered:
            if _goes_to(edge, channel.downstream, subtask):
                assigned.moved[receiver].append(
                    MovedChannel(
                        channel=channel,
                        upstream=senders[channel.upstream % len(senders)],
                        own_keys=edge.edge.partition.kind is PartitionKind.HASH,
                    )
                )


def _goes_to(edge: _OldEdge, old_subtask: int, subtask: int) -> bool:
    """Whether the new subtask reads what was on its way to the old one."""
    kind, new_down, old_down = edge.edge.partition.kind, edge.target.parallelism, edge.old_down
    if kind is PartitionKind.BROADCAST:
        return old_subtask == subtask % old_down
    if kind is PartitionKind.HASH:
        groups = edge.target.max_parallelism
        start, end = key_group_range(subtask, new_down, groups)
        old_start, old_end = key_group_range(old_subtask, old_down, groups)
        return old_start < end and start < old_end
    return subtask == old_subtask % new_down


def _check_movable(edge: _OldEdge) -> None:
    kind = edge.edge.partition.kind
    if not kind.pointwise and kind is not PartitionKind.CUSTOM:
        return
    node, before, now = edge.target_node, edge.old_down, edge.target.parallelism
    if before == now:
        node, before, now = edge.source_node, edge.old_up, edge.source.parallelism
    why = (
        "only your own partitioner knows which subtask they belong to"
        if kind is PartitionKind.CUSTOM
        else f"they stand between neighbours of a {kind.value} edge, who are others now"
    )
    raise UnmovableRecordsError(
        f"Checkpoint {edge.metadata.checkpoint_id} is an unaligned one with in-flight records from "
        f"{title(edge.source_node)} to {title(edge.target_node)}, and the parallelism of {title(node)} has changed "
        f"from {before} to {now}: these records cannot be moved, {why}. Resume with parallelism {before}, or start "
        f"from {_WITHOUT}."
    )


def _check_still_connected(edge: _OldEdge, channel: ChannelState) -> None:
    if channel.downstream not in edge.graph.downstream_subtasks(edge.edge, channel.upstream):
        raise UnmovableRecordsError(
            f"Checkpoint {edge.metadata.checkpoint_id} holds in-flight records from subtask {channel.upstream} of "
            f"'{edge.source.name}' to subtask {channel.downstream} of '{edge.target.name}', which are no longer "
            f"connected: the partitioning between them has changed to {edge.edge.partition.kind.value}. Resume the "
            f"unchanged job, or start from {_WITHOUT}."
        )


def title(node: OperatorNode) -> str:
    return f"'{node.name}' (uid {node.uid})" if node.uid else f"'{node.name}' (no uid, id {node.operator_id})"
