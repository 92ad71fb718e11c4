"""Large values, many states, more entries than a cache holds."""

from __future__ import annotations

from tests.unit.state.backend_contract.states import (
    LIST,
    MAP,
    VALUE,
    at,
)
from tidegate.datastream.state import (
    ValueStateDescriptor,
)
from tidegate.storage.handles import KeyedStateInfo


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
