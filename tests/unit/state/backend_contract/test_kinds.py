"""The five kinds of state, and namespaces."""

from __future__ import annotations

from tests.unit.state.backend_contract.states import (
    AGGREGATING,
    LIST,
    MAP,
    REDUCING,
    VALUE,
    Color,
    at,
)
from tests.unit.state.backends import settle


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
