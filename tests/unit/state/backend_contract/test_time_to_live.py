"""Time to live: when entries expire, what is shown, what is cleaned up."""

from __future__ import annotations

import pytest

from tests.unit.state.backend_contract.states import (
    Average,
    at,
)
from tests.unit.state.backends import ALL, KINDS, Backends, FakeClock
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.time import Time
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.state.entries import iterate_snapshot

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
