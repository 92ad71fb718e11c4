"""Keyed and operator state through the tables of a savepoint: from any backend into any backend, exactly."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.common import Row, Time, Types
from tidegate.common.errors import SnapshotDamagedError
from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.common.type_schema import UNDECLARED, schema_of
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.state.factory import KeyedBackends
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.state.savepoint.tables import columns_of
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.files import LocalFiles
from tidegate.storage.handles import KeyedSnapshot, OperatorRestore
from tidegate.storage.reader import FileStateSource

GROUPS = 16
BACKENDS = ["hashmap", "rocksdb"]


def make(kind: str, groups: tuple[int, int] = (0, GROUPS)) -> Any:
    return KeyedBackends(kind, RocksDBSettings(), 10, lambda: 1_000_000.0).make("op", groups, GROUPS)


def write(backend: Any, root: Path, key_type: Any = None, subtask: int = 0) -> KeyedSnapshot:
    writer = SavepointWriter(LocalFiles(str(root)), subtask, GROUPS, CheckpointId(1))
    return writer.keyed("op", "op-1234", schema_of(key_type), backend.snapshot(CheckpointId(1), full=True))


def read(kind: str, snapshots: list[KeyedSnapshot], root: Path, groups: tuple[int, int] = (0, GROUPS)) -> Any:
    backend = make(kind, groups)
    backend.restore(snapshots, FileStateSource(LocalFiles(str(root))))
    return backend


@pytest.mark.parametrize("reader", BACKENDS)
@pytest.mark.parametrize("writer", BACKENDS)
def test_every_kind_of_state_from_any_backend_into_any_backend(tmp_path: Path, writer: str, reader: str) -> None:
    ttl = ValueStateDescriptor("ttl")
    ttl.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    ttl_list = ListStateDescriptor("ttl-list")
    ttl_list.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    descriptors: list[StateDescriptor] = [
        ValueStateDescriptor("v", Types.INT()),
        ListStateDescriptor("l", Types.STRING()),
        MapStateDescriptor("m", Types.STRING(), Types.LONG()),
        ttl,
        ttl_list,
    ]
    backend = make(writer)
    states = {d.get_name(): backend.get_state(d) for d in descriptors}
    windows = backend.get_state(ValueStateDescriptor("w"), namespaced=True)
    for i in range(100):
        backend.current_key = f"k{i}"
        states["v"].update(i)
        states["l"].update([str(i), "x"])
        states["m"].put_all({"a": i, "b": -i})
        states["ttl"].update((i, {i}))
        states["ttl-list"].add(i)
        backend.current_namespace = ("window", i)
        windows.update(i * 2)
    snapshot = write(backend, tmp_path, Types.STRING())
    backend.dispose()
    assert snapshot.backend == "savepoint"
    restored = read(reader, [snapshot], tmp_path)
    states = {d.get_name(): restored.get_state(d) for d in descriptors}
    windows = restored.get_state(ValueStateDescriptor("w"), namespaced=True)
    for i in range(100):
        restored.current_key = f"k{i}"
        assert states["v"].value() == i
        assert list(states["l"].get()) == [str(i), "x"]
        assert dict(states["m"].items()) == {"a": i, "b": -i}
        assert states["ttl"].value() == (i, {i})
        assert list(states["ttl-list"].get()) == [i]
        restored.current_namespace = ("window", i)
        assert windows.value() == i * 2
    restored.dispose()


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_savepoint_of_two_subtasks_is_read_by_three(tmp_path: Path, kind: str) -> None:
    snapshots = []
    for subtask, groups in enumerate([(0, 8), (8, 16)]):
        backend = make("hashmap", groups)
        state = backend.get_state(ValueStateDescriptor("v"))
        for key in range(200):
            if backend._owns(key):
                backend.current_key = key
                state.update(key)
        snapshots.append(write(backend, tmp_path, subtask=subtask))
    found: list[int] = []
    for groups in [(0, 6), (6, 11), (11, 16)]:
        restored = read(kind, snapshots, tmp_path, groups)
        found += restored.keys("v")
        restored.dispose()
    assert sorted(found) == list(range(200))


# ---------------------------------------------------------------- values

scalars = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(max_size=20),
    st.booleans(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(),
    st.dates(),
    st.times(),
    st.just(10**30),
)
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.tuples(scalars, scalars),
    st.dictionaries(st.text(max_size=3), scalars, max_size=3),
    st.builds(lambda a, b: Row(a=a, b=b), scalars, scalars),
)
TYPES: list[Any] = [
    None,
    Types.INT(),
    Types.LONG(),
    Types.DOUBLE(),
    Types.STRING(),
    Types.BOOLEAN(),
    Types.BIG_DEC(),
    Types.SQL_TIMESTAMP(),
    Types.SQL_DATE(),
    Types.SQL_TIME(),
    Types.LIST(Types.INT()),
    Types.TUPLE([Types.INT(), Types.STRING()]),
    Types.MAP(Types.STRING(), Types.DOUBLE()),
    Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.LIST(Types.STRING())]),
    Types.ROW([Types.INT(), Types.STRING()]),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(TYPES), st.lists(values, min_size=1, max_size=8), st.sampled_from(TYPES))
def test_any_value_comes_back_as_it_was_whatever_was_declared(
    tmp_path_factory: pytest.TempPathFactory, declared: Any, stored: list[Any], key_type: Any
) -> None:
    root = tmp_path_factory.mktemp("sp")
    backend = make("hashmap")
    state = backend.get_state(ValueStateDescriptor("v", declared))
    for i, value in enumerate(stored):
        backend.current_key = i
        state.update(value)
    restored = read("hashmap", [write(backend, root, key_type)], root)
    state = restored.get_state(ValueStateDescriptor("v", declared))
    for i, value in enumerate(stored):
        restored.current_key = i
        assert repr(state.value()) == repr(value)


def test_typed_columns_are_what_other_tools_see(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    backend = make("hashmap")
    row = Types.ROW_NAMED(["id", "tags"], [Types.LONG(), Types.LIST(Types.STRING())])
    rows = backend.get_state(ValueStateDescriptor("rows", row))
    anything = backend.get_state(ValueStateDescriptor("any thing/ö"))
    days = backend.get_state(ValueStateDescriptor("days", Types.SQL_DATE()))
    backend.current_key = 7
    rows.update(Row(id=1, tags=["a", "b"]))
    anything.update({"x": decimal.Decimal("1.5")})
    days.update(datetime.date(2026, 1, 2))
    write(backend, tmp_path, Types.INT())
    (table,) = pq.read_table(next((tmp_path / "op-1234").glob("keyed-rows"))).to_pylist()
    assert table["value"] == {"id": 1, "tags": ["a", "b"]}
    assert (table["key"], table["key_pickle"], table["namespace"]) == (7, None, None)
    (table,) = pq.read_table(next((tmp_path / "op-1234").glob("keyed-any_thing_*"))).to_pylist()
    assert table["value"] == "{'x': Decimal('1.5')}"
    assert table["value_pickle"]
    (table,) = pq.read_table(tmp_path / "op-1234" / "keyed-days").to_pylist()
    assert (table["value"], table["value_pickle"]) == (datetime.date(2026, 1, 2), None)


def test_timers_are_a_table_of_timestamps(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from tidegate.taskmanager.timers import OperatorTimers

    backend = make("hashmap")
    timers = OperatorTimers(backend)
    timers.event.register(1234, "k")
    timers.event.register(99, "k", ("w", 1))
    timers.save()
    snapshot = write(backend, tmp_path)
    folder = next((tmp_path / "op-1234").glob("keyed-_timers_event*"))
    assert sorted((r["value"], r["namespace"]) for r in pq.read_table(folder).to_pylist()) == [
        (99, "('w', 1)"),
        (1234, None),
    ]
    restored = OperatorTimers(read("rocksdb", [snapshot], tmp_path))
    assert [restored.event.pop_due(10_000)[:1] for _ in range(2)] == [(99,), (1234,)]  # type: ignore[index]


def test_operator_lists_are_tables_too(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    store = OperatorStateBackend("op")
    store.get_list_state(ListStateDescriptor("offsets")).update([("a", 1), ("b", 2)])
    store.get_list_state(ListStateDescriptor("empty"))
    store.get_broadcast_state(MapStateDescriptor("rules")).put("r", {1})
    writer = SavepointWriter(LocalFiles(str(tmp_path)), 3, GROUPS, CheckpointId(1))
    lists = writer.lists("op", "op-1234", store.snapshot())
    assert writer.files_written == 2
    rows = pq.read_table(tmp_path / "op-1234" / "list-offsets").to_pylist()
    assert [(r["subtask"], r["position"], r["value"]) for r in rows] == [(3, 0, "('a', 1)"), (3, 1, "('b', 2)")]
    restored = OperatorStateBackend("op")
    split = {s.name: [(s.handle, 0, s.count)] for s in lists if s.mode == "split"}
    restored.restore(
        OperatorRestore(operator_id=OperatorId("x"), lists=[s for s in lists if s.mode != "split"], split_items=split),
        FileStateSource(LocalFiles(str(tmp_path))),
    )
    assert restored.get_list_state(ListStateDescriptor("offsets")).get() == [("a", 1), ("b", 2)]
    assert restored.get_list_state(ListStateDescriptor("empty")).get() == []
    assert restored.get_broadcast_state(MapStateDescriptor("rules")).items() == [("r", {1})]


def test_large_tables_are_cut_into_files_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.state.savepoint.tables import TableWriter

    monkeypatch.setattr(TableWriter, "MAX_BYTES", 1)
    backend = make("hashmap")
    state = backend.get_state(ValueStateDescriptor("v"))
    for key in range(40_000):
        backend.current_key = key
        state.update(key)
    snapshot = write(backend, tmp_path)
    assert len(snapshot.increments[0].chunks) == 3
    assert sum(1 for _ in read("hashmap", [snapshot], tmp_path).keys("v")) == 40_000
    assert schema_of(None) == UNDECLARED


def test_a_table_whose_values_cannot_be_read_is_damaged() -> None:
    import pyarrow as pa

    no_text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    with pytest.raises(SnapshotDamagedError, match="the table holds values that cannot be read"):
        columns_of(pa.table({"key": no_text}), ["key"], "the table")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["key", "key"])
    with pytest.raises(SnapshotDamagedError, match="the table holds values that cannot be read"):
        columns_of(twice, ["key"], "the table")
