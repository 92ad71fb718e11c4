from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobmanager_kit import (
    KEYED,
    ROOT,
    SOURCE,
    chain_of,
    channel,
    graph,
    increment,
    keyed_state,
    list_state,
    metadata,
    operator,
    operator_metadata,
)

from tidegate.common.errors import SnapshotError
from tidegate.common.ids import OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import ChainLink, JobGraph, PartitionKind, PartitionSpec
from tidegate.jobmanager.channel_assignment import UnmovableRecordsError, key_group_range
from tidegate.jobmanager.state_assignment import adopt_max_parallelism, assign_state
from tidegate.storage.handles import (
    CHAIN,
    WATERMARKS,
    CheckpointMetadata,
    InlineBytes,
    OperatorListState,
    OperatorMetadata,
    OperatorRestore,
    TaskRestore,
)


def assign(job, snapshot: CheckpointMetadata, allow: bool = False) -> dict[tuple[int, int], TaskRestore]:
    restores = assign_state(job, RestorePoint(snapshot, ROOT), allow)
    assert set(restores) == set(map(SlotIndex, range(job.num_slots)))
    assert all(r.root == ROOT and r.checkpoint_id == 7 for r in restores.values())
    return {(task.vertex, task.subtask): task for restore in restores.values() for task in restore.tasks}


def keyed_metadata(parallelism: int, max_parallelism: int = 128) -> OperatorMetadata:
    ranges = [key_group_range(i, parallelism, max_parallelism) for i in range(parallelism)]
    return operator_metadata(
        KEYED,
        *(operator(KEYED, keyed_state(a, b, increment(1, f"shared/{a}", full=True))) for a, b in ranges),
        max_parallelism=max_parallelism,
        name="count",
    )


def lists_metadata(mode: str, counts: list[int]) -> OperatorMetadata:
    states = [list_state("l", mode, count, b"handle%d" % i) for i, count in enumerate(counts)]
    return operator_metadata(KEYED, *(operator(KEYED, lists=(state,)) for state in states))


def items(restore: OperatorRestore, name: str = "l") -> list[tuple[bytes, int]]:
    """Every item that the subtask gets, as (handle, index)."""
    shares = restore.split_items.get(name, [])
    return [(h.data, i) for h, first, end in shares if isinstance(h, InlineBytes) for i in range(first, end)]


# ---------------------------------------------------------------- keyed state


@given(st.integers(1, 200), st.integers(1, 50))
def test_key_groups_are_contiguous_and_complete(max_parallelism: int, parallelism: int) -> None:
    parallelism = min(parallelism, max_parallelism)
    ranges = [key_group_range(i, parallelism, max_parallelism) for i in range(parallelism)]
    assert [g for a, b in ranges for g in range(a, b)] == list(range(max_parallelism))
    assert all(g * parallelism // max_parallelism == i for i, (a, b) in enumerate(ranges) for g in range(a, b))


def test_with_the_same_parallelism_each_subtask_gets_its_own_state_back() -> None:
    tasks = assign(graph(3), metadata(keyed_metadata(3)))
    for subtask in range(3):
        (restore,) = tasks[1, subtask].operators
        (snapshot,) = restore.keyed
        assert (snapshot.key_group_start, snapshot.key_group_end) == key_group_range(subtask, 3, 128)


@given(st.integers(1, 12), st.integers(1, 12))
def test_after_rescaling_every_key_group_reaches_its_new_owner(old: int, new: int) -> None:
    tasks = assign(graph(new), metadata(keyed_metadata(old)))
    for subtask in range(new):
        start, end = key_group_range(subtask, new, 128)
        snapshots = tasks[1, subtask].operators[0].keyed
        covered = {g for s in snapshots for g in range(s.key_group_start, s.key_group_end)}
        assert set(range(start, end)) <= covered
        assert all(s.key_group_start < end and start < s.key_group_end for s in snapshots)


def test_another_max_parallelism_is_refused_for_keyed_state() -> None:
    with pytest.raises(SnapshotError, match=r"'count'.*max parallelism 64.*taken with 128.*set_max_parallelism\(128\)"):
        assign(graph(2, max_parallelism=64), metadata(keyed_metadata(2)))


def test_another_max_parallelism_is_fine_without_keyed_state() -> None:
    assign(graph(2, max_parallelism=64), metadata(lists_metadata("split", [1, 1])))


# ---------------------------------------------------------------- operator state


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 9))
def test_split_items_are_dealt_out_evenly_and_completely(counts: list[int], new: int) -> None:
    tasks = assign(graph(new), metadata(lists_metadata("split", counts)))
    shares = [items(tasks[1, subtask].operators[0]) for subtask in range(new)]
    everything = [(b"handle%d" % i, n) for i, count in enumerate(counts) for n in range(count)]
    assert sorted(item for share in shares for item in share) == sorted(everything)
    if new == len(counts):
        assert [len(share) for share in shares] == counts
    else:
        assert [item for share in shares for item in share] == everything
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("new", [1, 2, 3])
def test_union_items_reach_everybody(new: int) -> None:
    tasks = assign(graph(new), metadata(lists_metadata("union", [2, 3])))
    for subtask in range(new):
        assert [state.count for state in tasks[1, subtask].operators[0].lists] == [2, 3]


