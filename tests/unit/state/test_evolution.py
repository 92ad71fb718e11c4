"""State whose type changed between two versions of a program."""

from __future__ import annotations

import decimal
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.state.memory_sink import MemorySink
from tests.unit.state.test_savepoint_format import BACKENDS, make, read, write
from tidegate.common import Row, Time, Types
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.common.type_schema import schema_of
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from tidegate.state.class_mapping import use_class_mapping
from tidegate.state.evolution import StateSchemaError, migration
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.storage.files import LocalFiles
from tidegate.storage.handles import OperatorRestore
from tidegate.storage.reader import FileStateSource

OLD_ROW = Types.ROW_NAMED(["id", "name", "gone"], [Types.INT(), Types.STRING(), Types.LONG()])
NEW_ROW = Types.ROW_NAMED(["name", "id", "new"], [Types.STRING(), Types.DOUBLE(), Types.STRING()])


def converted(old: Any, new: Any, value: Any, kind: str = "value") -> Any:
    convert = migration("op", "s", kind, False, schema_of(old), schema_of(new), value)
    return value if convert is None else convert(value)


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (Types.INT(), Types.LONG(), 5, 5),
        (Types.LONG(), Types.DOUBLE(), 5, 5.0),
        (Types.SHORT(), Types.BIG_DEC(), 5, decimal.Decimal(5)),
        (Types.FLOAT(), Types.DOUBLE(), 0.5, 0.5),
        (Types.CHAR(), Types.STRING(), "c", "c"),
        (Types.LIST(Types.BYTE()), Types.PRIMITIVE_ARRAY(Types.BYTE()), b"x", b"x"),  # told apart since version 2
        (None, Types.STRING(), 5, 5),
        (Types.STRING(), None, "x", "x"),
        (Types.LIST(Types.INT()), Types.LIST(Types.DOUBLE()), [1, None, 2], [1.0, None, 2.0]),
        (Types.MAP(Types.STRING(), Types.INT()), Types.MAP(Types.STRING(), Types.DOUBLE()), {"a": 1}, {"a": 1.0}),
        (Types.TUPLE([Types.INT(), Types.INT()]), Types.TUPLE([Types.INT(), Types.FLOAT()]), (1, 2), (1, 2.0)),
        (OLD_ROW, NEW_ROW, Row(id=1, name="x", gone=2), Row(name="x", id=1.0, new=None)),
        (Types.LIST(OLD_ROW), Types.LIST(NEW_ROW), [Row(id=1, name="x", gone=2)], [Row(name="x", id=1.0, new=None)]),
        (Types.ROW([Types.INT()]), Types.ROW([Types.DOUBLE()]), Row(1), Row(1.0)),
    ],
)
def test_allowed_changes(old: Any, new: Any, value: Any, expected: Any) -> None:
    found = converted(old, new, value)
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Types.STRING(), Types.LONG()),
        (Types.LONG(), Types.INT()),
        (Types.DOUBLE(), Types.FLOAT()),
        (Types.LONG(), Types.STRING()),
        (Types.LIST(Types.STRING()), Types.LIST(Types.INT())),
        (Types.TUPLE([Types.INT()]), Types.TUPLE([Types.INT(), Types.INT()])),
        (Types.ROW([Types.INT()]), Types.ROW([Types.INT(), Types.INT()])),
        (Types.ROW_NAMED(["a"], [Types.STRING()]), Types.ROW_NAMED(["a"], [Types.INT()])),
        (Types.MAP(Types.STRING(), Types.INT()), Types.LIST(Types.INT())),
    ],
)
def test_other_changes_are_refused_with_the_state_and_both_schemas(old: Any, new: Any) -> None:
    with pytest.raises(StateSchemaError) as error:
        converted(old, new, None)
    text = str(error.value)
    assert "operator 'op': state 's'" in text
    assert str(schema_of(old)) in text
    assert str(schema_of(new)) in text


