"""Snapshots: what they hold, increments, restoring at another parallelism and into another backend."""

from __future__ import annotations

import pytest

from tests.unit.state.backend_contract.states import (
    LIST,
    MAP,
    VALUE,
    at,
    contents,
    fill,
)
from tests.unit.state.backends import KINDS, settle
from tidegate.common.errors import SnapshotError
from tidegate.datastream.state import (
    ValueStateDescriptor,
)
from tidegate.state.entries import iterate_snapshot
from tidegate.state.key_groups import key_group
from tidegate.storage.handles import handle_size


def test_a_snapshot_holds_what_was_there_when_it_was_taken(backends, sink):
    backend = backends.make()
    fill(backend, range(50))
    expected = contents(backend)
    writer = backend.snapshot(1)
    fill(backend, range(25, 80), lambda key: -key)
    at(backend, 3)
    backend.get_state(LIST).clear()
    snapshot = writer.write(sink)
    assert contents(backends.restored([snapshot], sink)) == expected


def test_increments_restore_exactly_and_store_little(backends, sink):
    backend = backends.make()
    fill(backend, range(20_000))
    first = backend.snapshot(1).write(sink)
    backend.notify_checkpoint_complete(1)
    full_bytes = sum(map(len, sink.files.values()))
    before = set(sink.files)
    fill(backend, range(100, 200), lambda key: key * 1000)
    at(backend, 150)
    backend.get_state(MAP).clear()
    expected = contents(backend)
    second = backend.snapshot(2).write(sink)
    new_bytes = sum(len(data) for path, data in sink.files.items() if path not in before)
    assert new_bytes < full_bytes / 20
    assert contents(backends.restored([second], sink)) == expected
    assert set(map(str, first.handles())) & set(map(str, second.handles()))
    assert sum(map(handle_size, second.inherited_handles(2))) > full_bytes / 2


def test_without_increments_every_snapshot_stands_alone(backends, sink):
    backend = backends.make(incremental=False)
    for number in (1, 2):
        fill(backend, range(number))
        snapshot = backend.snapshot(number).write(sink)
        backend.notify_checkpoint_complete(number)
        assert not list(snapshot.inherited_handles(number))


def test_nothing_builds_on_a_full_snapshot_that_was_asked_for(backends, sink):
    backend = backends.make()
    fill(backend, range(1000))
    backend.snapshot(1).write(sink)
    backend.notify_checkpoint_complete(1)
    savepoint = backend.snapshot(2, full=True).write(sink)
    backend.notify_checkpoint_complete(2)
    assert not list(savepoint.inherited_handles(2))
    fill(backend, range(5))
    third = backend.snapshot(3).write(sink)
    mine = {str(h) for h in third.handles()}
    assert mine & {str(h) for h in third.inherited_handles(3)}
    assert not mine & {str(h) for h in savepoint.handles()}


def test_what_an_aborted_checkpoint_held_is_in_the_next_one(backends, sink):
    backend = backends.make()
    fill(backend, range(100))
    backend.snapshot(1).write(sink)
    backend.notify_checkpoint_complete(1)
    fill(backend, range(100, 110))
    written = backend.snapshot(2).write(sink)
    fill(backend, range(110, 120))
    backend.snapshot(3)  # aborted before it was written
    backend.notify_checkpoint_aborted(2)
    backend.notify_checkpoint_aborted(3)
    for handle in written.handles():
        if handle not in list(written.inherited_handles(2)):
            sink.files.pop(handle.path, None)
    fourth = backend.snapshot(4).write(sink)
    assert contents(backends.restored([fourth], sink)) == contents(backend)


def test_checkpoints_may_overlap_and_be_confirmed_late(backends, sink):
    backend = backends.make()
    writers = []
    for number in (1, 2, 3):
        fill(backend, range(number * 10))
        writers.append((backend.snapshot(number), contents(backend)))
    snapshots = [writer.write(sink) for writer, _ in reversed(writers)][::-1]
    backend.notify_checkpoint_complete(2)
    backend.notify_checkpoint_complete(1)
    backend.notify_checkpoint_complete(3)
    for snapshot, (_, expected) in zip(snapshots, writers, strict=True):
        assert contents(backends.restored([snapshot], sink)) == expected