@pytest.mark.parametrize("new", [1, 2, 5])
def test_each_subtask_gets_one_copy_of_broadcast_state(new: int) -> None:
    tasks = assign(graph(new), metadata(lists_metadata("broadcast", [4, 4])))
    for subtask in range(new):
        (state,) = tasks[1, subtask].operators[0].lists
        assert isinstance(state, OperatorListState)
        assert isinstance(state.handle, InlineBytes)
        assert state.handle.data == b"handle%d" % (subtask % 2)


def test_the_end_of_data_is_restored_at_another_parallelism_when_all_were_there() -> None:
    old = operator_metadata(SOURCE, operator(SOURCE), operator(SOURCE), end_of_data=[True, False])
    same = assign(graph(2), metadata(old))
    assert [same[0, i].operators[0].end_of_data for i in range(2)] == [True, False]
    wider = assign(graph(3), metadata(old))
    assert [wider[0, i].operators[0].end_of_data for i in range(3)] == [False] * 3
    all_at_end = operator_metadata(SOURCE, operator(SOURCE), operator(SOURCE), end_of_data=[True, True])
    for parallelism in (1, 3):
        tasks = assign(graph(parallelism), metadata(all_at_end))
        assert [tasks[0, i].operators[0].end_of_data for i in range(parallelism)] == [True] * parallelism


@pytest.mark.parametrize(
    ("kind", "width", "expected"),
    [
        (PartitionKind.FORWARD, 2, [True, False]),  # each is fed by whom it was fed by
        (PartitionKind.REBALANCE, 1, [False, False]),  # the one source that is left feeds both
        (PartitionKind.REBALANCE, 2, [False, False]),  # the program connects them otherwise than before
        (PartitionKind.RESCALE, 4, [False, False]),  # all sources begin anew: their splits are dealt out again
    ],
)
def test_a_subtask_is_at_the_end_of_data_only_if_all_that_feed_it_now_are(
    kind: PartitionKind, width: int, expected: list[bool]
) -> None:
    sources = operator_metadata(SOURCE, operator(SOURCE), operator(SOURCE), end_of_data=[True, False])
    fed = operator_metadata(KEYED, operator(KEYED), operator(KEYED), end_of_data=[True, False])
    tasks = assign(partitioned(kind, 2, width), metadata(sources, fed))
    assert [tasks[1, i].operators[0].end_of_data for i in range(2)] == expected
    ended = operator_metadata(SOURCE, operator(SOURCE), operator(SOURCE), end_of_data=[True, True])
    all_fed = operator_metadata(KEYED, operator(KEYED), operator(KEYED), end_of_data=[True, True])
    tasks = assign(partitioned(kind, 2, width), metadata(ended, all_fed))
    assert [tasks[1, i].operators[0].end_of_data for i in range(2)] == [True, True]
    tasks = assign(partitioned(kind, 2, width), metadata(all_fed))  # a source that is new
    assert [tasks[1, i].operators[0].end_of_data for i in range(2)] == [False, False]


# ---------------------------------------------------------------- operators


def stateful(name: str, state: bool = True) -> OperatorMetadata:
    operator_id = OperatorId(name.ljust(32, "0"))
    lists = (list_state("l", "split", 1),) if state else ()
    return operator_metadata(operator_id, operator(operator_id, lists=lists), name=name)


def test_operators_are_matched_by_id_wherever_they_are_chained() -> None:
    tasks = assign(chain_of("b", "a"), metadata(stateful("a"), stateful("b")))
    assert [o.operator_id[0] for o in tasks[0, 0].operators] == ["b", "a"]


def test_state_of_a_missing_operator_is_refused_with_the_names_of_both_sides() -> None:
    with pytest.raises(SnapshotError, match=r"does not have: 'gone'.*The job has: 'a'.*ignore-unclaimed-state"):
        assign(chain_of("a"), metadata(stateful("a"), stateful("gone")))


def test_state_of_a_missing_operator_is_dropped_when_that_is_allowed() -> None:
    tasks = assign(chain_of("a"), metadata(stateful("a"), stateful("gone")), allow=True)
    assert len(tasks[0, 0].operators) == 1


