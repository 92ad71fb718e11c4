"""The reading side of a savepoint: entries of keyed state, items of operator state, from Parquet tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import SnapshotDamagedError
from tidegate.state.backend import StateSource
from tidegate.state.savepoint.tables import columns_of, read_table
from tidegate.state.savepoint.values import decode_column
from tidegate.state.serialization import loads
from tidegate.storage.handles import FileRange, KeyedChunk, KeyedSnapshot, KeyedStateInfo, StateHandle

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ["key_group", "key", "key_pickle", "namespace_pickle", "value", "value_pickle"]


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
            if info is None:
                raise _not_described(operator_name, chunk)
            table = read_chunk(operator_name, chunk, source)
            if key_groups is not None:
                table = _only(table, key_groups)
            yield from _entries(operator_name, info, table)


def read_chunk(operator_name: str, chunk: KeyedChunk, source: StateSource) -> pa.Table:
    """A table of keyed state, which has its columns and all of its rows."""
    if not is_table(chunk.handle):
        raise _not_described(operator_name, chunk)
    assert isinstance(chunk.handle, FileRange)
    path = chunk.handle.path
    table = read_table(source.read(chunk.handle), path)
    columns_of(table.slice(0, 0), _COLUMNS, path)
    if table.num_rows != chunk.entries:
        raise SnapshotDamagedError(
            f"operator '{operator_name}': {path} has {table.num_rows} rows where the savepoint says {chunk.entries}"
        )
    return table


def _not_described(operator_name: str, chunk: KeyedChunk) -> SnapshotDamagedError:
    return SnapshotDamagedError(
        f"operator '{operator_name}': the savepoint does not describe its state '{chunk.state}'"
    )


def _only(table: pa.Table, key_groups: tuple[int, int]) -> pa.Table:
    import pyarrow.compute as pc

    group = table.column("key_group")
    return table.filter(pc.and_(pc.greater_equal(group, key_groups[0]), pc.less(group, key_groups[1])))


def _entries(operator_name: str, info: KeyedStateInfo, table: pa.Table) -> Iterator[tuple[str, Any, Any, Any]]:
    def values_of(column: str) -> list[Any]:
        shown, pickles = (table.column(n).combine_chunks() for n in (column, f"{column}_pickle"))
        return decode_column(shown, pickles, lambda data: loads(operator_name, info.name, data))

    keys, values = values_of("key"), values_of("value")
    pickled = table.column("namespace_pickle").to_pylist()
    namespaces: list[Any] = [None if p is None else loads(operator_name, info.name, p) for p in pickled]
    name = info.name
    if info.kind == "timers":
        for key, namespace, timestamp in zip(keys, namespaces, values, strict=True):
            yield name, (namespace, timestamp), key, True
        return
    if info.ttl and info.kind not in ("list", "map"):
        (accessed,) = columns_of(table, ["last_access"], f"operator '{operator_name}': state '{info.name}'")
        values = list(zip(values, accessed, strict=True))
    for key, namespace, value in zip(keys, namespaces, values, strict=True):
        yield name, namespace, key, value
