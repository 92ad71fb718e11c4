"""The five keyed states, against what PyFlink documents."""

from __future__ import annotations

import pytest

from tidegate.common.errors import ConfigurationError
from tidegate.datastream.functions import AggregateFunction, ReduceFunction
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.storage.handles import KeyedStateInfo


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


class Longest(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2, key=len)


@pytest.fixture(params=["never snapshotted", "entries in the base"])
def backend(request):
    """With the second parameter, `settle` moves everything into the base before each check."""
    backend = HeapKeyedStateBackend("op", (0, 128), 128)
    numbers = iter(range(1, 1000))
    backend.settle = (lambda: None) if request.param.startswith("never") else lambda: backend.snapshot(next(numbers))
    backend.current_key = "k"
    return backend


def test_value_state(backend):
    state = backend.get_state(ValueStateDescriptor("v"))
    assert state.value() is None
    state.update(1)
    backend.settle()
    assert state.value() == 1
    backend.current_key = "other"
    assert state.value() is None
    state.update(2)
    backend.settle()
    backend.current_key = "k"
    state.update(3)
    assert state.value() == 3
    state.update(None)
    assert state.value() is None
    assert list(backend.keys("v")) == ["other"]
    backend.settle()
    assert state.value() is None
    backend.current_key = "other"
    state.clear()
    assert list(backend.keys("v")) == []
    backend.check_invariants()


def test_falsy_values_are_values(backend):
    state = backend.get_state(ValueStateDescriptor("v"))
    for value in (0, "", False, (), []):
        state.update(value)
        backend.settle()
        assert state.value() == value


def test_list_state(backend):
    state = backend.get_state(ListStateDescriptor("l"))
    assert list(state.get()) == []
    state.add(1)
    backend.settle()
    state.add_all([2, 3])
    assert list(state.get()) == [1, 2, 3]
    assert list(state) == [1, 2, 3]
    for element in state.get():
        state.add(element)
    assert list(state.get()) == [1, 2, 3, 1, 2, 3]
    backend.settle()
    mine = [9]
    state.update(mine)
    mine.append(10)
    assert list(state.get()) == [9]
    state.update([])
    assert list(state.get()) == []
    assert list(backend.keys("l")) == []
    backend.settle()
    state.add(5)
    backend.settle()
    state.clear()
    state.add(6)
    assert list(state.get()) == [6]
    state.add_all([])
    backend.check_invariants()


def test_map_state(backend):
    state = backend.get_state(MapStateDescriptor("m"))
    assert state.is_empty()
    assert state.get("a") is None
    state.put("a", 1)
    backend.settle()
    state.put_all({"b": 2, "c": None})
    state["d"] = 4
    assert dict(state.items()) == {"a": 1, "b": 2, "c": None, "d": 4}
    assert (list(state.keys()), list(state.values()), list(state)) == (list("abcd"), [1, 2, None, 4], list("abcd"))
    assert state.contains("c")
    assert "c" in state
    assert not state.contains("z")
    assert state["b"] == 2
    backend.settle()
    state.remove("b")
    state.remove("not there")
    del state["c"]
    assert dict(state.items()) == {"a": 1, "d": 4}
    for key in state.keys():  # noqa: SIM118 (the method is what is tested)
        state.remove(key)
    assert state.is_empty()
    assert list(backend.keys("m")) == []
    backend.settle()
    state.put("x", 1)
    backend.settle()
    state.clear()
    state.put("y", 2)
    assert dict(state.items()) == {"y": 2}
    backend.check_invariants()


@pytest.mark.parametrize("function", [Longest(), lambda a, b: max(a, b, key=len)])
def test_reducing_state(backend, function):
    state = backend.get_state(ReducingStateDescriptor("r", function))
    assert state.get() is None
    state.add("a")
    backend.settle()
    state.add("abc")
    state.add("ab")
    assert state.get() == "abc"
    backend.settle()
    state.clear()
    assert state.get() is None
    state.add("z")
    assert state.get() == "z"


def test_aggregating_state(backend):
    state = backend.get_state(AggregatingStateDescriptor("a", Average()))
    assert state.get() is None
    state.add(1)
    backend.settle()
    state.add(2)
    assert state.get() == 1.5
    backend.settle()
    state.clear()
    assert state.get() is None


def test_namespaced_states_are_kept_per_key_and_namespace(backend):
    state = backend.get_state(ValueStateDescriptor("w"), namespaced=True)
    for key in ("a", "b"):
        for namespace in (1, 2):
            backend.current_key, backend.current_namespace = key, namespace
            state.update((key, namespace))
            backend.settle()
    backend.current_key, backend.current_namespace = "a", 2
    assert state.value() == ("a", 2)
    state.clear()
    backend.current_namespace = 1
    assert state.value() == ("a", 1)
    assert list(backend.keys("w")) in (["a", "b"], ["b", "a"])


def test_the_same_name_gives_the_same_object(backend):
    assert backend.get_state(ValueStateDescriptor("x")) is backend.get_state(ValueStateDescriptor("x"))


def test_the_same_name_with_another_kind_is_refused(backend):
    backend.get_state(ValueStateDescriptor("x"))
    with pytest.raises(ConfigurationError, match=r"'op'.*'x'.*value state and as a list state"):
        backend.get_state(ListStateDescriptor("x"))
    with pytest.raises(ConfigurationError, match="per window"):
        backend.get_state(ValueStateDescriptor("x"), namespaced=True)


def test_state_without_a_current_key_is_refused():
    backend = HeapKeyedStateBackend("op", (0, 128), 128)
    for descriptor, namespaced in ((ValueStateDescriptor("x"), False), (ValueStateDescriptor("y"), True)):
        state = backend.get_state(descriptor, namespaced)
        with pytest.raises(ConfigurationError, match=r"'op'.*no current key"):
            state.value()


def test_clearing_keys_without_checkpoints_leaves_nothing_behind():
    backend = HeapKeyedStateBackend("op", (0, 128), 128)
    state = backend.get_state(ValueStateDescriptor("v"))
    for key in range(100):
        backend.current_key = key
        state.update(key)
        state.clear()
    table = backend.table(KeyedStateInfo(name="v", kind="value"))
    assert not table.delta
    assert not table.base
