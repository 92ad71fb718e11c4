"""Snapshots and restore of the heap backend: what they hold, what they do not, and how they fail."""

from __future__ import annotations

import pickle
import threading

import cloudpickle
import pytest

from tests.unit.state.memory_sink import MemorySink
from tidegate.common.errors import SerializationError, SnapshotError
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.heap.snapshot import CHUNK_ENTRIES
from tidegate.state.key_groups import key_group, key_group_range
from tidegate.storage.handles import KeyedIncrement, KeyedSnapshot, KeyedStateInfo


def make(max_increments=10, key_groups=(0, 128)):
    return HeapKeyedStateBackend("counter", key_groups, 128, max_increments)


def fill(backend, entries, name="v"):
    state = backend.get_state(ValueStateDescriptor(name))
    for key, value in entries.items():
        backend.current_key = key
        state.update(value)


def content(backend, name="v"):
    state = backend.get_state(ValueStateDescriptor(name))
    found = {}
    for key in backend.keys(name):
        backend.current_key = key
        found[key] = state.value()
    return found


def restored(snapshots, sink, key_groups=(0, 128), **kwargs):
    backend = make(key_groups=key_groups)
    backend.restore(snapshots, sink, **kwargs)
    backend.check_invariants()
    return backend


@pytest.fixture
def sink():
    return MemorySink()


def test_a_snapshot_restores_exactly(sink):
    entries = {1: "a", "x": 2.5, (1, "t"): (1, 2), b"b": [1, {"z": 2}]}
    backend = make()
    fill(backend, entries)
    assert content(restored([backend.snapshot(1).write(sink)], sink)) == entries


def test_what_happens_after_the_snapshot_is_not_in_it(sink):
    backend = make()
    lists = backend.get_state(ListStateDescriptor("l"))
    maps = backend.get_state(MapStateDescriptor("m"))
    values = backend.get_state(ValueStateDescriptor("v"))
    backend.current_key = "k"
    kept = [1]
    lists.update([1])
    maps.put("a", [1])
    values.update(kept)
    writer = backend.snapshot(1)
    lists.add(2)
    maps.get("a").append(2)
    maps.put("b", 1)
    kept.append(2)
    values.update(kept)
    other = restored([writer.write(sink)], sink)
    other.current_key = "k"
    assert list(other.get_state(ListStateDescriptor("l")).get()) == [1]
    assert dict(other.get_state(MapStateDescriptor("m")).items()) == {"a": [1]}
    assert other.get_state(ValueStateDescriptor("v")).value() == [1]
    assert list(lists.get()) == [1, 2]


@pytest.mark.parametrize("value", [1, (1, "a"), (1, [2]), [1], {"a": 1}, "s", None])
def test_only_values_that_cannot_change_are_pickled_later(value):
    from tidegate.state.heap.snapshot import freeze

    chunk = freeze("op", "s", ["k"], [value])[0]
    frozen_at_once = chunk._data is not None
    assert frozen_at_once == (not isinstance(value, int | str | None))
    assert pickle.loads(chunk.to_bytes("op")) == (["k"], [value])


def test_increments_hold_only_what_changed(sink):
    backend = make()
    fill(backend, {i: i for i in range(100)})
    first = backend.snapshot(1)
    assert first.full
    assert first.entries == 100
    first.write(sink)
    backend.notify_checkpoint_complete(1)
    fill(backend, {1: "one", 200: "new"})
    backend.current_key = 2
    backend.get_state(ValueStateDescriptor("v")).clear()
    second = backend.snapshot(2)
    assert (second.full, second.entries) == (False, 3)
    snapshot = second.write(sink)
    assert [i.checkpoint_id for i in snapshot.increments] == [1, 2]
    expected = {**{i: i for i in range(100)}, 1: "one", 200: "new"}
    del expected[2]
    assert content(restored([snapshot], sink)) == expected == content(backend)


def test_an_unconfirmed_or_aborted_snapshots_changes_go_into_the_next(sink):
    backend = make()
    fill(backend, {i: i for i in range(100)})
    backend.snapshot(1).write(sink)
    backend.notify_checkpoint_complete(1)
    fill(backend, {1: "aborted"})
    backend.snapshot(2).write(sink)
    backend.notify_checkpoint_aborted(2)
    fill(backend, {2: "unconfirmed"})
    backend.snapshot(3).write(sink)
    fill(backend, {3: "now"})
    fourth = backend.snapshot(4)
    assert fourth.entries == 3
    snapshot = fourth.write(sink)
    assert [i.checkpoint_id for i in snapshot.increments] == [1, 4]
    assert content(restored([snapshot], sink)) == content(backend)
    backend.notify_checkpoint_complete(4)
    assert backend.snapshot(5).entries == 0


