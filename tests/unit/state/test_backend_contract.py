"""What every keyed state backend promises, one suite for all of them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import NamedTuple

import pytest
from backends import ALL, KINDS, Backends, FakeClock, settle
from memory_sink import MemorySink

from tidegate.common.errors import ConfigurationError, SerializationError, SnapshotError
from tidegate.common.time import Time
from tidegate.common.types import Row
from tidegate.datastream.functions import AggregateFunction
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.state.entries import iterate_snapshot
from tidegate.state.evolution import StateSchemaError
from tidegate.state.key_groups import key_group
from tidegate.storage.handles import KeyedStateInfo, handle_size


class Average(AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return [acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]]


VALUE, LIST, MAP = ValueStateDescriptor("v"), ListStateDescriptor("l"), MapStateDescriptor("m")
REDUCING = ReducingStateDescriptor("r", lambda a, b: a + b)
AGGREGATING = AggregatingStateDescriptor("a", Average())


@pytest.fixture(params=KINDS)
def backends(request, tmp_path):
    made = Backends(request.param, str(tmp_path / "local"))
    yield made
    made.dispose()
    assert not list((tmp_path / "local").glob("*"))


@pytest.fixture(params=["fresh", "settled"])
def settled(request):
    """A function to call between a write and a read: with the second parameter the read then comes from below."""
    return settle if request.param == "settled" else lambda backend: None


@pytest.fixture
def sink():
    return MemorySink()


def at(backend, key, namespace=None):
    backend.current_key, backend.current_namespace = key, namespace


# ---------------------------------------------------------------- the five kinds


def test_value_state(backends, settled):
    backend = backends.make()
    state = backend.get_state(VALUE)
    at(backend, "k")
    assert state.value() is None
    state.update({"a": [1]})
    settled(backend)
    assert state.value() == {"a": [1]}
    state.update(0)
    settled(backend)
    assert state.value() == 0
    at(backend, "other")
    assert state.value() is None
    at(backend, "k")
    state.update(None)
    settled(backend)
    assert state.value() is None
    state.clear()
    assert state.value() is None


def test_list_state(backends, settled):
    backend = backends.make()
    state = backend.get_state(LIST)
    at(backend, "k")
    assert list(state.get()) == []
    state.add(1)
    settled(backend)
    state.add(2)
    state.add_all([3, 4])
    settled(backend)
    assert list(state.get()) == [1, 2, 3, 4]
    state.add(5)
    assert list(state) == [1, 2, 3, 4, 5]
    settled(backend)
    for element in state.get():
        state.add(element)
    assert list(state.get()) == [1, 2, 3, 4, 5] * 2
    state.update([9, None])
    settled(backend)
    assert list(state.get()) == [9, None]
    state.update([])
    settled(backend)
    assert list(state.get()) == []
    assert list(backend.keys("l")) == []
    state.add("again")
    settled(backend)
    assert list(state.get()) == ["again"]
    state.clear()
    state.add("after")
    settled(backend)
    assert list(state.get()) == ["after"]


def test_a_list_written_in_many_steps_keeps_its_order(backends):
    backend = backends.make()
    state = backend.get_state(LIST)
    at(backend, "k")
    for i in range(300):
        state.add(i)
        settle(backend)
        if i % 100 == 50:
            assert list(state.get()) == list(range(i + 1))
    settle(backend)
    assert list(state.get()) == list(range(300))


def test_map_state(backends, settled):
    backend = backends.make()
    state = backend.get_state(MAP)
    at(backend, "k")
    assert state.is_empty()
    assert state.get("x") is None
    state.put("x", 1)
    state.put_all({"y": 2, "z": None})
    settled(backend)
    assert dict(state.items()) == {"x": 1, "y": 2, "z": None}
    assert sorted(state.keys()) == ["x", "y", "z"]
    assert sorted(v or 0 for v in state.values()) == [0, 1, 2]
    assert "z" in state
    assert state.get("z") is None
    assert "w" not in state
    del state["x"]
    state["y"] = 7
    settled(backend)
    assert dict(state.items()) == {"y": 7, "z": None}
    assert not state.is_empty()
    for key in state:
        state.remove(key)
    assert state.is_empty()
    settled(backend)
    assert state.is_empty()
    assert list(backend.keys("m")) == []
    state.put("x", 1)
    settled(backend)
    state.clear()
    state.put("new", 2)
    settled(backend)
    assert dict(state.items()) == {"new": 2}
    assert not state.contains("x")
    at(backend, "other")
    assert state.is_empty()


def test_map_keys_of_many_types_are_equal_as_in_a_dict(backends, settled):
    backend = backends.make()
    state = backend.get_state(MAP)
    at(backend, "k")
    state.put(1, "int")
    settled(backend)
    state.put(True, "bool")
    settled(backend)
    state.put((1, "a"), "tuple")
    state.put(Color.RED, "enum")
    settled(backend)
    assert state.get(1.0) == "bool"
    assert len(state.keys()) == 3
    assert state.get((True, "a")) == "tuple"
    assert {k for k in state if isinstance(k, Color)} == {Color.RED}


def test_reducing_state(backends, settled):
    backend = backends.make()
    state = backend.get_state(REDUCING)
    at(backend, "k")
    assert state.get() is None
    for i in (1, 2, 3):
        state.add(i)
        settled(backend)
    assert state.get() == 6
    state.clear()
    settled(backend)
    assert state.get() is None


def test_aggregating_state(backends, settled):
    backend = backends.make()
    state = backend.get_state(AGGREGATING)
    at(backend, "k")
    assert state.get() is None
    for i in (1, 2, 6):
        state.add(i)
        settled(backend)
    assert state.get() == 3
    state.clear()
    settled(backend)
    assert state.get() is None


def test_namespaces_are_apart(backends, settled):
    backend = backends.make()
    states = [backend.get_state(d, namespaced=True) for d in (VALUE, LIST, MAP)]
    for namespace in ((0, 10), (10, 20), None):
        at(backend, "k", namespace)
        states[0].update(namespace)
        states[1].add(namespace)
        states[2].put(1, namespace)
    settled(backend)
    for namespace in ((0, 10), (10, 20), None):
        at(backend, "k", namespace)
        assert states[0].value() == namespace
        assert list(states[1].get()) == [namespace]
        assert dict(states[2].items()) == {1: namespace}
        states[1].clear()
    settled(backend)
    assert list(backend.keys("l")) == []
    assert list(backend.keys("m")) == ["k"]


# ---------------------------------------------------------------- keys


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Sensor:
    site: str
    number: int


KEYS = [
    0,
    -5,
    2**70,
    1.5,
    "",
    "k",
    "k\0",
    "kk",
    "\udcff",
    b"",
    b"k",
    None,
    (),
    (1, "a"),
    (1, ("a", None)),
    decimal.Decimal("0.1"),
    Color.RED,
    Sensor("a", 1),
    Row(a=1, b="x"),
    datetime.datetime(2024, 1, 2, 3, 4, 5),
    datetime.date(2024, 1, 2),
    datetime.timedelta(seconds=1),
    uuid.UUID(int=7),
    Point(3, 4),
    True,
    frozenset({1, 2}),
]


def test_keys_of_all_types_are_told_apart_and_come_back_as_they_were(backends, settled, sink):
    backend = backends.make()
    state, elements, content = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
    for number, key in enumerate(KEYS):
        at(backend, key)
        state.update(number)
        elements.add(number)
        content.put(key, number)
    settled(backend)
    for number, key in enumerate(KEYS):
        at(backend, key)
        assert state.value() == number
        assert list(elements.get()) == [number]
        assert content.items() == [(key, number)]
    for name in "vlm":
        found = list(backend.keys(name))
        assert len(found) == len(KEYS)
        assert sorted(map(repr, found)) == sorted(map(repr, KEYS))
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    assert sorted(map(repr, again.keys("v"))) == sorted(map(repr, KEYS))


def test_equal_keys_are_one_key(backends, settled):
    backend = backends.make()
    state = backend.get_state(REDUCING)
    utc, cet = datetime.UTC, datetime.timezone(datetime.timedelta(hours=1))
    noon = datetime.datetime(2024, 1, 1, 12, tzinfo=utc)
    for same in ([1, 1.0, True, decimal.Decimal(1)], [0.5, decimal.Decimal("0.5")], [noon, noon.astimezone(cet)]):
        for key in same:
            at(backend, key)
            state.add(1)
            settled(backend)
        assert state.get() == len(same)


# ---------------------------------------------------------------- large and many


def test_large_values(backends, settled, sink):
    backend = backends.make()
    state, elements = backend.get_state(VALUE), backend.get_state(LIST)
    large = [bytes([i]) * (3 << 20) for i in range(4)]
    for i, value in enumerate(large):
        at(backend, i)
        state.update(value)
        elements.add_all([value, value])
    settled(backend)
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    state, elements = again.get_state(VALUE), again.get_state(LIST)
    for i, value in enumerate(large):
        at(again, i)
        assert state.value() == value
        assert list(elements.get()) == [value, value]


def test_many_states(backends, sink):
    backend = backends.make()
    states = [backend.get_state(ValueStateDescriptor(f"s{i}")) for i in range(300)]
    for i, state in enumerate(states):
        for key in range(3):
            at(backend, key)
            state.update((i, key))
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    for i in reversed(range(300)):
        state = again.get_state(ValueStateDescriptor(f"s{i}"))
        for key in range(3):
            at(again, key)
            assert state.value() == (i, key)


def test_more_entries_than_any_cache_holds(backends, sink):
    backend = backends.make()
    state, content = backend.get_state(VALUE), backend.get_state(MAP)
    at(backend, "big")
    content.put_all({i: i for i in range(70_000)})
    for i in range(70_000):
        backend.current_key = i
        state.update(-i)
    for i in range(0, 70_000, 7):
        backend.current_key = i
        assert state.value() == -i
        state.clear()
    assert sum(1 for _ in backend.keys("v")) == 60_000
    at(backend, "big")
    assert dict(content.items()) == {i: i for i in range(70_000)}
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    assert set(again.keys("v")) == {i for i in range(70_000) if i % 7}


def test_a_table_of_another_kind(backends, settled, sink):
    backend = backends.make()
    info = KeyedStateInfo(name="_timers", kind="timers", namespaced=True)
    table = backend.table(info)
    table.put(("k", (None, 5)), True)
    table.put(("k", ((0, 10), 9)), True)
    settled(backend)
    table.remove(("k", (None, 5)))
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    assert list(again.table(info).live_keys()) == [("k", ((0, 10), 9))]
    assert again.table(info).get(("k", ((0, 10), 9))) is True
    assert again.table(info).get(("k", (None, 5))) is None


# ---------------------------------------------------------------- declarations and errors


def test_a_name_stands_for_one_state(backends):
    backend = backends.make()
    assert backend.get_state(VALUE) is backend.get_state(ValueStateDescriptor("v"))
    with pytest.raises(ConfigurationError, match=r"'op'.*'v'.*value state and as a list state"):
        backend.get_state(ListStateDescriptor("v"))
    with pytest.raises(ConfigurationError, match="per window"):
        backend.get_state(ValueStateDescriptor("v"), namespaced=True)


def test_state_without_a_current_key_is_refused(backends):
    state = backends.make().get_state(VALUE)
    with pytest.raises(ConfigurationError, match=r"'op'.*no current key"):
        state.value()


def test_another_kind_than_in_the_snapshot_is_refused(backends, sink):
    backend = backends.make()
    backend.get_state(VALUE)
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    with pytest.raises(StateSchemaError, match=r"'v' is a value state in the snapshot.*list state"):
        again.get_state(ListStateDescriptor("v"))  # of this class, since a restart cannot help
    lasting = ValueStateDescriptor("v")
    lasting.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    with pytest.raises(StateSchemaError, match="without a time to live"):
        again.get_state(lasting)


def test_a_value_that_cannot_be_pickled_is_named(backends, sink):
    backend = backends.make()
    state = backend.get_state(VALUE)
    at(backend, "culprit")
    state.update(x for x in ())
    with pytest.raises(SerializationError, match=r"'op'.*'v'.*culprit.*generator"):
        backend.snapshot(1).write(sink)


# ---------------------------------------------------------------- snapshots


def fill(backend, keys, value=lambda key: key):
    states = [backend.get_state(d) for d in (VALUE, LIST, MAP, REDUCING, AGGREGATING)]
    windows = backend.get_state(ListStateDescriptor("w"), namespaced=True)
    for key in keys:
        at(backend, key, ("ns", key))
        states[0].update(value(key))
        states[1].update([value(key), key])
        states[2].put(value(key), key)
        states[3].add(key)
        states[4].add(key)
        windows.add(value(key))


def contents(backend):
    found = {}
    read = {
        VALUE: lambda s: s.value(),
        LIST: lambda s: list(s.get()),
        MAP: lambda s: dict(s.items()),
        REDUCING: lambda s: s.get(),
        AGGREGATING: lambda s: s.get(),
    }
    for descriptor, get in read.items():
        state = backend.get_state(descriptor)
        for key in list(backend.keys(descriptor.name)):
            at(backend, key)
            found[descriptor.name, key] = get(state)
    windows = backend.get_state(ListStateDescriptor("w"), namespaced=True)
    for key in list(backend.keys("w")):
        at(backend, key, ("ns", key))
        found["w", key] = list(windows.get())
    return found


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


# ---------------------------------------------------------------- time to live

SECOND = 1000
UpdateType, Visibility = StateTtlConfig.UpdateType, StateTtlConfig.StateVisibility


def with_ttl(descriptor, update=UpdateType.OnCreateAndWrite, visibility=Visibility.NeverReturnExpired, builder=None):
    builder = builder or StateTtlConfig.new_builder(Time.seconds(10)).disable_cleanup_in_background()
    descriptor.enable_time_to_live(builder.set_update_type(update).set_state_visibility(visibility).build())
    return descriptor


def ttl_descriptors(*arguments):
    return [
        with_ttl(descriptor, *arguments)
        for descriptor in (
            ValueStateDescriptor("v"),
            ListStateDescriptor("l"),
            MapStateDescriptor("m"),
            ReducingStateDescriptor("r", lambda a, b: a + b),
            AggregatingStateDescriptor("a", Average()),
        )
    ]


WRITE = {
    "v": lambda s, x: s.update(x),
    "l": lambda s, x: s.add(x),
    "m": lambda s, x: s.put(x, x),
    "r": lambda s, x: s.add(x),
    "a": lambda s, x: s.add(x),
}
READ = {
    "v": lambda s: s.value(),
    "l": lambda s: list(s.get()) or None,
    "m": lambda s: dict(s.items()) or None,
    "r": lambda s: s.get(),
    "a": lambda s: s.get(),
}
ONE = {"v": 1, "l": [1], "m": {1: 1}, "r": 1, "a": 1}


@pytest.mark.parametrize("kind", "vlmra")
def test_an_entry_expires_after_its_time(backends, settled, kind):
    backend = backends.make()
    descriptor = next(d for d in ttl_descriptors() if d.name == kind)
    state = backend.get_state(descriptor)
    at(backend, "k")
    WRITE[kind](state, 1)
    settled(backend)
    backends.clock.now += 10 * SECOND - 1
    assert READ[kind](state) == ONE[kind]
    backends.clock.now += 1
    assert READ[kind](state) is None
    settled(backend)
    assert list(backend.keys(kind)) == []
    WRITE[kind](state, 1)
    assert READ[kind](state) == ONE[kind]


@pytest.mark.parametrize("kind", "vlmra")
def test_reading_counts_as_access_only_when_told(backends, settled, kind):
    for update in (UpdateType.OnCreateAndWrite, UpdateType.OnReadAndWrite):
        backend = backends.make()
        descriptor = next(d for d in ttl_descriptors(update) if d.name == kind)
        state = backend.get_state(descriptor)
        at(backend, "k")
        WRITE[kind](state, 1)
        backends.clock.now += 6 * SECOND
        settled(backend)
        assert READ[kind](state) == ONE[kind]
        settled(backend)
        backends.clock.now += 6 * SECOND
        assert (READ[kind](state) is not None) is (update is UpdateType.OnReadAndWrite)


@pytest.mark.parametrize("kind", "vlmra")
def test_expired_entries_are_shown_once_when_told(backends, settled, kind):
    backend = backends.make()
    arguments = UpdateType.OnCreateAndWrite, Visibility.ReturnExpiredIfNotCleanedUp
    descriptor = next(d for d in ttl_descriptors(*arguments) if d.name == kind)
    state = backend.get_state(descriptor)
    at(backend, "k")
    WRITE[kind](state, 1)
    settled(backend)
    backends.clock.now += 20 * SECOND
    assert READ[kind](state) == ONE[kind]
    settled(backend)
    assert READ[kind](state) is None


def test_a_write_never_builds_on_something_expired(backends, settled):
    backend = backends.make()
    states = {d.name: backend.get_state(d) for d in ttl_descriptors(UpdateType.OnReadAndWrite)}
    at(backend, "k")
    for kind in "ra":
        states[kind].add(5)
    settled(backend)
    backends.clock.now += 20 * SECOND
    for kind in "ra":
        states[kind].add(1)
    assert (states["r"].get(), states["a"].get()) == (1, 1)


def test_elements_and_map_entries_expire_one_by_one(backends, settled):
    backend = backends.make()
    states = {d.name: backend.get_state(d) for d in ttl_descriptors()}
    at(backend, "k")
    for i in range(4):
        states["l"].add(i)
        states["m"].put(i, i)
        settled(backend)
        backends.clock.now += 3 * SECOND
    assert list(states["l"].get()) == [1, 2, 3]
    assert not states["m"].contains(0)
    assert states["m"].get(1) == 1
    assert sorted(states["m"].keys()) == [1, 2, 3]
    settled(backend)
    backends.clock.now += 6 * SECOND
    assert sorted(states["m"].values()) == [3]
    assert not states["m"].is_empty()
    backends.clock.now += 6 * SECOND
    assert states["m"].is_empty()
    assert list(states["l"].get()) == []


@pytest.mark.parametrize("other", KINDS)
def test_time_to_live_is_exact_across_restore(backends, sink, other):
    backend = backends.make()
    for descriptor in ttl_descriptors():
        state = backend.get_state(descriptor)
        at(backend, "k")
        WRITE[descriptor.name](state, 1)
    snapshot = backend.snapshot(1).write(sink)
    backends.clock.now += 10 * SECOND - 1
    for wait, alive in ((0, True), (1, False)):
        backends.clock.now += wait
        again = backends.restored([snapshot], sink, kind=other)
        for descriptor in ttl_descriptors():
            at(again, "k")
            assert (READ[descriptor.name](again.get_state(descriptor)) is not None) is alive


def test_time_to_live_cannot_be_switched_on_or_off(backends, sink):
    for before, after, message in (
        (ValueStateDescriptor("x"), with_ttl(ValueStateDescriptor("x")), "without a time to live.*with one"),
        (with_ttl(ValueStateDescriptor("x")), ValueStateDescriptor("x"), "with a time to live.*without one"),
    ):
        backend = backends.make()
        backend.get_state(before)
        with pytest.raises(ConfigurationError, match=r"'op'.*'x'.*declared twice"):
            backend.get_state(after)
        again = backends.restored([backend.snapshot(1).write(sink)], sink)
        with pytest.raises(SnapshotError, match=f"'op'.*'x' was stored {message}"):
            again.get_state(after)


def test_another_length_of_time_is_fine(backends, sink):
    backend = backends.make()
    at(backend, "k")
    backend.get_state(with_ttl(ValueStateDescriptor("x"))).update(1)
    again = backends.restored([backend.snapshot(1).write(sink)], sink)
    longer = StateTtlConfig.new_builder(Time.seconds(100))
    state = again.get_state(with_ttl(ValueStateDescriptor("x"), builder=longer))
    at(again, "k")
    backends.clock.now += 50 * SECOND
    assert state.value() == 1


def test_a_disabled_time_to_live_is_none(backends):
    backend = backends.make()
    state = backend.get_state(with_ttl(ValueStateDescriptor("x"), UpdateType.Disabled))
    at(backend, "k")
    state.update(1)
    backends.clock.now += 1000 * SECOND
    assert state.value() == 1


@pytest.mark.parametrize("kind", "vlmra")
def test_the_background_sweep_removes_what_nobody_reads(backends, settled, kind):
    builder = StateTtlConfig.new_builder(Time.seconds(10)).cleanup_incrementally(20, False)
    builder = builder.cleanup_in_rocksdb_compact_filter(500)
    descriptor = next(d for d in ttl_descriptors() if d.name == kind)
    with_ttl(descriptor, builder=builder)
    backend = backends.make()
    state = backend.get_state(descriptor)
    for key in range(1000):
        at(backend, key)
        WRITE[kind](state, 1)
    settled(backend)
    backends.clock.now += 20 * SECOND
    for key in range(1000, 1100):
        at(backend, key)
        WRITE[kind](state, 1)
    settled(backend)
    for _ in range(60):
        for _ in range(100):
            at(backend, 1000)
            WRITE[kind](state, 2)
        backend.end_of_batch()
        settled(backend)
    assert set(backend.keys(kind)) == set(range(1000, 1100))


def test_without_background_clean_up_nothing_is_swept(backends):
    backend = backends.make()
    state = backend.get_state(with_ttl(ValueStateDescriptor("x")))
    for key in range(100):
        at(backend, key)
        state.update(1)
    backends.clock.now += 20 * SECOND
    backend.end_of_batch()
    assert len(set(backend.keys("x"))) == 100


def test_a_full_snapshot_leaves_expired_entries_out_when_told(tmp_path, sink):
    backends = Backends("heap", str(tmp_path), FakeClock())
    builder = StateTtlConfig.new_builder(Time.seconds(10)).cleanup_full_snapshot().disable_cleanup_in_background()
    backend = backends.make(ALL)
    states = [
        backend.get_state(with_ttl(d("s" + d.kind), builder=builder))
        for d in (ValueStateDescriptor, ListStateDescriptor)
    ]
    for key in range(10):
        at(backend, key)
        states[0].update(1)
        states[1].add("old")
    backends.clock.now += 20 * SECOND
    at(backend, 3)
    states[0].update(1)
    states[1].add("new")
    snapshot = backend.snapshot(1, full=True).write(sink)
    entries = {(e.state, e.key): e.value for e in iterate_snapshot("op", snapshot, sink)}
    now = int(backends.clock.now)
    assert entries == {("svalue", 3): (1, now), ("slist", 3): [("new", now)]}