def test_a_missing_operator_without_state_is_nothing_to_complain_of() -> None:
    assign(chain_of("a"), metadata(stateful("a"), stateful("gone", state=False)))
    gone = OperatorId("gone".ljust(32, "0"))
    nothing = (list_state("tidegate.sink.writer", "split", 0), list_state(WATERMARKS, "union", 1))
    for keyed in (None, keyed_state(0, 128), keyed_state(0, 128, increment(1, "shared/1", full=True))):
        snapshot = metadata(stateful("a"), operator_metadata(gone, operator(gone, keyed, lists=nothing), name="gone"))
        if keyed is None or not keyed.increments:
            assign(chain_of("a"), snapshot)
        else:
            with pytest.raises(SnapshotError, match="'gone'"):
                assign(chain_of("a"), snapshot)


def test_a_new_operator_starts_empty() -> None:
    tasks = assign(chain_of("a", "new"), metadata(stateful("a")))
    assert [o.operator_id[0] for o in tasks[0, 0].operators] == ["a"]


# ---------------------------------------------------------------- channels


def both(parallelism: int) -> tuple[OperatorMetadata, OperatorMetadata]:
    sources = operator_metadata(SOURCE, *(operator(SOURCE) for _ in range(parallelism)))
    return sources, operator_metadata(KEYED, *(operator(KEYED) for _ in range(parallelism)))


def test_in_flight_records_go_back_to_the_side_where_they_were_queued() -> None:
    channels = (channel(0, 1, "input"), channel(1, 0, "output"), channel(1, 1, "output"))
    tasks = assign(graph(2), metadata(*both(2), channels=channels))
    assert tasks[1, 1].channels == [channels[0]]
    assert tasks[0, 1].channels == [channels[1], channels[2]]
    assert tasks[0, 0].channels == tasks[1, 0].channels == []


def partitioned(kind: PartitionKind, parallelism: int, sources: int | None = None) -> JobGraph:
    job = graph(parallelism, sources)
    return dataclasses.replace(job, edges=(dataclasses.replace(job.edges[0], partition=PartitionSpec(kind)),))


def moved(tasks: dict[tuple[int, int], TaskRestore], subtask: int) -> list[tuple[int, int, str, int]]:
    """(old upstream, old downstream, side, new upstream) of what a subtask of the second vertex reads."""
    found = tasks[1, subtask].moved if (1, subtask) in tasks else []
    return [(m.channel.upstream, m.channel.downstream, m.channel.side, m.upstream) for m in found]


def test_in_flight_records_of_a_keyed_edge_go_to_all_who_may_own_their_keys_now() -> None:
    channels = (channel(0, 1, "output"), channel(0, 1, "input"), channel(1, 0, "output"))
    tasks = assign(graph(3), metadata(*both(2), channels=channels))
    assert moved(tasks, 0) == [(1, 0, "output", 1)]
    assert moved(tasks, 1) == [(0, 1, "input", 0), (0, 1, "output", 0), (1, 0, "output", 1)]  # the receiver's first
    assert moved(tasks, 2) == [(0, 1, "input", 0), (0, 1, "output", 0)]
    assert all(m.own_keys for task in tasks.values() for m in task.moved)
    assert not any(task.channels for task in tasks.values())


def test_a_change_of_the_senders_alone_moves_their_records_to_the_receivers_too() -> None:
    channels = (channel(2, 1, "output"), channel(2, 0, "input"))
    old = operator_metadata(SOURCE, *[operator(SOURCE)] * 3), keyed_metadata(2)
    tasks = assign(graph(2, sources=1), metadata(*old, channels=channels))
    assert moved(tasks, 0) == [(2, 0, "input", 0)]
    assert moved(tasks, 1) == [(2, 1, "output", 0)]


@pytest.mark.parametrize("kind", [PartitionKind.REBALANCE, PartitionKind.SHUFFLE, PartitionKind.GLOBAL])
def test_records_that_anybody_may_process_are_moved_once(kind: PartitionKind) -> None:
    channels = tuple(channel(u, d, side) for u in range(3) for d in range(3) for side in ("input", "output"))
    tasks = assign(partitioned(kind, 2), metadata(*both(3), channels=channels))
    found = moved(tasks, 0) + moved(tasks, 1)
    expected = sorted((c.upstream, c.downstream, c.side) for c in channels)
    assert sorted((u, d, side) for u, d, side, _ in found) == expected
    assert not any(m.own_keys for task in tasks.values() for m in task.moved)


def test_broadcast_records_follow_the_copy_of_the_state_that_a_subtask_takes() -> None:
    channels = tuple(channel(0, d, "input") for d in range(2))
    tasks = assign(partitioned(PartitionKind.BROADCAST, 3), metadata(*both(2), channels=channels))
    assert [moved(tasks, i) for i in range(3)] == [[(0, d, "input", 0)] for d in (0, 1, 0)]