def test_confirming_one_confirms_the_earlier_ones(sink):
    backend = make()
    fill(backend, {i: i for i in range(100)})
    writers = []
    for number in (1, 2, 3):
        fill(backend, {number: "changed"})
        writers.append(backend.snapshot(number))
    for writer in writers:
        writer.write(sink)
    backend.notify_checkpoint_complete(2)
    fourth = backend.snapshot(4)
    assert not fourth.full
    assert fourth.entries == 1  # key 3
    backend.notify_checkpoint_complete(1)  # late: ignored
    assert content(restored([fourth.write(sink)], sink)) == content(backend)


def test_every_snapshot_is_full_until_one_is_confirmed(sink):
    backend = make()
    fill(backend, {1: 1})
    assert backend.snapshot(1).full
    assert backend.snapshot(2).full


def test_a_chain_that_grows_long_is_replaced(sink):
    backend = make(max_increments=3)
    fill(backend, {i: i for i in range(1000)})
    lengths = []
    for number in range(1, 11):
        fill(backend, {number: -1})
        snapshot = backend.snapshot(number).write(sink)
        backend.notify_checkpoint_complete(number)
        lengths.append(len(snapshot.increments))
        assert content(restored([snapshot], sink)) == content(backend)
    assert lengths == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


def test_increments_that_outweigh_the_base_are_replaced(sink):
    backend = make()
    fullness = []
    for number in range(1, 6):
        fill(backend, dict.fromkeys(range(10), number))
        writer = backend.snapshot(number)
        fullness.append(writer.full)
        writer.write(sink)
        backend.notify_checkpoint_complete(number)
    assert fullness == [True, False, True, False, True]


def test_without_increments_every_snapshot_is_full(sink):
    backend = make(max_increments=0)
    for number in (1, 2, 3):
        fill(backend, {i: i for i in range(10)})
        assert len(backend.snapshot(number).write(sink).increments) == 1
        backend.notify_checkpoint_complete(number)


def test_nothing_changed_adds_no_increment(sink):
    backend = make(max_increments=2)
    fill(backend, {1: 1, 2: 2})
    for number in range(1, 10):
        snapshot = backend.snapshot(number).write(sink)
        backend.notify_checkpoint_complete(number)
        assert len(snapshot.increments) == 1
    assert len(sink.files) == 1


def test_no_increment_builds_on_a_savepoint(sink):
    backend = make()
    fill(backend, {i: i for i in range(10)})
    backend.snapshot(1).write(sink)
    backend.notify_checkpoint_complete(1)
    fill(backend, {1: "x"})
    savepoint = backend.snapshot(2, full=True)
    assert savepoint.full
    savepoint.write(sink)
    backend.notify_checkpoint_complete(2)
    fill(backend, {2: "y"})
    third = backend.snapshot(3).write(sink)
    assert [i.checkpoint_id for i in third.increments] == [1, 3]
    assert content(restored([third], sink)) == content(backend)


def test_large_states_are_cut_into_chunks(sink):
    backend = make()
    entries = {i: i for i in range(2 * CHUNK_ENTRIES + 1)}
    fill(backend, entries)
    snapshot = backend.snapshot(1).write(sink)
    assert [c.entries for c in snapshot.increments[0].chunks] == [CHUNK_ENTRIES, CHUNK_ENTRIES, 1]
    assert content(restored([snapshot], sink)) == entries


def test_rescaling_gives_each_key_to_exactly_one_subtask(sink):
    old = [make(key_groups=key_group_range(128, 3, i)) for i in range(3)]
    entries = {f"key-{i}": i for i in range(300)}
    for backend in old:
        start, end = backend.key_group_range
        own = {k: v for k, v in entries.items() if start <= key_group(k, 128) < end}
        fill(backend, own)
        state = backend.get_state(ListStateDescriptor("w"), namespaced=True)
        for key in own:
            backend.current_key, backend.current_namespace = key, "window"
            state.add(key)
    snapshots = [b.snapshot(1).write(sink) for b in old]
    for parallelism in (1, 2, 5):
        found = {}
        for subtask in range(parallelism):
            own_range = key_group_range(128, parallelism, subtask)
            new = restored(snapshots, sink, own_range, continue_chain=True)
            part = content(new)
            assert not found.keys() & part.keys()
            assert set(new.keys("w")) == set(part)
            assert new.snapshot(2).full or parallelism == 3
            found |= part
        assert found == entries


