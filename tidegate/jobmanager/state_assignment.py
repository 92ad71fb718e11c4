"""Which part of a snapshot goes to which slot.

Operators are matched by id. With the same parallelism every subtask gets back what it had. With another one

- keyed state: a subtask gets the snapshots of all old subtasks whose key groups overlap its own (and keeps its keys),
- split list state: all items in the order of the old subtasks, cut into equal shares,
- union list state: everything, to everyone (also without a change of parallelism: that is what union means),
- broadcast state: the copy of one old subtask,
- in-flight records of channels: see `channel_assignment`,
- the end of data: a subtask that had come to it is there still only when all that feed it now are there too. Otherwise
  records may come to it that went to others before, and its operators have to finish again.

Another max parallelism for keyed state is refused, since keys cannot move between key groups. A vertex whose max
parallelism was not set by the program takes over that of its state (`adopt_max_parallelism`).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

import msgspec

from tidegate.common.errors import SnapshotError
from tidegate.common.ids import OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorNode, PartitionKind
from tidegate.jobmanager.channel_assignment import assign_channels, key_group_range
from tidegate.storage.handles import (
    WATERMARKS,
    CheckpointMetadata,
    KeyedSnapshot,
    OperatorListState,
    OperatorMetadata,
    OperatorRestore,
    SlotRestore,
    StateHandle,
    TaskRestore,
)

SplitItems = dict[str, list[tuple[StateHandle, int, int]]]


def assign_state(graph: JobGraph, point: RestorePoint, allow_non_restored: bool) -> dict[SlotIndex, SlotRestore]:
    """The restore message of every slot. SnapshotError when the snapshot does not fit the job."""
    old = {operator.operator_id: operator for operator in point.metadata.operators}
    _check_all_operators_exist(graph, point.metadata, allow_non_restored)
    channels = assign_channels(graph, point.metadata, allow_non_restored)
    operators: dict[tuple[VertexId, SubtaskIndex], list[OperatorRestore]] = defaultdict(list)
    for vertex in graph.vertices:
        for node in vertex.operators:
            if node.operator_id not in old:
                continue
            for subtask, restore in enumerate(_assign_operator(vertex, node, old[node.operator_id])):
                operators[vertex.vertex_id, SubtaskIndex(subtask)].append(restore)
    _clear_ends_that_are_none(graph, operators)
    restores = {}
    for slot in map(SlotIndex, range(graph.num_slots)):
        tasks = [
            TaskRestore(
                vertex=v,
                subtask=s,
                operators=operators[v, s],
                channels=channels.kept[v, s],
                moved=channels.moved[v, s],
            )
            for v, s in graph.tasks_of_slot(slot)
            if operators[v, s] or channels.kept[v, s] or channels.moved[v, s]
        ]
        restores[slot] = SlotRestore(checkpoint_id=point.checkpoint_id, root=point.root, tasks=tasks, owned=point.owned)
    return restores


class StateAssigner:
    """Assigns snapshots to the slots of one job. The latest assignment is kept: a job that starts from a snapshot is
    checked before anything runs, and an attempt that fails is often followed by one from the same checkpoint."""

    def __init__(self, graph: JobGraph, allow_non_restored: bool) -> None:
        self._graph = graph
        self._allow_non_restored = allow_non_restored
        self._latest: tuple[RestorePoint, dict[SlotIndex, SlotRestore]] | None = None

    def assign(self, point: RestorePoint) -> dict[SlotIndex, SlotRestore]:
        """As `assign_state`."""
        if self._latest is None or not _same(self._latest[0], point):
            self._latest = point, assign_state(self._graph, point, self._allow_non_restored)
        return self._latest[1]


def _same(a: RestorePoint, b: RestorePoint) -> bool:
    """Metadata is large and never changed: the same object, or not the same."""
    return a.metadata is b.metadata and a.root == b.root and a.owned == b.owned


def adopt_max_parallelism(graph: JobGraph, metadata: CheckpointMetadata) -> JobGraph:
    """The graph with the key groups that its state has, wherever the program does not ask for others. SnapshotError
    when an operator has more subtasks than there are key groups."""
    old = {operator.operator_id: operator for operator in metadata.operators}
    vertices = []
    for vertex in graph.vertices:
        keyed = {
            before.max_parallelism
            for node in vertex.operators
            if (before := old.get(node.operator_id)) is not None and any(s.keyed is not None for s in before.subtasks)
        }
        if vertex.max_parallelism_derived and len(keyed) == 1:
            (groups,) = keyed
            if vertex.parallelism > groups:
                raise SnapshotError(
                    f"'{vertex.name}' has parallelism {vertex.parallelism}, but its keyed state was taken with max "
                    f"parallelism {groups}, which is the number of its key groups and cannot change: run it with a "
                    f"parallelism of {groups} or less."
                )
            vertex = dataclasses.replace(vertex, max_parallelism=groups)
        vertices.append(vertex)
    return dataclasses.replace(graph, vertices=tuple(vertices))


# ---------------------------------------------------------------- operators


def _has_state(operator: OperatorMetadata) -> bool:
    """Whether anything would be lost with it. A stateless operator has empty states at most, and its place in time,
    which only it needs."""
    return any(
        (snapshot.keyed is not None and _has_entries(snapshot.keyed))
        or any(state.count and state.name != WATERMARKS for state in snapshot.lists)
        for snapshot in operator.subtasks
    )


def _has_entries(keyed: KeyedSnapshot) -> bool:
    return any(chunk.entries for increment in keyed.increments for chunk in increment.chunks) or any(
        file.name.endswith(".sst") for file in keyed.files
    )


def _title(name: str, uid: str | None, operator_id: OperatorId) -> str:
    return f"'{name}' (uid {uid})" if uid else f"'{name}' (no uid, id {operator_id})"


def _check_all_operators_exist(graph: JobGraph, metadata: CheckpointMetadata, allow_non_restored: bool) -> None:
    known = {node.operator_id for vertex in graph.vertices for node in vertex.operators}
    lost = [operator for operator in metadata.operators if operator.operator_id not in known and _has_state(operator)]
    if not lost or allow_non_restored:
        return
    missing = ", ".join(_title(o.name, o.uid, o.operator_id) for o in lost)
    there = ", ".join(_title(n.name, n.uid, n.operator_id) for vertex in graph.vertices for n in vertex.operators)
    raise SnapshotError(
        f"Checkpoint {metadata.checkpoint_id} of job '{metadata.job_name}' holds state of operators that this job does "
        f"not have: {missing}. The job has: {there}. Give each stateful operator the uid that it had, or set "
        "execution.state-recovery.ignore-unclaimed-state to true (tidegate run --allow-non-restored-state) to drop "
        "that state."
    )


def _assign_operator(vertex: JobVertex, node: OperatorNode, old: OperatorMetadata) -> list[OperatorRestore]:
    """One entry per new subtask."""
    if old.max_parallelism != vertex.max_parallelism and any(s.keyed is not None for s in old.subtasks):
        raise SnapshotError(
            f"Operator {_title(node.name, node.uid, node.operator_id)} has max parallelism {vertex.max_parallelism}, "
            f"but its keyed state was taken with {old.max_parallelism}, and keys cannot move between key groups. Set "
            f"set_max_parallelism({old.max_parallelism}) on it."
        )
    same = vertex.parallelism == old.parallelism
    by_name: dict[str, list[tuple[int, OperatorListState]]] = defaultdict(list)  # name -> (old subtask, state)
    for index, snapshot in enumerate(old.subtasks):
        for state in snapshot.lists:
            by_name[state.name].append((index, state))
    restores = []
    for subtask in range(vertex.parallelism):
        start, end = key_group_range(subtask, vertex.parallelism, vertex.max_parallelism)
        keyed = [k for s in old.subtasks if (k := s.keyed) and k.key_group_start < end and start < k.key_group_end]
        lists: list[OperatorListState] = []
        split: SplitItems = {}
        for name, states in by_name.items():
            mode = states[0][1].mode
            if mode == "union":
                lists += [state for _, state in states]
            elif mode == "broadcast":
                lists += [state for index, state in states if index == subtask % old.parallelism]
            elif same:
                split[name] = [(state.handle, 0, state.count) for index, state in states if index == subtask]
            else:
                split[name] = _share([state for _, state in states], subtask, vertex.parallelism)
        restores.append(
            OperatorRestore(
                operator_id=node.operator_id,
                keyed=keyed,
                lists=lists,
                split_items=split,
                # When all old subtasks had come to their end, the new ones have too: it comes once.
                end_of_data=old.end_of_data[subtask] if same else all(old.end_of_data),
            )
        )
    return restores


def _clear_ends_that_are_none(
    graph: JobGraph, operators: dict[tuple[VertexId, SubtaskIndex], list[OperatorRestore]]
) -> None:
    ended: list[set[SubtaskIndex]] = []  # by vertex, upstream first
    for vertex in graph.vertices:
        edges = graph.in_edges(vertex.vertex_id)
        all_fed_ended = {e.edge_id: len(ended[e.source]) == graph.vertices[e.source].parallelism for e in edges}
        ended.append(set())
        for subtask in map(SubtaskIndex, range(vertex.parallelism)):
            task = vertex.vertex_id, subtask
            if not operators[task] or not all(restore.end_of_data for restore in operators[task]):
                continue
            if all(all_fed_ended[e.edge_id] or ended[e.source].issuperset(_feeders(graph, e, subtask)) for e in edges):
                ended[-1].add(subtask)
            else:
                operators[task] = [msgspec.structs.replace(r, end_of_data=False) for r in operators[task]]


def _feeders(graph: JobGraph, edge: JobEdge, subtask: SubtaskIndex) -> list[SubtaskIndex]:
    return [subtask] if edge.partition.kind is PartitionKind.FORWARD else graph.upstream_subtasks(edge, subtask)


def _share(states: list[OperatorListState], subtask: int, parallelism: int) -> list[tuple[StateHandle, int, int]]:
    """Share number `subtask` of all items: shares differ by at most one item, the earlier ones are the longer."""
    total = sum(state.count for state in states)
    base, longer = divmod(total, parallelism)
    first = subtask * base + min(subtask, longer)
    end = first + base + (subtask < longer)
    share, offset = [], 0
    for state in states:
        low, high = max(first - offset, 0), min(end - offset, state.count)
        if low < high:
            share.append((state.handle, low, high))
        offset += state.count
    return share
