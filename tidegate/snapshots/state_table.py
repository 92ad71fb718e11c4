"""A state of a snapshot as a table: opened, with its columns known, ready to be read in pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.common.config_options import parse_duration
from tidegate.common.errors import ConfigurationError
from tidegate.common.type_schema import TypeSchema
from tidegate.snapshots.catalog import FoundState, Snapshot, open_snapshot
from tidegate.snapshots.reading import StateReader
from tidegate.snapshots.rows import Layout, Rows, make_layout, types_known
from tidegate.snapshots.splits import Split, make_splits

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class StateTable:
    """Plain data: pieces can be read in other processes, in any order."""

    reader: StateReader
    splits: list[Split]
    layout: Layout

    @property
    def schema(self) -> pa.Schema:
        return self.layout.schema()

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self.reader.batches(split, self.layout)

    def select(self, wanted: pa.Schema) -> StateTable:
        """Only these columns, keys and values as these types (what does not fit is null, with its bytes beside it).
        ConfigurationError for a column that the state does not have."""
        unknown = [name for name in wanted.names if name not in self.layout.names()]
        if unknown:
            raise ConfigurationError(
                f"operator '{self.reader.operator}': the table of state '{self.reader.state}' has no column "
                f"{', '.join(unknown)}; it has {', '.join(self.layout.names())}"
            )
        return replace(self, layout=self.layout.with_types(wanted))


class Entry(NamedTuple):
    """A key's state, as Python has it: the value, the list, the dict of a map, the accumulator."""

    key: Any
    namespace: Any  # the window; None for state that has none
    value: Any


def open_state(
    path: str,
    operator: str,
    state: str,
    *,
    pieces: int | None = None,
    ttl: Any = None,
    as_of: int | None = None,
    options: Mapping[str, str] | None = None,
    types: pa.Schema | None = None,
) -> StateTable:
    """`pieces`: into how many to cut it, about. `ttl`: leave out what had expired by `as_of` (ms since the epoch; None:
    now). `types`: take these columns instead of finding out; see `StateTable.select`."""
    snapshot = open_snapshot(path, options)
    found = snapshot.state(operator, state)
    info = found.info
    reader = StateReader(
        root=snapshot.root,
        operator=found.operator.name,
        state=state,
        kind=found.kind,
        namespaced=info is not None and info.namespaced,
        ttl=info is not None and info.ttl,
        expired_before_ms=_expiry(found, ttl, as_of),
    )
    splits = make_splits(found, pieces)
    schema = None if info is None else info.schema
    key = _key_schema(found)
    known = types is not None or (info is not None and types_known(found.kind, schema, key))
    layout = make_layout(
        found.kind,
        schema,
        key,
        namespaced=reader.namespaced,
        ttl=reader.ttl,
        max_parallelism=found.operator.max_parallelism,
        sample=None if known else _sample(reader, splits),
    )
    table = StateTable(reader, splits, layout)
    return table if types is None else table.select(types)


def _expiry(state: FoundState, ttl: Any, as_of: int | None) -> int | None:
    if ttl is None:
        return None
    if state.info is None or not state.info.ttl:
        raise ConfigurationError(
            f"operator '{state.operator.name}': state '{state.name}' was stored without a time to live, so nothing of "
            "it can have expired; leave out the ttl"
        )
    try:
        length = parse_duration(ttl)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"the ttl {ttl!r} is not a duration such as '1 h' or '30 min': {error}") from error
    return int(time.time() * 1000 if as_of is None else as_of) - length


def _key_schema(state: FoundState) -> TypeSchema | None:
    return next((k.key for k in state.keyed() if k.key is not None), None)


def _sample(reader: StateReader, splits: Sequence[Split]) -> Rows | None:
    """The first rows that there are."""
    for split in splits:
        for rows in reader.rows(split):
            return rows
    return None


# ---------------------------------------------------------------- for small ones


def read_state(
    path: str,
    operator: str,
    state: str,
    *,
    ttl: Any = None,
    as_of: int | None = None,
    options: Mapping[str, str] | None = None,
) -> pa.Table:
    """A state of a checkpoint or savepoint as an Arrow table, without Spark. It has to fit into memory.

    `operator`: uid, name or operator id. See docs/state-as-tables.md for the columns."""
    import pyarrow as pa

    table = open_state(path, operator, state, ttl=ttl, as_of=as_of, options=options)
    return pa.Table.from_batches([b for split in table.splits for b in table.batches(split)], table.schema)


def iterate_state(
    path: str, operator: str, state: str, options: Mapping[str, str] | None = None
) -> Iterator[Entry | Any]:
    """A state as Python values: an `Entry` per key (and window), an item per item of operator state, a pair per entry
    of broadcast state. With a time to live each value, element or map value is a pair (value, last access in ms).
    Classes have to be importable, as for a job."""
    snapshot = open_snapshot(path, options)
    found = snapshot.state(operator, state)
    return _items(snapshot, found) if found.info is None else _entries(snapshot, found)


def _entries(snapshot: Snapshot, found: FoundState) -> Iterator[Entry]:
    from tidegate.state.entries import iterate_snapshot
    from tidegate.storage.worker_storage import file_source

    source = file_source(str(snapshot.root), dict(snapshot.root.options))
    for keyed in found.keyed():
        for name, namespace, key, value in iterate_snapshot(found.operator.name, keyed, source):
            if name == found.name:
                yield Entry(key, namespace, value)


def _items(snapshot: Snapshot, found: FoundState) -> Iterator[Any]:
    reader = StateReader(snapshot.root, found.operator.name, found.name, found.kind, False, False)
    for split in make_splits(found, None):
        for rows in reader.rows(split):
            yield from rows.values if rows.map_keys is None else zip(rows.map_keys, rows.values, strict=True)
