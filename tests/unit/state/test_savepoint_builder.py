"""Savepoints that are built and changed: restored into backends, read as tables, refused when they make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from tests.unit.state.snapshot_kit import FORMATS, GROUPS, OPERATOR, make_snapshot
from tidegate.cli.main import main as tidegate_cli
from tidegate.common import Row, Time, Types
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.graph.operator_ids import id_of_uid
from tidegate.snapshots import SavepointBuilder, bootstrap, iterate_state, list_states, read_state, savepoint_builder
from tidegate.snapshots.catalog import open_snapshot
from tidegate.snapshots.hashing import hashes_of
from tidegate.state.factory import KeyedBackends
from tidegate.state.key_groups import key_group
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.storage.handles import ChannelState, InlineBytes
from tidegate.storage.metadata import encode_metadata
from tidegate.storage.worker_storage import file_source

VALUE = ValueStateDescriptor("v", Types.LONG())
GOLDEN = Path(__file__).parents[2] / "golden" / "savepoint-v1"


def two_states(backend: Any, owns: Any) -> None:
    v, other = backend.get_state(VALUE), backend.get_state(ListStateDescriptor("other"))
    for key in range(100):
        if owns(key):
            backend.current_key = key
            v.update(key)
            other.update([key, {key}])


def restored(path: str, uid: str, kind: str, groups: tuple[int, int] | None = None) -> Any:
    """A backend with the keyed state that a savepoint has for an operator, in the parts that a job would be given."""
    snapshot = open_snapshot(path)
    operator = snapshot.operator(uid)
    start, end = groups = groups or (0, operator.max_parallelism)
    parts = [k for s in operator.subtasks if (k := s.keyed) and k.key_group_start < end and start < k.key_group_end]
    backend = KeyedBackends(kind, RocksDBSettings(), 10, lambda: 0.0).make("op", groups, operator.max_parallelism)
    backend.restore(parts, file_source(str(snapshot.root)))
    return backend


@pytest.mark.parametrize(("permissions", "expected"), [(None, 0o600), ("owner", 0o600), ("group", 0o640)])
def test_who_may_read_a_built_savepoint_is_said_by_the_setting_that_says_it_for_all(
    tmp_path: Path, permissions: str | None, expected: int
) -> None:
    builder = SavepointBuilder.new_savepoint().with_keyed_state("op", VALUE, [(key, key) for key in range(50)])
    builder.with_operator_state("op", ListStateDescriptor("items"), [1, 2])
    chosen = {} if permissions is None else {"tidegate.storage.permissions": permissions}
    builder.write(str(tmp_path / "sp"), chosen)
    files = [path for path in (tmp_path / "sp").rglob("*") if path.is_file()]
    assert len(files) > 2
    assert {path.stat().st_mode & 0o777 for path in files} == {expected}
    assert (tmp_path / "sp").stat().st_mode & 0o777 == expected | 0o100 | (expected & 0o040) >> 2


def test_permissions_that_there_are_not_are_refused(tmp_path: Path) -> None:
    builder = SavepointBuilder.new_savepoint().with_keyed_state("op", VALUE, [(1, 1)])
    with pytest.raises(ConfigurationError, match=r"tidegate\.storage\.permissions"):
        builder.write(str(tmp_path / "sp"), {"tidegate.storage.permissions": "everybody"})


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def test_state_from_plain_values_is_restored_by_a_backend(tmp_path: Path, kind: str) -> None:
    ttl = MapStateDescriptor("ttl", Types.STRING(), Types.LONG())
    ttl.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    point = ValueStateDescriptor("row", Types.ROW_NAMED(["x", "y"], [Types.LONG(), Types.STRING()]))
    keys = [*range(50), "text", ("a", 1), None]
    builder = SavepointBuilder.new_savepoint(max_parallelism=GROUPS, job_name="made")
    builder.with_keyed_state("uid", VALUE, {k: i for i, k in enumerate(keys)})
    builder.with_keyed_state("uid", point, [(k, {"x": 1, "y": str(k)}) for k in keys])
    builder.with_keyed_state("uid", ListStateDescriptor("l"), [(k, [k, 2] if k != 7 else []) for k in keys])
    builder.with_keyed_state("uid", ttl, {k: {"a": 1} for k in keys})
    builder.with_timers("uid", [(1, 500), (1, 400), (1, 500), ("text", 9)])
    builder.with_operator_state("source", ListStateDescriptor("offsets"), [1, 2, 3])
    builder.with_operator_state("rules", MapStateDescriptor("rules"), {"x": 1}, mode="broadcast")
    path = builder.write(str(tmp_path / "sp"))
    backend = restored(path, "uid", kind)
    v, row, items = (backend.get_state(d) for d in (VALUE, point, ListStateDescriptor("l")))
    for i, key in enumerate(keys):
        backend.current_key = key
        assert (v.value(), row.value()) == (i, Row(x=1, y=str(key)))
        assert list(items.get()) == ([key, 2] if key != 7 else [])
    backend.get_state(ttl)  # declared as stored: with a time to live
    backend.dispose()
    timers = read_state(path, "uid", "_timers/event").to_pylist()
    assert sorted((r["key"], r["timestamp"]) for r in timers) == [("1", 400), ("1", 500), ("text", 9)]
    assert open_snapshot(path).operator("rules").subtasks[0].lists[0].mode == "broadcast"
    assert list(iterate_state(path, "source", "offsets")) == [1, 2, 3]
    readable = json.loads((tmp_path / "sp" / "metadata.json").read_text())
    assert [o["uid"] for o in readable["operators"]] == ["uid", "source", "rules"]
    moved = (tmp_path / "sp").rename(tmp_path / "elsewhere")
    assert tidegate_cli(["inspect", str(moved)]) in (0, None)
    file = next((tmp_path / "elsewhere").glob("uid-*/keyed-v/*.parquet"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(SnapshotError, match="corrupt"):
        read_state(str(moved), "uid", "v")


@pytest.mark.parametrize("kind", FORMATS)
def test_an_existing_snapshot_is_changed(tmp_path: Path, kind: str) -> None:
    store = OperatorStateBackend("op")
    store.get_list_state(ListStateDescriptor("offsets")).update([1, 2])
    path = make_snapshot(tmp_path, kind, [two_states], store)
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    uid = open_snapshot(path).operator("uid").operator_id
    assert uid == OPERATOR  # not that of the uid 'uid': found by its uid all the same

    plain = SavepointBuilder.from_existing_savepoint(path).write(str(tmp_path / "copy"))
    assert sorted(read_state(plain, "uid", "v").column("value").to_pylist()) == list(range(100))
    assert [(s.state, s.kind) for s in list_states(plain)] == [(s.state, s.kind) for s in list_states(path)]

    builder = SavepointBuilder.from_existing_savepoint(path).change_operator_identifier("uid", "new")
    builder.with_keyed_state("new", VALUE, {k: k * 2 for k in range(150)})
    builder.with_keyed_state("added", VALUE, {"k": 1})
    changed = builder.write(str(tmp_path / "changed"))
    operator = open_snapshot(changed).operator("new")
    assert (operator.operator_id, operator.parallelism) == (id_of_uid("new"), 2)
    found = []
    for groups in ((0, 5), (5, GROUPS)):  # every subtask finds its keys, and only those
        backend = restored(changed, "new", "hashmap", groups)
        v, other = backend.get_state(VALUE), backend.get_state(ListStateDescriptor("other"))
        for key in list(backend.keys("v")):
            found.append(key)
            backend.current_key = key
            assert v.value() == key * 2
            assert list(other.get()) == ([key, {key}] if key < 100 else [])
    assert sorted(found) == list(range(150))
    assert read_state(changed, "new", "v").num_rows == 150
    assert list(iterate_state(changed, "new", "offsets")) == [1, 2, 1, 2]
    assert read_state(changed, "added", "v").column("key").to_pylist() == ["k"]

    builder = SavepointBuilder.from_existing_savepoint(changed).remove_operator("added").remove_state("new", "other")
    small = builder.remove_state("new", "offsets").write(str(tmp_path / "small"))
    assert [(s.uid, s.state) for s in list_states(small)] == [("new", "v")]
    assert not [p for p in (tmp_path / "small").rglob("*") if "other" in p.name or "added" in p.name]
    assert set(before) <= {str(p) for p in tmp_path.rglob("*")}


def test_state_of_classes_that_are_not_here_is_kept_as_it_is(tmp_path: Path) -> None:
    """Of a savepoint: its files are copied, nothing is unpickled."""
    copy = SavepointBuilder.from_existing_savepoint(str(GOLDEN)).remove_operator("out").write(str(tmp_path / "sp"))
    for state in ("count", "row", "anything", "items", "by name", "sum", "lasting", "_timers/event"):
        assert read_state(copy, "everything", state).equals(read_state(str(GOLDEN), "everything", state))


def test_a_part_that_was_written_twice_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Spark runs a task again: tools that read a table's folder must not see its rows twice."""
    once = bootstrap.write_part

    def twice(spec: Any, target: Any, part: int, rows: Any) -> Any:
        rows = list(rows)
        once(spec, target, part, rows)
        return once(spec, target, part, rows)

    monkeypatch.setattr(savepoint_builder, "write_part", twice)
    row_key = Types.ROW_NAMED(["id"], [Types.LONG()])
    builder = SavepointBuilder.new_savepoint(GROUPS)
    path = builder.with_keyed_state("u", VALUE, [({"id": i}, i) for i in range(9)], key_type=row_key).write(
        str(tmp_path / "sp")
    )
    assert pq.read_table(next((tmp_path / "sp").glob("u-*/keyed-v"))).num_rows == 9
    backend = restored(path, "u", "hashmap")
    assert sorted(backend.keys("v"), key=repr) == [Row(id=i) for i in range(9)]
    groups = {r["key"]["id"]: r["key_group"] for r in read_state(path, "u", "v").to_pylist()}
    assert groups == {i: key_group(Row(id=i), GROUPS) for i in range(9)}


