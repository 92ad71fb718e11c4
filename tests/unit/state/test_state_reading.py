"""Reading keyed state from outside of its operator, live and from snapshots, against a model; it changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.state.backends import KINDS, Backends, FakeClock, settle
from tests.unit.state.memory_sink import MemorySink
from tidegate.common.ids import CheckpointId
from tidegate.common.time import Time
from tidegate.contracts.functions import AggregateFunction
from tidegate.contracts.window import TimeWindow
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.state.read_budget import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_PARTS,
    BudgetSpentError,
    ReadBudget,
    TooLargeToReadError,
)
from tidegate.state.reading import (
    AS_STORED,
    Found,
    KeyReader,
    ReadRules,
    key_types_of,
    resolve,
    scan,
    strange_key,
)
from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.snapshot_tables import ChunkCache, ChunkTables, SnapshotReader
from tidegate.taskmanager.operators.window_base import LAYOUTS

OPTIONS = ("value", "list", "map", "reducing", "aggregating", "windowed")
KEYS: list[Any] = [*range(8), "a", "b", ("t", 1), 2.5]


def read_key(tables: Any, table: Any, key: Any, window: Any, rules: ReadRules = AS_STORED) -> Found:
    return KeyReader(tables, table, [key], ReadBudget(), rules).read([key], window)[0]


def is_strange_key(table: Any, key: Any) -> bool:
    return strange_key(table, [Found(key, [])]) is not None


class Mean(AggregateFunction):
    """Its accumulator is a list, and `get_result` does what it should not: it changes it."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[int]) -> float:
        accumulator.sort(reverse=True)
        total = sum(accumulator) / len(accumulator)
        accumulator.clear()
        return total

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b


@pytest.fixture(params=KINDS)
def backends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backends]:
    made = Backends(request.param, str(tmp_path), FakeClock())
    yield made
    made.dispose()


class Model:
    """Random changes of one state of each kind, and what it holds then."""

    def __init__(self, backend: Any, seed: int) -> None:
        self.backend = backend
        self.random = random.Random(seed)
        self.value = backend.get_state(ValueStateDescriptor("value"))
        self.list = backend.get_state(ListStateDescriptor("list"))
        self.map = backend.get_state(MapStateDescriptor("map"))
        self.reducing = backend.get_state(ReducingStateDescriptor("reducing", lambda a, b: a + b))
        self.aggregating = backend.get_state(AggregatingStateDescriptor("aggregating", Mean()))
        self.windowed = backend.get_state(ListStateDescriptor("windowed"), namespaced=True)
        self.holds: dict[str, dict[Any, Any]] = {name: {} for name in OPTIONS}

    def change(self) -> None:
        rng, holds = self.random, self.holds
        key = self.backend.current_key = rng.choice(KEYS)
        number, start = rng.randrange(100), rng.randrange(3) * 10
        window = self.backend.current_namespace = TimeWindow(start, start + 10)
        name = rng.choice(OPTIONS)
        if rng.random() < 0.15:
            getattr(self, name).clear()
            holds[name].pop((key, window) if name == "windowed" else key, None)
        elif name == "value":
            self.value.update(number)
            holds[name][key] = number
        elif name == "map":
            self.map.put(number % 5, number)
            holds[name].setdefault(key, {})[number % 5] = number
        elif name == "windowed":
            self.windowed.add(number)
            holds[name].setdefault((key, window), []).append(number)
        elif name == "list":
            self.list.add(number)
            holds[name].setdefault(key, []).append(number)
        else:
            getattr(self, name).add(number)
            holds[name].setdefault(key, []).append(number)

    def expected(self, name: str, key: Any, live: bool) -> list[tuple[Any, Any]]:
        held = self.holds[name]
        if name == "windowed":
            return sorted((window, elements) for (k, window), elements in held.items() if k == key)
        if key not in held:
            return []
        numbers = held[key]
        if name == "reducing":
            return [(None, sum(numbers))]
        if name == "aggregating" and live:
            return [(None, sum(numbers) / len(numbers))]
        return [(None, numbers)]

    def check(self, tables: Any, live: bool) -> None:
        for name in OPTIONS:
            table = resolve(tables, name)
            if table is None:
                assert not self.holds[name]
                continue
            rules = {"rules": self.backend.read_rules(name)} if live else {}
            for key in KEYS:
                found = read_key(tables, table, key, None, **rules)
                assert sorted(found.values) == self.expected(name, key, live), (name, key)
            seen = scan(table, 1000, ReadBudget(), **rules)
            assert len(seen) == len(self.holds[name]), name
            for one in seen:
                expected = self.expected(name, one.key, live)
                assert all(value in expected for value in one.values), (name, one)