@pytest.mark.parametrize("kind", [PartitionKind.FORWARD, PartitionKind.RESCALE, PartitionKind.CUSTOM])
def test_records_that_cannot_be_moved_are_refused_with_both_operators_and_what_to_do(kind: PartitionKind) -> None:
    with pytest.raises(
        UnmovableRecordsError,
        match=r"from 'source' \(uid src\) to 'count' \(uid cnt\).*changed from 2 to 3.*Resume with parallelism 2",
    ):
        assign(partitioned(kind, 3), metadata(*both(2), channels=(channel(1, 1, "input"),)))


def test_a_vertex_takes_over_the_max_parallelism_of_its_state_unless_it_was_set() -> None:
    job = graph(3, max_parallelism=256)
    assert adopt_max_parallelism(job, metadata(keyed_metadata(2))) == job
    derived = dataclasses.replace(
        job, vertices=tuple(dataclasses.replace(v, max_parallelism_derived=True) for v in job.vertices)
    )
    adopted = adopt_max_parallelism(derived, metadata(keyed_metadata(2)))
    assert [v.max_parallelism for v in adopted.vertices] == [256, 128]  # the source has no keyed state
    with pytest.raises(SnapshotError, match=r"parallelism 3.*max parallelism 2.*2 or less"):
        adopt_max_parallelism(derived, metadata(keyed_metadata(2, max_parallelism=2)))


def test_an_unaligned_checkpoint_without_in_flight_records_can_be_rescaled() -> None:
    assign(graph(3), metadata(*both(2)))


def test_in_flight_records_of_a_missing_edge_are_refused_unless_they_may_be_dropped() -> None:
    snapshot = metadata(*both(2), channels=(channel(0, 1, "input", key="x->y:0"),))
    with pytest.raises(UnmovableRecordsError, match="in-flight records of the edge x->y:0"):  # an aligned one will do
        assign(graph(2), snapshot)
    assert all(not task.channels for task in assign(graph(2), snapshot, allow=True).values())


def test_in_flight_records_of_a_channel_that_no_longer_exists_are_refused() -> None:
    job = graph(2)
    forward = dataclasses.replace(job.edges[0], partition=PartitionSpec(PartitionKind.FORWARD))
    job = dataclasses.replace(job, edges=(forward,))
    assign(job, metadata(*both(2), channels=(channel(1, 1, "input"),)))
    with pytest.raises(SnapshotError, match="no longer connected"):
        assign(job, metadata(*both(2), channels=(channel(0, 1, "input"),)))


def test_the_slot_of_a_task_gets_its_restore() -> None:
    job = graph(2)
    restores = assign_state(job, RestorePoint(metadata(keyed_metadata(2)), ROOT), False)
    for subtask in range(2):
        slot = job.slot_of(VertexId(1), SubtaskIndex(subtask))
        assert [(t.vertex, t.subtask) for t in restores[slot].tasks] == [(1, subtask)]


# ---------------------------------------------------------------- inside chains


def linked(*names: str) -> JobGraph:
    """A chain whose operators read one another."""
    job = chain_of(*names)
    first, *others = job.vertices[0].operators
    nodes = (first, *(dataclasses.replace(node, link=ChainLink(i)) for i, node in enumerate(others)))
    return dataclasses.replace(job, vertices=(dataclasses.replace(job.vertices[0], operators=nodes),))


def link_key(*names: str) -> str:
    return "->".join(OperatorId(name.ljust(32, "0")) for name in names)


def test_records_inside_a_chain_go_back_to_where_they_waited() -> None:
    waited = channel(0, 0, CHAIN, key=link_key("a", "b"))
    tasks = assign(linked("a", "b", "c"), metadata(stateful("a"), stateful("b"), channels=(waited,)))
    assert tasks[0, 0].channels == [waited]


def test_records_inside_a_chain_that_is_another_now_are_refused_unless_they_may_be_dropped() -> None:
    snapshot = metadata(stateful("a"), stateful("b"), channels=(channel(0, 0, CHAIN, key=link_key("a", "b")),))
    with pytest.raises(UnmovableRecordsError, match=r"in-flight records of the chain a0+->b0+.*chained differently"):
        assign(linked("a", "c", "b"), snapshot)
    assert not any(task.channels for task in assign(linked("a", "c", "b"), snapshot, allow=True).values())


def test_records_inside_a_chain_are_not_moved_to_other_subtasks() -> None:
    wide = operator_metadata(OperatorId("b".ljust(32, "0")), *[operator(OperatorId("b".ljust(32, "0")))] * 2)
    snapshot = metadata(stateful("a"), wide, channels=(channel(1, 1, CHAIN, key=link_key("a", "b")),))
    with pytest.raises(UnmovableRecordsError, match=r"waited inside a chain, for 'b'.*from 2 to 1.*parallelism 2"):
        assign(linked("a", "b"), snapshot)