@pytest.mark.parametrize("way", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_restored_entries_are_converted_and_the_next_snapshot_has_the_new_form(
    tmp_path: Path, kind: str, way: str
) -> None:
    backend = make(kind)
    state = backend.get_state(ValueStateDescriptor("v", OLD_ROW))
    numbers = backend.get_state(MapStateDescriptor("m", Types.STRING(), Types.INT()))
    ttl = StateTtlConfig.new_builder(Time.hours(1)).build()
    before = ListStateDescriptor("l", Types.INT())
    before.enable_time_to_live(ttl)
    lasting = backend.get_state(before)
    for i in range(50):
        backend.current_key = i
        state.update(Row(id=i, name="x", gone=0))
        numbers.put("a", i)
        lasting.add(i)
    sink = MemorySink()
    for checkpoint in (1, 2):
        if way == "savepoint":
            snapshot = write(backend, tmp_path / str(checkpoint))
            restored = read(kind, [snapshot], tmp_path / str(checkpoint))
        else:
            snapshot = backend.snapshot(CheckpointId(checkpoint)).write(sink)
            restored = make(kind)
            restored.restore([snapshot], sink, continue_chain=True)
        state = restored.get_state(ValueStateDescriptor("v", NEW_ROW))
        numbers = restored.get_state(MapStateDescriptor("m", Types.STRING(), Types.DOUBLE()))
        after = ListStateDescriptor("l", Types.DOUBLE())
        after.enable_time_to_live(ttl)
        lasting = restored.get_state(after)
        for i in range(50):
            restored.current_key = i
            assert state.value() == Row(name="x", id=float(i), new=None)
            assert type(numbers.get("a")) is float
            assert repr(list(lasting.get())) == f"[{float(i)}]"
        backend.dispose()
        backend = restored
    backend.dispose()


@pytest.mark.parametrize("kind", BACKENDS)
def test_an_incompatible_declaration_is_refused_when_the_state_is_asked_for(tmp_path: Path, kind: str) -> None:
    backend = make(kind)
    state = backend.get_state(ValueStateDescriptor("v", Types.STRING()))
    backend.current_key = 1
    state.update("x")
    restored = read(kind, [write(backend, tmp_path)], tmp_path)
    with pytest.raises(StateSchemaError, match=r"state 'v' was stored as STRING, but the job declares it as LONG"):
        restored.get_state(ValueStateDescriptor("v", Types.LONG()))
    restored.dispose()


# ---------------------------------------------------------------- dataclasses


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("orders_of_the_test")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def define(module: types.ModuleType, fields: list[Any], **options: Any) -> Any:
    cls = make_dataclass("Order", fields, **options)
    cls.__module__ = module.__name__
    module.Order = cls  # type: ignore[attr-defined]
    return cls


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", BACKENDS)
def test_a_dataclass_may_gain_fields_with_defaults_lose_fields_and_reorder(
    tmp_path: Path, module: types.ModuleType, kind: str, frozen: bool
) -> None:
    order = define(module, [("id", int), ("old", str)], frozen=frozen)
    backend = make(kind)
    value = backend.get_state(ValueStateDescriptor("v"))
    orders = backend.get_state(ListStateDescriptor("l"))
    by_name = backend.get_state(MapStateDescriptor("m"))
    for i in range(20):
        backend.current_key = i
        value.update(order(i, "x"))
        orders.update([order(i, "a"), order(i, "b")])
        by_name.put("k", order(i, "c"))
    snapshot = write(backend, tmp_path)
    order = define(module, [("tags", list, field(default_factory=list)), ("n", int, 7), ("id", int, 0)], frozen=frozen)
    restored = read(kind, [snapshot], tmp_path)
    value = restored.get_state(ValueStateDescriptor("v"))
    orders = restored.get_state(ListStateDescriptor("l"))
    by_name = restored.get_state(MapStateDescriptor("m"))
    for i in range(20):
        restored.current_key = i
        assert value.value() == order([], 7, i)
        assert "old" not in vars(value.value())
        assert list(orders.get()) == [order([], 7, i)] * 2
        assert by_name.get("k") == order([], 7, i)
    restored.dispose()
    backend.dispose()


def test_a_new_field_needs_a_default(tmp_path: Path, module: types.ModuleType) -> None:
    order = define(module, [("id", int)])
    backend = make("hashmap")
    backend.current_key = 1
    backend.get_state(ValueStateDescriptor("v")).update(order(1))
    snapshot = write(backend, tmp_path)
    define(module, [("id", int), ("price", float)])
    with pytest.raises(StateSchemaError, match=r"state 'v' was stored as .*Order\(id\).*Order\(id, price\).*price"):
        read("hashmap", [snapshot], tmp_path).get_state(ValueStateDescriptor("v"))


def stored(way: str, kind: str, backend: Any, folder: Path) -> Callable[[], Any]:
    """Stores the state, in a savepoint or a checkpoint; what is returned makes a backend of it, with the classes as
    they are then."""
    if way == "savepoint":
        savepoint = write(backend, folder)
        return lambda: read(kind, [savepoint], folder)
    sink = MemorySink()
    checkpoint = backend.snapshot(CheckpointId(1)).write(sink)

    def restored() -> Any:
        made = make(kind)
        made.restore([checkpoint], sink)
        return made

    return restored


@pytest.mark.parametrize("way", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_fields_of_a_dataclass_with_slots_cannot_change(
    tmp_path: Path, module: types.ModuleType, kind: str, way: str
) -> None:
    order = define(module, [("id", int), ("n", int)], slots=True)
    backend = make(kind)
    backend.current_key = 1
    backend.get_state(ValueStateDescriptor("v")).update(order(1, 2))
    first = stored(way, kind, backend, tmp_path / "first")
    same = first()
    same.current_key = 1
    assert same.get_state(ValueStateDescriptor("v")).value() == order(1, 2)
    second = stored(way, kind, same, tmp_path / "second")  # nothing has changed since `same` was restored
    define(module, [("n", int), ("id", int)], slots=True)
    for restore in (first, second):
        refused = restore()
        with pytest.raises(StateSchemaError, match="by position"):
            refused.get_state(ValueStateDescriptor("v"))
        refused.dispose()
    backend.dispose()
    same.dispose()


@pytest.mark.parametrize("way", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_a_dataclass_inside_of_other_values_gets_its_new_fields_too(
    tmp_path: Path, module: types.ModuleType, kind: str, way: str
) -> None:
    old = define(module, [("id", int)], frozen=True)
    holder = make_dataclass("Holder", [("order", object)])
    holder.__module__ = module.__name__
    module.Holder = holder  # type: ignore[attr-defined]

    def values(order: Any) -> list[Any]:
        tree: list[Any] = [order(0)]
        tree.append(tree)  # holds itself
        return [5, holder(order(1)), [order(2)], {"k": (3, order(3))}, Row(order(4)), order(5), tree]

    backend = make(kind)
    state = backend.get_state(ValueStateDescriptor("v"))
    for i, value in enumerate(values(old)):
        backend.current_key = i
        state.update(value)
    restore = stored(way, kind, backend, tmp_path)
    operator_state, items = OperatorStateBackend("op"), ListStateDescriptor("l")
    operator_state.get_list_state(items).add([old(8)])
    of_operator = OperatorRestore(
        operator_id=OperatorId("o"), lists=operator_state.snapshot().write(sink := MemorySink())
    )
    new = define(module, [("id", int), ("n", int, 7), ("tags", list, field(default_factory=list))], frozen=True)
    restored = restore()
    state = restored.get_state(ValueStateDescriptor("v"))
    for i, expected in enumerate(values(new)[:-1]):
        restored.current_key = i
        assert state.value() == expected
    operator_state = OperatorStateBackend("op")
    operator_state.restore(of_operator, sink)
    assert operator_state.get_list_state(items).get() == [[new(8)]]
    restored.current_key = 6
    assert state.value()[0] == new(0)
    define(module, [("id", int), ("price", float)], frozen=True)
    refused = restore()
    with pytest.raises(StateSchemaError, match=r"state 'v' was stored as .*Order\(id\).*price need defaults"):
        refused.get_state(ValueStateDescriptor("v"))
    for used in (backend, restored, refused):
        used.dispose()


@pytest.mark.parametrize("way", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("kind", BACKENDS)
def test_attributes_that_are_no_fields_and_fields_never_set_are_restored_as_they_were(
    tmp_path: Path, module: types.ModuleType, kind: str, way: str
) -> None:
    order = define(module, [("id", int), ("later", int, field(init=False))])
    backend = make(kind)
    state = backend.get_state(ValueStateDescriptor("v"))
    backend.current_key = 1
    value = order(1)
    value.extra = "kept"
    state.update(value)
    restored = stored(way, kind, backend, tmp_path)()
    restored.current_key = 1
    assert vars(restored.get_state(ValueStateDescriptor("v")).value()) == {"id": 1, "extra": "kept"}
    restored.dispose()
    backend.dispose()


# ---------------------------------------------------------------- moved classes


@dataclass
class Moved:
    """Where `orders_of_the_test.Order` is now."""

    id: int


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("way", ["savepoint", "checkpoint"])
def test_a_class_that_has_moved_is_found_under_its_new_name(
    tmp_path: Path, module: types.ModuleType, kind: str, way: str
) -> None:
    order = define(module, [("id", int)])
    backend = make(kind)
    backend.current_key = 1
    backend.get_state(ValueStateDescriptor("v")).update(order(5))
    sink = MemorySink()
    snapshot = write(backend, tmp_path) if way == "savepoint" else backend.snapshot(CheckpointId(1)).write(sink)
    del module.Order

    def stored() -> Any:
        restored = make(kind)
        try:
            restored.restore([snapshot], FileStateSource(LocalFiles(str(tmp_path))) if way == "savepoint" else sink)
            restored.current_key = 1
            return restored.get_state(ValueStateDescriptor("v")).value()
        finally:
            restored.dispose()

    with pytest.raises((SnapshotError, AttributeError)):
        stored()
    use_class_mapping({"orders_of_the_test.Order": f"{__name__}.Moved"})
    try:
        assert stored() == Moved(5)
    finally:
        use_class_mapping({})
        backend.dispose()


def test_a_whole_module_and_classes_inside_of_classes_can_be_mapped() -> None:
    from tidegate.state.class_mapping import _new_name

    mapping = {"old": "new.place", "a.Outer": "b.Other"}
    assert _new_name(mapping, "old", "C") == ("new.place", "C")
    assert _new_name(mapping, "a", "Outer.Inner") == ("b", "Other.Inner")
    assert _new_name(mapping, "x", "C") == ("x", "C")
    with pytest.raises(ConfigurationError, match=r"state\.class-mapping"):
        use_class_mapping({"x.C": ""})