@pytest.mark.parametrize("seed", range(3))
def test_live_and_committed_reads_are_what_a_model_says(backends: Backends, seed: int) -> None:
    backend = backends.make()
    model = Model(backend, seed)
    sink, reader = MemorySink(), SnapshotReader()
    for checkpoint in range(1, 7):
        for _ in range(60):
            model.change()
            if model.random.random() < 0.1:
                backend.end_of_batch()
        model.check(backend, live=True)
        writer = backend.snapshot(CheckpointId(checkpoint))
        model.check(backend, live=True)  # frozen, and not written yet
        before = {name: {k: _copy(v) for k, v in held.items()} for name, held in model.holds.items()}
        model.change()
        snapshot = writer.write(sink)
        backend.notify_checkpoint_complete(CheckpointId(checkpoint))
        model.check(backend, live=True)
        model.holds, now = before, model.holds
        model.check(reader.tables("", "op", "op", snapshot, 128, sink), live=False)
        model.holds = now
    reader.close()


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else value


def test_only_what_a_checkpoint_has_written_is_fetched_for_it(backends: Backends) -> None:
    backend = backends.make()
    state = backend.get_state(ValueStateDescriptor("value"))
    for key in range(3000):
        backend.current_key = key
        state.update("x" * 50)
    sink, reader = MemorySink(), SnapshotReader()
    fetched = []
    for checkpoint in (1, 2):
        backend.current_key = 5
        state.update(checkpoint)
        snapshot = backend.snapshot(CheckpointId(checkpoint)).write(sink)
        backend.notify_checkpoint_complete(CheckpointId(checkpoint))
        reads: list[Any] = []
        source = _Counting(sink, reads)
        tables = reader.tables("", "op", "op", snapshot, 128, source)
        table = resolve(tables, "value")
        assert table is not None
        assert [read_key(tables, table, key, None).values for key in (5, 7)] == [
            [(None, checkpoint)],
            [(None, "x" * 50)],
        ]
        assert reader.tables("", "op", "op", snapshot, 128, source) is not None
        fetched.append(sum(len(data) for data in reads))
    assert 0 < fetched[1] < fetched[0] / 3
    reader.close()


class _Counting:
    def __init__(self, sink: MemorySink, reads: list[Any]) -> None:
        self._sink, self._reads = sink, reads

    def read(self, handle: Any) -> bytes:
        self._reads.append(self._sink.read(handle))
        return self._reads[-1]


def test_what_has_expired_is_not_shown_and_reading_is_no_access(backends: Backends) -> None:
    backend = backends.make()
    clock = backends.clock
    assert isinstance(clock, FakeClock)
    ttl = (
        StateTtlConfig.new_builder(Time.milliseconds(100))
        .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
        .build()
    )
    descriptors = ValueStateDescriptor("value"), ListStateDescriptor("list"), MapStateDescriptor("map")
    states = []
    for descriptor in descriptors:
        descriptor.enable_time_to_live(ttl)
        states.append(backend.get_state(descriptor))
    backend.current_key = "k"
    states[0].update(1)
    states[1].add(1)
    states[2].put("a", 1)
    clock.now += 60
    states[1].add(2)
    states[2].put("b", 2)
    settle(backend)

    def seen() -> list[Any]:
        found = []
        for name in ("value", "list", "map"):
            table = resolve(backend, name)
            assert table is not None
            found.append(read_key(backend, table, "k", None, backend.read_rules(name)).values)
        return found

    assert seen() == [[(None, 1)], [(None, [1, 2])], [(None, {"a": 1, "b": 2})]]
    clock.now += 60  # had the reading above been an access, nothing would have expired
    assert seen() == [[], [(None, [2])], [(None, {"b": 2})]]
    clock.now += 60
    assert seen() == [[], [], []]
    sink = MemorySink()
    part = backend.snapshot(CheckpointId(1)).write(sink)
    assert {info.ttl_ms for info in part.states} == {100}