@pytest.mark.parametrize("continue_chain", [True, False])
def test_a_restored_backend_goes_on(backends, sink, continue_chain):
    backend = backends.make()
    fill(backend, range(500))
    snapshot = backend.snapshot(1).write(sink)
    again = backends.restored([snapshot], sink, continue_chain=continue_chain)
    fill(again, range(490, 600), lambda key: (key, "again"))
    second = again.snapshot(2).write(sink)
    assert bool(list(second.inherited_handles(2))) is continue_chain
    assert contents(backends.restored([second], sink)) == contents(again)
    assert len(contents(again)) == 6 * 600


@pytest.mark.parametrize("old", [1, 2, 3])
@pytest.mark.parametrize("new", [1, 2, 4])
def test_key_groups_move_to_the_new_subtasks(backends, sink, old, new):
    def ranges(parallelism):
        return [(128 * i // parallelism, 128 * (i + 1) // parallelism) for i in range(parallelism)]

    snapshots, expected = [], {}
    for groups in ranges(old):
        backend = backends.make(groups)
        if groups[0]:
            backend.get_state(ValueStateDescriptor("only here"))  # so that states have other numbers
        fill(backend, [key for key in range(600) if groups[0] <= key_group(key, 128) < groups[1]])
        settle(backend)
        fill(backend, [key for key in range(300) if groups[0] <= key_group(key, 128) < groups[1]])
        expected |= contents(backend)
        snapshots.append(backend.snapshot(1).write(sink))
    found = {}
    for groups in ranges(new):
        overlapping = [s for s in snapshots if s.key_group_start < groups[1] and groups[0] < s.key_group_end]
        backend = backends.restored(overlapping, sink, groups, continue_chain=True)
        mine = contents(backend)
        assert all(groups[0] <= key_group(key, 128) < groups[1] for _, key in mine)
        assert not found.keys() & mine.keys()
        found |= mine
        fill(backend, [key for key in range(10) if groups[0] <= key_group(key, 128) < groups[1]])
        assert contents(backends.restored([backend.snapshot(2).write(sink)], sink, groups)) == contents(backend)
    assert found == expected


@pytest.mark.parametrize("other", KINDS)
def test_a_snapshot_restores_into_any_backend(backends, sink, other):
    backend = backends.make()
    fill(backend, range(300))
    backend.snapshot(1).write(sink)
    backend.notify_checkpoint_complete(1)
    fill(backend, range(200, 320), lambda key: str(key))
    for key in range(50):
        at(backend, key, ("ns", key))
        for descriptor in (VALUE, LIST, MAP):
            backend.get_state(descriptor).clear()
    snapshot = backend.snapshot(2).write(sink)
    expected = contents(backend)
    assert contents(backends.restored([snapshot], sink, kind=other)) == expected
    halves = {}
    for groups in ((0, 64), (64, 128)):
        halves |= contents(backends.restored([snapshot], sink, groups, kind=other))
    assert halves == expected


def test_the_entries_of_a_snapshot_can_be_read_without_a_backend(backends, sink, tmp_path):
    backend = backends.make()
    fill(backend, range(40))
    snapshot = backend.snapshot(1).write(sink)
    entries = list(iterate_snapshot("op", snapshot, sink, tmp_path))
    assert {(e.key, e.value) for e in entries if e.state == "v"} == {(i, i) for i in range(40)}
    assert {e.key: e.value for e in entries if e.state == "m"} == {i: {i: i} for i in range(40)}
    assert {(e.key, e.namespace): e.value for e in entries if e.state == "w"} == {
        (i, ("ns", i)): [i] for i in range(40)
    }
    some = iterate_snapshot("op", snapshot, sink, tmp_path, key_groups=(0, 32), max_parallelism=128)
    assert {e.key for e in some if e.state == "v"} == {i for i in range(40) if key_group(i, 128) < 32}
    assert not list(tmp_path.glob("tidegate-snapshot-*"))


def test_damaged_parts_are_found(backends, sink):
    backend = backends.make()
    fill(backend, range(10))
    snapshot = backend.snapshot(1).write(sink)
    path = next(iter(snapshot.handles())).path
    sink.files[path] = sink.files[path][:-1]
    with pytest.raises(SnapshotError):
        backends.restored([snapshot], sink)


def test_state_that_the_job_no_longer_declares_is_kept(backends, sink):
    backend = backends.make()
    fill(backend, range(10))
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    again.get_state(ValueStateDescriptor("new"))
    third = backends.restored([again.snapshot(2).write(sink)], sink)
    assert contents(third) == contents(backend)
