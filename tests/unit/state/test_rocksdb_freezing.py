"""What a RocksDB snapshot froze is what is in it, whatever happens before its asynchronous part has written it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from tests.unit.state.backends import Backends, settle
from tests.unit.state.memory_sink import MemorySink
from tidegate.common import Time
from tidegate.common.errors import SerializationError, SnapshotError, StateBackendError
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.state.rocksdb import tables
from tidegate.state.rocksdb.frozen import immutable
from tidegate.state.rocksdb.recent import ENTRY_COST, MISSING

VALUE, LIST, MAP = ValueStateDescriptor("v"), ListStateDescriptor("l"), MapStateDescriptor("m")


@pytest.fixture
def backends(tmp_path):
    made = Backends("rocksdb", str(tmp_path))
    yield made
    made.dispose()


class States:
    def __init__(self, backend):
        self.backend = backend
        self.value, self.list, self.map = (backend.get_state(d) for d in (VALUE, LIST, MAP))

    def at(self, key):
        self.backend.current_key = key
        return self

    def fill(self, key, n):
        """Mutable things, so that what is frozen has to be pickled."""
        self.at(key).value.update([n])
        self.list.add([n])
        self.map.put("k", [n])

    def of(self, key):
        self.at(key)
        content = dict(self.map.items())
        assert (self.map.get("k"), self.map.contains("k")) == (content.get("k"), "k" in content)
        assert self.map.is_empty() == (not content)
        return self.value.value(), list(self.list.get()), content


def read(backends, snapshot, sink, keys):
    states = States(backends.restored([snapshot], sink))
    return [states.of(key) for key in keys]


# ---------------------------------------------------------------- what is in a snapshot


@pytest.mark.parametrize("stored", [False, True], ids=["only in Python", "in RocksDB before"])
@pytest.mark.parametrize("newer", ["kept in Python", "written out"])
def test_what_is_changed_after_the_freeze_is_not_in_the_snapshot(backends, stored, newer):
    backend, sink = backends.make(), MemorySink()
    states = States(backend)
    for key in range(4):
        states.fill(key, 1)
    if stored:
        settle(backend)
        for key in range(4):
            states.fill(key, 2)
    frozen = [states.of(key) for key in range(4)]
    expected = [(v[:], [e[:] for e in els], {k: x[:] for k, x in m.items()}) for v, els, m in frozen]
    writer = backend.snapshot(1)
    value, elements, content = states.of(0)  # changed in place and put back
    for thing in (value, elements[0], content["k"]):
        thing.append("later")
    states.value.update(value)
    states.list.update(elements)
    states.map.put("k", content["k"])
    states.at(1).value.clear()
    states.list.clear()
    states.map.clear()
    states.at(2).list.add(["later"])
    states.map.remove("k")
    states.fill("new", 3)
    now = [states.of(key) for key in (0, 1, 2, 3, "new")]
    assert now[0] == (value, elements, content)
    assert now[1] == (None, [], {})
    assert now[2] == (expected[2][0], [*expected[2][1], ["later"]], {})
    assert now[3] == expected[3]
    if newer == "written out":
        settle(backend)
        assert [states.of(key) for key in (0, 1, 2, 3, "new")] == now
    snapshot = writer.write(sink)
    assert read(backends, snapshot, sink, [*range(4), "new"]) == [*expected, (None, [], {})]
    backend.end_of_batch()  # the frozen changes become recent ones
    settle(backend)
    assert [states.of(key) for key in (0, 1, 2, 3, "new")] == now
    backend.notify_checkpoint_complete(1)
    snapshot = backend.snapshot(2).write(sink)
    assert read(backends, snapshot, sink, (0, 1, 2, 3, "new")) == now


def test_a_snapshot_needs_no_access_to_the_database(backends, monkeypatch):
    backend = backends.make()
    states = States(backend)
    for key in range(100):
        states.fill(key, 1)
        states.value.update(key)
    database = backend._database
    for name in ("write", "checkpoint", "scan", "scan_keys"):
        monkeypatch.setattr(database, name, lambda *_: pytest.fail("the synchronous part reads or writes"))
    writer = backend.snapshot(1)
    monkeypatch.undo()
    assert len(writer.write(MemorySink()).files) > 0


def test_a_snapshot_frees_no_cached_entries_but_the_batches_after_it_do(backends):
    """Freeing all that has to make room for the frozen changes would be most of the synchronous part."""
    freed = []

    class Cached:
        def __del__(self):
            freed.append(1)

    backend = backends.make()
    state = backend.get_state(VALUE)
    recent = backend._tables["v"].recent
    recent._older = {("cached", i): Cached() for i in range(9_000)}
    backends.resources.table_bytes = 9_000 * ENTRY_COST
    backend.current_key = 1
    state.update(1)
    backend.snapshot(1)
    assert not freed
    assert recent.find(("cached", 1)) is MISSING
    for batch in range(1, 4):
        backend.end_of_batch()
        assert len(freed) == min(9_000, batch * 4096)


def test_the_helper_thread_writes_while_the_mailbox_goes_on(backends, monkeypatch):
    backend, sink = backends.make(), MemorySink()
    states = States(backend)
    for key in range(500):
        states.fill(key, 1)
    writer = backend.snapshot(1)
    reached, go_on = threading.Event(), threading.Event()
    checkpoint = backend._database.checkpoint

    def slow_checkpoint(path):
        reached.set()
        assert go_on.wait(60)
        checkpoint(path)

    monkeypatch.setattr(backend._database, "checkpoint", slow_checkpoint)
    written = []
    helper = threading.Thread(target=lambda: written.append(writer.write(sink)))
    helper.start()
    assert reached.wait(60)
    for key in range(500):
        assert states.of(key) == ([1], [[1]], {"k": [1]})
        states.at(key).value.update([2])
        states.map.put("k", [2])
        backend.end_of_batch()
    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    backend.flush()  # has to wait: nothing newer may get into the hard links
    helper.join()
    timer.join()
    assert read(backends, written[0], sink, range(500)) == [([1], [[1]], {"k": [1]})] * 500
    settle(backend)
    assert [states.of(key) for key in range(500)] == [([2], [[1]], {"k": [2]})] * 500


def test_concurrent_and_aborted_snapshots(backends):
    backend, sink = backends.make(), MemorySink()
    states = States(backend)
    writers = {}
    for number in range(1, 6):
        states.fill(1, number)
        writers[number] = backend.snapshot(number)
    backend.notify_checkpoint_aborted(2)
    del writers[2]
    for number in (5, 1, 3, 4):
        found = read(backends, writers[number].write(sink), sink, [1])
        assert found == [([number], [[n] for n in range(1, number + 1)], {"k": [number]})]


def test_nobody_wants_an_abandoned_snapshot_and_its_changes_stay(backends):
    backend = backends.make()
    states = States(backend)
    states.fill(1, 1)
    backend.snapshot(1)
    backend.notify_checkpoint_aborted(1)
    settle(backend)
    assert states.of(1) == ([1], [[1]], {"k": [1]})
    assert [p.name for p in backend.folder.iterdir()] == ["live"]


def test_a_value_that_cannot_be_pickled_leaves_everything_as_it_was(backends):
    backend, sink = backends.make(), MemorySink()
    states = States(backend)
    states.fill(1, 1)
    states.at(2).map.put("k", threading.Lock())
    with pytest.raises(SerializationError, match="key 2"):
        backend.snapshot(1)
    states.map.clear()
    assert states.of(1) == ([1], [[1]], {"k": [1]})
    assert read(backends, backend.snapshot(2).write(sink), sink, [1]) == [([1], [[1]], {"k": [1]})]


def test_writing_goes_on_where_an_error_stopped_it(backends, monkeypatch):
    """The chunks of a list would be there twice."""
    monkeypatch.setattr(tables, "BATCH_RECORDS", 3)
    backend, sink = backends.make(), MemorySink()
    states = States(backend)
    for key in range(10):
        states.at(key).list.add(key)
    database, batches = backend._database, []
    write = database.write

    def failing(batch):
        batches.append(batch)
        if len(batches) == 3:
            raise StateBackendError("disk full")
        write(batch)

    monkeypatch.setattr(database, "write", failing)
    writer = backend.snapshot(1)
    with pytest.raises(StateBackendError, match="disk full"):
        writer.write(sink)
    settle(backend)
    assert [states.of(key)[1] for key in range(10)] == [[key] for key in range(10)]


def test_a_snapshot_of_a_closed_task_says_so(backends):
    backend = backends.make()
    States(backend).fill(1, 1)
    writer = backend.snapshot(1)
    backend.dispose()
    with pytest.raises(SnapshotError, match=r"'op'.*closed"):
        writer.write(MemorySink())


def test_what_cannot_change():
    assert immutable([1, "a", None, 2.5, (1, ("a", (b"",)))])
    assert immutable([])
    for value in ([], {}, (1, []), (1, (2, {})), object(), {1}):
        assert not immutable([1, value])


# ---------------------------------------------------------------- writing back between batches


def test_changes_are_written_back_between_batches_and_snapshots_see_them(backends, monkeypatch):
    monkeypatch.setattr(tables, "MAX_CHANGES", 1024)
    monkeypatch.setattr(tables, "_DRAIN_RECORDS", 100)
    backend, sink = backends.make(), MemorySink()
    state = backend.get_state(VALUE)
    table = backend._tables["v"]
    drained = 0
    for step in range(60):
        for key in range(step * 50, step * 50 + 50):
            backend.current_key = key
            state.update(key)
            backend.current_key = key // 2
            state.update((state.value(), step))
        backend.current_key = key // 3
        state.clear()
        backend.end_of_batch()
        drained += bool(table.frozen)
        if table.frozen and drained % 9 == 1:
            model = {}
            for key in range(3000):
                backend.current_key = key
                model[key] = state.value()
            restored = backends.restored([backend.snapshot(step + 1).write(sink)], sink)
            again = restored.get_state(VALUE)
            for key, value in model.items():
                restored.current_key = backend.current_key = key
                assert again.value() == state.value() == value
            restored.dispose()
    assert drained > 10


# ---------------------------------------------------------------- prefetching


def first(record):
    return record[0]


@pytest.mark.parametrize(
    "make_key", [int, str, lambda i: (i, str(i)), lambda i: i * 2**70], ids=["int", "str", "tuple", "large int"]
)
@pytest.mark.parametrize("ttl", [False, True])
def test_a_prefetched_batch_reads_what_single_accesses_read(backends, make_key, ttl):
    """Read, written, cleared and read again in the same batch; with absent keys, repeated keys and other states."""
    backend = backends.make()
    descriptor = ValueStateDescriptor("v")
    if ttl:
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(1000)).build())
    state, elements, content = backend.get_state(descriptor), backend.get_state(LIST), backend.get_state(MAP)
    model, lists = {}, {}
    table = backend._tables["v"]
    gets = []
    get_many = backend._database.get_many
    backend._database.get_many = lambda keys: gets.append(len(keys)) or get_many(keys)
    for step in range(12):
        records = [(make_key(i * 7 % 300), i) for i in range(step * 100, step * 100 + 130)]
        backend.prefetch(first, records)
        for key, i in records:
            backend.current_key = key
            assert state.value() == model.get(key)
            model[key] = (model.get(key) or 0) + i if i % 3 else None
            state.update(model[key])
            assert state.value() == model[key]
            elements.add(i)
            lists.setdefault(key, []).append(i)
            assert list(elements.get()) == lists[key]
            content.put("sum", sum(lists[key]))
            if i % 11 == 0:
                state.clear()
                model[key] = None
                assert content.get("sum") == sum(lists[key])
        backend.end_of_batch()
        if ttl and step % 4 == 3:
            backends.clock.now += 1000
            model.clear()
        settle(backend)
    assert len(gets) > 4
    assert max(gets) > 20
    assert table.base.misses < 300


def test_nothing_is_prefetched_for_a_state_that_is_only_written_or_all_in_memory(backends):
    backend = backends.make()
    state = backend.get_state(VALUE)
    backend._database.get_many = lambda keys: pytest.fail("prefetched")
    records = [(i,) for i in range(200)]
    for step in range(200):
        backend.prefetch(lambda r: pytest.fail("the keys are not needed"), records)
        for i in range(200):
            backend.current_key = i
            if step > 5:
                assert state.value() == step - 1
            state.update(step)
        backend.end_of_batch()
        if step < 5:
            settle(backend)


def test_a_selector_that_fails_or_a_bad_key_is_left_to_the_operator(backends):
    backend = backends.make()
    state = backend.get_state(VALUE)
    for i in range(50):
        backend.current_key = i
        state.value()
    assert backend._tables["v"].may_prefetch
    backend.prefetch(lambda r: 1 / 0, [1, 2])
    backend.prefetch(lambda r: [], [1, 2])
    backend.prefetch(lambda r: object(), [1, 2] * 10)


# ---------------------------------------------------------------- closing


class LongCompaction:
    """A database handle whose compactions go on until the background work is cancelled."""

    def __init__(self, raw):
        self.raw = raw
        self.compacting, self.cancelled = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(self.raw, name)

    def compact_range(self, first, last):
        while not self.cancelled.is_set():
            self.raw.compact_range(first, last)
            self.compacting.set()
        self.raw.compact_range(first, last)  # and what RocksDB says then

    def cancel_all_background(self, wait):
        self.cancelled.set()
        self.raw.cancel_all_background(wait)


def open_files(folder):
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(link))
    return [path for path in found if path.startswith(str(folder))]


def test_a_task_that_is_closed_while_its_checkpoint_compacts_leaves_at_once(backends, tmp_path):
    backend, failures = backends.make(), []
    states = States(backend)
    for number in range(3):  # several files that hold the same keys: worth a compaction
        for key in range(300):
            states.fill(key, number)
        backend.flush()
        backend._database.raw.flush()
    states.fill(0, 4)
    database = backend._database
    handle = database.raw = LongCompaction(database.raw)
    writer = backend.snapshot(1)

    def write():
        try:
            writer.write(MemorySink())
        except Exception as error:
            failures.append(error)

    helper = threading.Thread(target=write, daemon=True)
    helper.start()
    assert handle.compacting.wait(60)
    closing = threading.Thread(target=backend.dispose, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    helper.join(30)
    assert not helper.is_alive()
    assert "closed" in str(failures)
    assert isinstance(failures[0], SnapshotError | StateBackendError)
    assert not list(tmp_path.iterdir())
    assert not open_files(tmp_path)