def test_a_look_leaves_the_cache_of_rocksdb_alone(tmp_path: Path) -> None:
    backends = Backends("rocksdb", str(tmp_path))
    backend = backends.make()
    model = Model(backend, 7)
    for _ in range(200):
        model.change()
    settle(backend)
    model.check(backend, live=True)
    tables = [backend.readable(name) for name in OPTIONS]
    assert all(not len(table.recent) and not table.delta for table in tables)  # type: ignore[union-attr]
    backends.dispose()


def test_large_entries_are_refused(backends: Backends) -> None:
    backend = backends.make()
    elements, entries = backend.get_state(ListStateDescriptor("list")), backend.get_state(MapStateDescriptor("map"))
    backend.current_key = 1
    elements.add_all(list(range(MAX_PARTS + 1)))
    entries.put_all(dict.fromkeys(range(MAX_PARTS + 1), 0))
    for settled in (False, True):
        if settled:
            settle(backend)
        for name in ("list", "map"):
            table = resolve(backend, name)
            assert table is not None
            with pytest.raises(TooLargeToReadError, match=f"'{name}'.*10,000"):
                read_key(backend, table, 1, None)


def _values(backend: Any, name: str, keys: list[Any], budget: ReadBudget) -> list[list[tuple[Any, Any]]]:
    table = resolve(backend, name)
    assert table is not None
    return [found.values for found in KeyReader(backend, table, keys, budget).read(keys, None)]