def test_the_chain_goes_on_after_restoring_the_own_snapshot(sink):
    backend = make()
    fill(backend, {i: i for i in range(10)})
    snapshot = backend.snapshot(1).write(sink)
    again = restored([snapshot], sink, continue_chain=True)
    fill(again, {3: "x"})
    second = again.snapshot(2).write(sink)
    assert [i.checkpoint_id for i in second.increments] == [1, 2]
    assert content(restored([second], sink)) == content(again)
    assert restored([snapshot], sink).snapshot(2).full


def test_restored_state_that_the_job_does_not_ask_for_is_kept(sink):
    backend = make()
    fill(backend, {1: 1}, "kept")
    first = backend.snapshot(1).write(sink)
    again = restored([first], sink)
    fill(again, {2: 2}, "other")
    third = restored([again.snapshot(2).write(sink)], sink)
    assert content(third, "kept") == {1: 1}
    assert content(third, "other") == {2: 2}


def test_another_kind_than_in_the_snapshot_is_refused(sink):
    backend = make()
    fill(backend, {1: 1})
    again = restored([backend.snapshot(1).write(sink)], sink)
    with pytest.raises(SnapshotError, match=r"'counter'.*'v' is a value state in the snapshot.*map state"):
        again.get_state(MapStateDescriptor("v"))


def test_a_value_that_cannot_be_pickled_is_named(sink):
    backend = make()
    fill(backend, {i: [i] for i in range(50)})
    fill(backend, {7: threading.Lock()})
    with pytest.raises(SerializationError, match=r"'counter'.*'v'.*key 7 .*lock"):
        backend.snapshot(1)
    fill(backend, {7: [7]})  # the failed snapshot lost nothing
    assert content(restored([backend.snapshot(2).write(sink)], sink)) == {i: [i] for i in range(50)}


def test_a_failed_increment_loses_nothing(sink):
    backend = make()
    fill(backend, {i: [i] for i in range(50)})
    backend.snapshot(1).write(sink)
    backend.notify_checkpoint_complete(1)
    fill(backend, {7: threading.Lock(), 8: ["changed"]})
    with pytest.raises(SerializationError):
        backend.snapshot(2)
    fill(backend, {7: [70]})
    third = backend.snapshot(3)
    assert (third.full, third.entries) == (False, 2)
    assert content(restored([third.write(sink)], sink)) == content(backend)


def test_classes_and_functions_that_plain_pickle_refuses_are_stored(sink):
    class Local:
        def __init__(self, x):
            self.x = x

    backend = make()
    fill(backend, {1: Local(5), 2: lambda x: x + 1})
    found = content(restored([backend.snapshot(1).write(sink)], sink))
    assert found[1].x == 5
    assert found[2](1) == 2


def test_what_cannot_be_unpickled_names_operator_and_state(sink):
    backend = make()
    fill(backend, {1: 1})
    snapshot = backend.snapshot(1).write(sink)
    handle = snapshot.increments[0].chunks[0].handle
    sink.files[handle.path] = b"cno_such_module\nThing\n."
    with pytest.raises(SnapshotError, match=r"'counter'.*'v'.*no_such_module"):
        restored([snapshot], sink)
    sink.files[handle.path] = cloudpickle.dumps(([1, 2], [1]))
    with pytest.raises(SnapshotError, match=r"2 keys and 1 values"):
        restored([snapshot], sink)


def test_foreign_and_broken_snapshots_are_refused(sink):
    info = KeyedStateInfo(name="v", kind="value")
    common = {"key_group_start": 0, "key_group_end": 128, "states": [info]}
    with pytest.raises(SnapshotError, match="rocksdb"):
        make().restore([KeyedSnapshot(backend="rocksdb", increments=[], **common)], sink)
    increment = KeyedIncrement(checkpoint_id=1, full=False, chunks=[])
    for increments in ([], [increment]):
        with pytest.raises(SnapshotError, match="does not begin with a full one"):
            make().restore([KeyedSnapshot(backend="heap", increments=increments, **common)], sink)


def test_a_table_of_another_kind_is_part_of_snapshots(sink):
    backend = make()
    info = KeyedStateInfo(name="timers", kind="timers", namespaced=True)
    backend.table(info).put(("k", "ns"), {5, 6})
    again = restored([backend.snapshot(1).write(sink)], sink)
    assert dict(again.table(info).live_items()) == {("k", "ns"): {5, 6}}
    again.table(info).remove(("k", "ns"))
    assert again.table(info).get(("k", "ns")) is None
