from __future__ import annotations

import threading

import pytest

from tests.unit.state.memory_sink import MemorySink
from tidegate.common.errors import ConfigurationError, SerializationError, SnapshotError
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.state.evolution import StateSchemaError
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.storage.handles import OperatorRestore

OFFSETS = ListStateDescriptor("offsets")
RULES = MapStateDescriptor("rules")


@pytest.fixture
def sink():
    return MemorySink()


def make(restore=None, sink=None):
    backend = OperatorStateBackend("reader")
    if restore is not None:
        backend.restore(restore, sink)
    return backend


def test_list_state():
    state = make().get_list_state(OFFSETS)
    state.add(1)
    state.add_all([2, 3])
    for item in state.get():
        state.add(item * 10)
    assert list(state) == [1, 2, 3, 10, 20, 30]
    state.update([7])
    assert list(state.get()) == [7]
    state.clear()
    assert list(state.get()) == []


def test_broadcast_state():
    state = make().get_broadcast_state(RULES)
    state.put("a", 1)
    state.put_all({"b": 2, "c": 3})
    state["d"] = 4
    for key in state.keys():  # noqa: SIM118 (the method is what is tested)
        if key == "b":
            state.remove(key)
    del state["c"]
    assert (state.get("a"), state["d"], "b" in state, state.contains("d")) == (1, 4, False, True)
    assert list(state.items()) == [("a", 1), ("d", 4)]
    assert list(state.values()) == [1, 4]
    assert list(state) == ["a", "d"]
    state.clear()
    assert state.is_empty()


def test_a_snapshot_is_frozen_and_restores(sink):
    backend = make()
    items = backend.get_list_state(OFFSETS)
    union = backend.get_union_list_state(ListStateDescriptor("all"))
    rules = backend.get_broadcast_state(RULES)
    items.update([[1], [2]])
    union.add("u")
    rules.put("k", [1])
    frozen = backend.snapshot()
    items.get()[0].append("later")
    items.add("later")
    rules.get("k").append("later")
    lists = {state.name: state for state in frozen.write(sink)}
    assert {(s.name, s.mode, s.count) for s in lists.values()} == {
        ("offsets", "split", 2),
        ("all", "union", 1),
        ("rules", "broadcast", 1),
    }
    restore = OperatorRestore(
        operator_id="o",
        lists=[lists["all"], lists["all"], lists["rules"], lists["rules"]],
        split_items={"offsets": [(lists["offsets"].handle, 1, 2), (lists["offsets"].handle, 0, 1)]},
    )
    again = make(restore, sink)
    assert list(again.get_list_state(OFFSETS).get()) == [[2], [1]]
    assert list(again.get_union_list_state(ListStateDescriptor("all")).get()) == ["u", "u"]
    assert list(again.get_broadcast_state(RULES).items()) == [("k", [1])]


def test_restored_state_that_nobody_asks_for_is_kept(sink):
    backend = make()
    backend.get_union_list_state(OFFSETS).add(5)
    restore = OperatorRestore(operator_id="o", lists=backend.snapshot().write(sink))
    again = OperatorRestore(operator_id="o", lists=make(restore, sink).snapshot().write(sink))
    assert list(make(again, sink).get_union_list_state(OFFSETS).get()) == [5]


def test_another_mode_is_refused(sink):
    backend = make()
    backend.get_list_state(OFFSETS)
    with pytest.raises(ConfigurationError, match=r"'reader'.*'offsets'.*split.*union"):
        backend.get_union_list_state(OFFSETS)
    restore = OperatorRestore(operator_id="o", lists=[*backend.snapshot().write(sink)])
    with pytest.raises(StateSchemaError, match=r"'offsets' is split state in the snapshot"):
        make(restore, sink).get_union_list_state(OFFSETS)
    with pytest.raises(ConfigurationError, match="MapStateDescriptor"):
        backend.get_broadcast_state(ValueStateDescriptor("x"))


def test_an_item_that_cannot_be_pickled_is_named():
    backend = make()
    backend.get_list_state(OFFSETS).update([1, threading.Lock()])
    with pytest.raises(SerializationError, match=r"'reader'.*'offsets'.*item 1"):
        backend.snapshot()


def test_missing_items_are_noticed(sink):
    backend = make()
    backend.get_list_state(OFFSETS).update([1, 2])
    (state,) = backend.snapshot().write(sink)
    restore = OperatorRestore(operator_id="o", split_items={"offsets": [(state.handle, 0, 3)]})
    with pytest.raises(SnapshotError, match=r"has 2 items where the snapshot says 3"):
        make(restore, sink)
