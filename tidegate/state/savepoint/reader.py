"""The reading side of a savepoint: entries of keyed state, items of operator state, from Parquet tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.common.errors import SnapshotError
from tidegate.state.backend import StateSource
from tidegate.state.savepoint.tables import columns_of, read_table
from tidegate.state.serialization import loads
from tidegate.storage.handles import FileRange, KeyedSnapshot, KeyedStateInfo, StateHandle


def is_table(handle: StateHandle) -> bool:
    return isinstance(handle, FileRange) and handle.path.endswith(".parquet")


def read_items(handle: StateHandle, source: StateSource) -> list[bytes]:
    """The pickled items of an operator state."""
    assert isinstance(handle, FileRange)
    table = read_table(source.read(handle), handle.path)
    (items,) = columns_of(table, ["value_pickle"], handle.path)
    return items


def read_entries(
    operator_name: str, snapshot: KeyedSnapshot, source: StateSource, key_groups: tuple[int, int] | None
) -> Iterator[tuple[str, Any, Any, Any]]:
    """(state, namespace, key, value), table by table; with `key_groups` only those of [start, end)."""
    infos = {info.name: info for info in snapshot.states}
    for increment in snapshot.increments:
        for chunk in increment.chunks:
            info = infos.get(chunk.state)
            if info is None or not is_table(chunk.handle):
                raise SnapshotError(
                    f"operator '{operator_name}': the savepoint does not describe its state '{chunk.state}'"
                )
            assert isinstance(chunk.handle, FileRange)
            table = read_table(source.read(chunk.handle), chunk.handle.path)
            if table.num_rows != chunk.entries:
                raise SnapshotError(
                    f"operator '{operator_name}': {chunk.handle.path} has {table.num_rows} rows where the savepoint "
                    f"says {chunk.entries}"
                )
            if key_groups is not None:
                table = _only(table, key_groups)
            yield from _entries(operator_name, info, table, chunk.handle.path)


def _only(table: Any, key_groups: tuple[int, int]) -> Any:
    import pyarrow.compute as pc

    group = table.column("key_group")
    return table.filter(pc.and_(pc.greater_equal(group, key_groups[0]), pc.less(group, key_groups[1])))


def _entries(operator_name: str, info: KeyedStateInfo, table: Any, where: str) -> Iterator[tuple[str, Any, Any, Any]]:
    def values_of(column: str) -> list[Any]:
        pickles = table.column(f"{column}_pickle")
        if pickles.null_count == len(pickles):
            shown: list[Any] = table.column(column).to_pylist()
            return shown
        some: list[Any] = pickles.to_pylist()
        if pickles.null_count == 0:
            return [loads(operator_name, info.name, p) for p in some]
        shown = table.column(column).to_pylist()
        return [v if p is None else loads(operator_name, info.name, p) for v, p in zip(shown, some, strict=True)]

    columns_of(table.slice(0, 0), ["key", "key_pickle", "namespace_pickle", "value", "value_pickle"], where)
    keys, values = values_of("key"), values_of("value")
    pickled = table.column("namespace_pickle").to_pylist()
    namespaces: list[Any] = [None if p is None else loads(operator_name, info.name, p) for p in pickled]
    name = info.name
    if info.kind == "timers":
        for key, namespace, timestamp in zip(keys, namespaces, values, strict=True):
            yield name, (namespace, timestamp), key, True
        return
    if info.ttl and info.kind not in ("list", "map"):
        (accessed,) = columns_of(table, ["last_access"], where)
        values = list(zip(values, accessed, strict=True))
    for key, namespace, value in zip(keys, namespaces, values, strict=True):
        yield name, namespace, key, value