def test_a_key_that_comes_twice_is_told_from_two_keys_with_one_hash() -> None:
    same_hash = 5 + (1 << 61) - 1

    def found(keys: list[Any], cut: int) -> Any:
        finder = bootstrap._RepeatedKeys()
        for some in (keys[:cut], keys[cut:]):
            row = finder.find(bootstrap.DataBatch(hashes_of(some), some, some, some))
            if row is not None:
                return row.key
        return None

    for cut in range(5):  # wherever one batch ends and the next begins
        assert found([1, 5, same_hash, 7], cut) is None
        assert found([1, 5, same_hash, 5], cut) == 5
        assert found([1, 5, 5, 7], cut) == 5


def test_damaged_files_are_not_copied(tmp_path: Path) -> None:
    path = Path(make_snapshot(tmp_path, "savepoint", [two_states]))
    file = next(path.glob("op/keyed-v/*.parquet"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(SnapshotError, match="corrupt"):
        SavepointBuilder.from_existing_savepoint(str(path)).write(str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_what_makes_no_sense_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def new() -> SavepointBuilder:
        return SavepointBuilder.new_savepoint(GROUPS)

    for wrong, message in (
        (lambda: new().with_keyed_state("u", VALUE, [(1, 1), (1, 2)]), "key 1: it comes more than once"),
        (
            lambda: new().with_keyed_state("u", VALUE, {1: "text"}),
            "operator 'u', state 'v', key 1: .*Long, got str: 'text'",
        ),
        (lambda: new().with_keyed_state("u", VALUE, {1: None}), "its value is null"),
        (lambda: new().with_keyed_state("u", ListStateDescriptor("l"), {1: 5}), "a list is needed, got 5"),
        (lambda: new().with_keyed_state("u", MapStateDescriptor("m"), {1: 5}), "a map is needed, got 5"),
        (lambda: new().with_keyed_state("u", VALUE, {"a": 5}, key_type=Types.LONG()), "key 'a': the key does not fit"),
        (lambda: new().with_keyed_state("u", VALUE, [5]), r"\(key, value\) pairs"),
        (lambda: new().with_keyed_state("u", VALUE, {1: 5}, key="k"), "columns of a DataFrame"),
        (lambda: new().with_keyed_state("u", VALUE, {1: 5}, element="k"), "is made with value="),
        (lambda: new().with_keyed_state("u", VALUE, {object(): 5}), "cannot be used"),
        (lambda: new().with_timers("u", [(1, "soon")]), "a number of ms"),
        (lambda: new().with_keyed_state("u", VALUE, 5), r"a mapping or \(key, value\) pairs, got 5"),
        (lambda: new().with_operator_state("u", VALUE, []), "takes a ListStateDescriptor"),
        (lambda: new().with_operator_state("u", ListStateDescriptor("l"), 5), "is made of an iterable of items, got 5"),
        (lambda: new().with_operator_state("u", MapStateDescriptor("m"), [5], "broadcast"), "of a mapping, got"),
        (lambda: new().remove_operator("x"), "no operator 'x'"),
        (lambda: new(), "would be empty"),
        (lambda: SavepointBuilder.new_savepoint(0), "max parallelism"),
        (lambda: SavepointBuilder.from_existing_savepoint(str(tmp_path / "no")), "no snapshot"),
        (
            lambda: SavepointBuilder.from_existing_savepoint(str(GOLDEN)).remove_state("everything", "x"),
            "it has: .*count",
        ),
        (
            lambda: SavepointBuilder.from_existing_savepoint(str(GOLDEN)).change_operator_identifier("out", "ticks"),
            "already",
        ),
    ):
        with pytest.raises((ConfigurationError, SnapshotError), match=message):
            wrong().write(str(tmp_path / "sp"))
        assert not (tmp_path / "sp").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(SnapshotError, match="not empty"):
        new().with_keyed_state("u", VALUE, {1: 1}).write(str(tmp_path / "full"))


def test_a_checkpoint_with_records_in_flight_is_read_but_not_built_upon(tmp_path: Path) -> None:
    path = Path(make_snapshot(tmp_path, "hashmap", [two_states]))
    channel = ChannelState(edge_key="e", upstream=0, downstream=0, side="input", records=1, handle=InlineBytes(b"", ""))
    metadata = msgspec.structs.replace(open_snapshot(str(path)).metadata, unaligned=True, channels=[channel])
    (path / "_metadata").write_bytes(encode_metadata(metadata))
    assert read_state(str(path), "uid", "v").num_rows == 100
    with pytest.raises(SnapshotError, match="records in flight"):
        SavepointBuilder.from_existing_savepoint(str(path))