@pytest.mark.parametrize("settled", [False, True])
def test_what_all_keys_of_a_look_read_is_bounded(backends: Backends, settled: bool) -> None:
    backend = backends.make()
    elements, entries = backend.get_state(ListStateDescriptor("list")), backend.get_state(MapStateDescriptor("map"))
    value = backend.get_state(ValueStateDescriptor("value"))
    keys = list(range(MAX_ENTRIES // 5_000 + 1))
    for backend.current_key in keys:
        elements.add_all(list(range(5_000)))
        entries.put_all(dict.fromkeys(range(5_000), 0))
        value.update("x" * (MAX_BYTES // (len(keys) - 1)))
    if settled:
        settle(backend)
    for name, why in (("list", "200,000 entries"), ("map", "200,000 entries"), ("value", "4 MiB")):
        with pytest.raises(BudgetSpentError, match=f"'{name}' takes a look at more than {why}.*fewer keys"):
            _values(backend, name, keys, ReadBudget())
        assert all(_values(backend, name, keys[:5], ReadBudget()))
        assert all(_values(backend, name, keys[:1] * 1000, ReadBudget()))  # a key that comes again is read once
        with pytest.raises(BudgetSpentError):
            scan(resolve(backend, name), 1000, ReadBudget())  # type: ignore[arg-type]


def test_windows_of_many_keys_are_found_in_one_scan(backends: Backends) -> None:
    backend = backends.make()
    windowed = backend.get_state(ValueStateDescriptor("windowed"), namespaced=True)
    keys, windows = list(range(300)), [TimeWindow(start, start + 1) for start in range(4)]
    for backend.current_key in keys:
        for backend.current_namespace in windows:
            windowed.update(1)
    budget = ReadBudget()
    assert {len(values) for values in _values(backend, "windowed", keys, budget)} == {4}
    assert budget.entries <= 3 * 300 * 4


def test_a_scan_of_what_was_deleted_takes_a_bounded_time(backends: Backends) -> None:
    backend = backends.make()
    state = backend.get_state(ValueStateDescriptor("value"))
    for backend.current_key in range(20_000):
        state.update(1)
    settle(backend)
    for backend.current_key in range(20_000):
        state.clear()
    budget = ReadBudget()
    table = resolve(backend, "value")
    assert table is not None
    assert scan(table, 1, budget) == []
    assert budget.entries < 2_000
    assert not is_strange_key(table, 5)


def test_a_chunk_is_read_once_for_all_keys_of_a_look_at_a_checkpoint() -> None:
    backend = Backends("heap", "").make()
    value = backend.get_state(ValueStateDescriptor("value"))
    windowed = backend.get_state(ValueStateDescriptor("windowed"), namespaced=True)
    backend.current_namespace = TimeWindow(0, 1)
    sink = MemorySink()
    for checkpoint in range(1, 5):
        for backend.current_key in range(checkpoint * 10):
            value.update(checkpoint)
            windowed.update(checkpoint)
        snapshot = backend.snapshot(CheckpointId(checkpoint)).write(sink)
        backend.notify_checkpoint_complete(CheckpointId(checkpoint))
    cache = ChunkCache(limit=0)
    chunks = sum(chunk.state == "value" for increment in snapshot.increments for chunk in increment.chunks)
    assert chunks > 1
    keys = [0, 39, *range(100, 200)]
    for name, namespace in (("value", None), ("windowed", TimeWindow(0, 1))):
        tables = ChunkTables("", "op", snapshot, sink, cache)
        table = tables.readable(name)
        assert table is not None
        before = cache.reads
        if namespace is None:
            table.expect(keys)
        found = KeyReader(tables, table, keys, ReadBudget()).read(keys, None)
        assert [one.values for one in found] == [[(namespace, 4)]] * 2 + [[]] * 100
        assert cache.reads - before <= chunks


def test_the_number_of_entries_is_exact_on_the_heap_and_near_in_rocksdb(backends: Backends) -> None:
    backend = backends.make()
    value, other = backend.get_state(ValueStateDescriptor("value")), backend.get_state(ValueStateDescriptor("other"))
    for key in range(1000):
        backend.current_key = key
        value.update(key)
        if key % 10 == 0:
            other.update("y" * 100)
    settle(backend)
    for key in range(0, 1010, 2):  # some are changed, some deleted, some new
        backend.current_key = key
        if key % 4 and key < 1000:
            value.clear()
        else:
            value.update(0)
    figures = backend.figures()
    if backends.kind == "heap":
        assert (figures["value"].entries, figures["other"].entries) == (755, 100)
        assert figures["value"].exact
        assert figures["other"].bytes > 100 * 100
    else:
        assert not figures["value"].exact
        settle(backend)
        after = backend.figures()
        assert 600 < after["value"].entries < 1600
        assert 50 < after["other"].entries < 400
        assert after["value"].bytes > 0


def test_a_scan_passes_over_key_groups_without_entries(tmp_path: Path) -> None:
    backend = RocksDBKeyedStateBackend("op", (0, 32768), 32768, SlotResources(), True, FakeClock())
    one, two = backend.get_state(ValueStateDescriptor("one")), backend.get_state(ValueStateDescriptor("two"))
    for key in range(100):
        backend.current_key = key
        (one if key % 3 else two).update(key)
    settle(backend)
    table = backend.readable("two")
    assert table is not None
    scans: list[Any] = []
    scan_of = backend._database.scan
    backend._database.scan = lambda first, end: scans.append(first) or scan_of(first, end)  # type: ignore[func-returns-value,method-assign]
    assert sorted(table.peek_entries()) == list(range(0, 100, 3))
    assert len(scans) < 300
    backend.dispose()


def test_keys_of_other_types_are_strange(backends: Backends) -> None:
    backend = backends.make()
    state = backend.get_state(ValueStateDescriptor("value"))
    table = resolve(backend, "value")
    assert table is not None
    assert not is_strange_key(table, "5")  # nothing is there to compare with
    backend.current_key = 5
    state.update(1)
    assert is_strange_key(table, "5")
    assert not is_strange_key(table, 6)
    assert not is_strange_key(table, 6.0)
    assert key_types_of(table) == ("int",)


def test_the_layouts_of_windows_are_those_of_the_window_operators() -> None:
    from tidegate.state.reading import WINDOW_LAYOUTS

    assert set(WINDOW_LAYOUTS) == set(LAYOUTS)
