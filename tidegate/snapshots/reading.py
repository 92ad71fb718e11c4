"""One piece of a state, from storage to rows. Checks every checksum; never fails for want of a class."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import SnapshotError
from tidegate.snapshots import stand_ins
from tidegate.snapshots.rows import ROWS_PER_BATCH, Layout, PartCollector, Rows, flatten, ready
from tidegate.snapshots.splits import HeapSplit, ItemsSplit, RocksSplit, Split, TableSplit
from tidegate.state.backend import StateSource
from tidegate.state.savepoint.reader import is_table, read_chunk, read_items
from tidegate.state.savepoint.values import decode_column
from tidegate.storage.handles import KeyedChunk
from tidegate.storage.location import StorageLocation
from tidegate.storage.worker_storage import file_source

if TYPE_CHECKING:
    import pyarrow as pa

_FRAMED = ord("K")  # the first byte of a RocksDB record that holds the original of its key, see `records.frame`


@dataclass(frozen=True)
class StateReader:
    """How to read the pieces of one state: plain data, to be sent to whoever reads them."""

    root: StorageLocation
    operator: str  # its name, for errors
    state: str
    kind: str
    namespaced: bool
    ttl: bool
    expired_before_ms: int | None = None  # leave out what was last accessed before or at this time

    def rows(self, split: Split, layout: Layout | None = None) -> Iterator[Rows]:
        """With a layout columns that are right already are taken as they are."""
        stand_ins.forget()
        source = file_source(str(self.root), dict(self.root.options))
        if isinstance(split, HeapSplit):
            found = self._heap(split, source)
        elif isinstance(split, TableSplit):
            found = self._tables(split, source, layout)
        elif isinstance(split, RocksSplit):
            found = self._rocksdb(split, source)
        else:
            found = self._items(split, source)
        for rows in found:
            if self.expired_before_ms is not None and rows.times is not None:
                limit = self.expired_before_ms
                rows = rows.only([t > limit for t in rows.times])
            if len(rows):
                yield rows

    def batches(self, split: Split, layout: Layout) -> Iterator[pa.RecordBatch]:
        for rows in self.rows(split, layout):
            yield layout.batch(rows)

    # ------------------------------------------------------------ heap

    def _heap(self, split: HeapSplit, source: StateSource) -> Iterator[Rows]:
        changed: dict[Any, Any] = {}
        for chunk in split.changes:
            changed.update(zip(*self._chunk(chunk, source), strict=True))
        for chunk in split.chunks:
            keys, values = self._chunk(chunk, source)
            if changed:
                old = [(k, v) for k, v in zip(keys, values, strict=True) if k not in changed]
                keys, values = [k for k, _ in old], [v for _, v in old]
            yield from self._flat(keys, values)
        if split.has_changes:
            left = iter([(k, v) for k, v in changed.items() if v is not None])
            while some := list(islice(left, ROWS_PER_BATCH)):
                yield from self._flat([k for k, _ in some], [v for _, v in some])

    def _chunk(self, chunk: KeyedChunk, source: StateSource) -> tuple[list[Any], list[Any]]:
        content = stand_ins.loads(source.read(chunk.handle))
        if isinstance(content, stand_ins.Unreadable):
            raise self._error(f"some entries cannot be unpickled: {content!r}")
        keys, values = content
        if not len(keys) == len(values) == chunk.entries:
            raise self._error(f"{len(keys)} keys and {len(values)} values where the snapshot says {chunk.entries}")
        return keys, values

    def _flat(self, entries: list[Any], values: list[Any]) -> Iterator[Rows]:
        if self.namespaced:
            keys, namespaces = [k for k, _ in entries], [n for _, n in entries]
            return flatten(self.kind, self.ttl, keys, namespaces, values)
        return flatten(self.kind, self.ttl, entries, None, values)

    # ------------------------------------------------------------ savepoint

    def _tables(self, split: TableSplit, source: StateSource, layout: Layout | None) -> Iterator[Rows]:
        for chunk in split.chunks:
            table = read_chunk(self.operator, chunk, source)
            for start in range(0, table.num_rows, 8 * ROWS_PER_BATCH):
                part = table.slice(start, 8 * ROWS_PER_BATCH).combine_chunks()
                yield from self._table(part, layout)

    def _table(self, table: Any, layout: Layout | None) -> Iterator[Rows]:
        groups = table.column("key_group").combine_chunks()
        pickled = table.column("namespace_pickle").to_pylist() if self.namespaced else None
        namespaces = None if pickled is None else [None if p is None else stand_ins.loads(p) for p in pickled]
        keys = _column(table, "key", layout.key.type if layout is not None and layout.key is not None else None)
        if self.kind in ("list", "map"):
            values = _column(table, "value", None)
            yield from flatten(self.kind, self.ttl, _listed(keys, table), namespaces, values)
            return
        values = _column(table, "value", layout.value.type if layout is not None else None)
        times = table.column("last_access").to_pylist() if self.ttl else None
        rows = Rows(values=values, keys=keys, groups=groups, namespaces=namespaces, times=times)
        if self.expired_before_ms is not None and self.ttl:  # rows are picked one by one: they have to be lists
            rows.keys, rows.values, rows.groups = _column(table, "key", None), _column(table, "value", None), None
        yield rows

    # ------------------------------------------------------------ RocksDB

    def _rocksdb(self, split: RocksSplit, source: StateSource) -> Iterator[Rows]:
        from tidegate.state.rocksdb.database import Database
        from tidegate.state.rocksdb.keys import EntryCodec
        from tidegate.state.rocksdb.reader import download

        with tempfile.TemporaryDirectory(prefix="tidegate-snapshot-") as folder:
            download(self.operator, split.snapshot.files, source, Path(folder))
            database = Database(self.operator, Path(folder), None, read_only=True)
            try:
                codec = EntryCodec(split.number, 1, self.namespaced)  # the number of groups is only needed to write
                scans = (database.scan(*codec.range(group)) for group in range(*split.key_groups))
                records = chain.from_iterable(scans)
                if self.kind == "list":
                    yield from self._list_records(records, codec)
                elif self.kind == "map":
                    yield from self._map_records(records, codec)
                else:
                    while some := list(islice(records, ROWS_PER_BATCH)):
                        yield from self._value_records(some, codec)
            finally:
                database.close()

    def _value_records(self, records: list[tuple[bytes, bytes]], codec: Any) -> Iterator[Rows]:
        from tidegate.state.rocksdb.records import decode_records

        stored = [record for _, record in records]
        try:
            values = decode_records(stored)
        except Exception:
            values = list(map(_value_of, stored))
        entries: Any = None
        if _FRAMED not in set(map(itemgetter(0), stored)):
            entries, groups = _int_keys([key for key, _ in records])
        if entries is None:
            entries = [_entry_of(codec, key, record) for key, record in records]
            groups = [int.from_bytes(key[:2], "big") for key, _ in records]
        if self.namespaced:
            keys, namespaces = [e[0] for e in entries], [e[1] for e in entries]
            yield from flatten(self.kind, self.ttl, keys, namespaces, values, groups)
        else:
            yield from flatten(self.kind, self.ttl, entries, None, values, groups)

    def _list_records(self, records: Iterator[tuple[bytes, bytes]], codec: Any) -> Iterator[Rows]:
        collected = PartCollector(self.kind, self.ttl, self.namespaced)
        for _, chunks in groupby(records, lambda r: r[0][: codec.split(r[0])]):
            position = 0
            for record_key, record in chunks:
                key, namespace = self._parts(_entry_of(codec, record_key, record))
                elements = _value_of(record)
                yield from collected.add_all(key, namespace, elements, position)
                position += len(elements) if isinstance(elements, list) else 1
        yield from collected.rest()

    def _map_records(self, records: Iterator[tuple[bytes, bytes]], codec: Any) -> Iterator[Rows]:
        from tidegate.state.rocksdb.keys import decode_value

        collected = PartCollector(self.kind, self.ttl, self.namespaced)
        for record_key, record in records:
            original = _original(record)
            if original is None:
                entry, map_key = codec.decode(record_key), decode_value(record_key[codec.split(record_key) :])
            elif isinstance(original, tuple):
                entry, map_key = original
            else:  # cannot be read at all
                entry, map_key = (original, None) if self.namespaced else original, original
            collected.add(*self._parts(entry), map_key, _value_of(record))
            if len(collected) >= ROWS_PER_BATCH:
                yield from collected.rest()
        yield from collected.rest()

    def _parts(self, entry: Any) -> tuple[Any, Any]:
        return (entry[0], entry[1]) if self.namespaced else (entry, None)

    # ------------------------------------------------------------ operator state

    def _items(self, split: ItemsSplit, source: StateSource) -> Iterator[Rows]:
        handle = split.part.handle
        stored = read_items(handle, source) if is_table(handle) else stand_ins.loads(source.read(handle))
        if len(stored) != split.part.count:
            raise self._error(f"{len(stored)} items where the snapshot says {split.part.count}")
        for start in range(0, len(stored), ROWS_PER_BATCH):
            items = [stand_ins.loads(item) for item in stored[start : start + ROWS_PER_BATCH]]
            subtasks = [split.subtask] * len(items)
            if self.kind == "broadcast":
                pairs = [item if isinstance(item, tuple) else (None, item) for item in items]
                yield Rows(values=[p[1] for p in pairs], map_keys=[p[0] for p in pairs], subtasks=subtasks)
            else:
                yield Rows(values=items, positions=range(start, start + len(items)), subtasks=subtasks)

    def _error(self, what: str) -> SnapshotError:
        return SnapshotError(f"operator '{self.operator}', state '{self.state}': {what}")


# ---------------------------------------------------------------- details


def _column(table: Any, name: str, wanted: Any) -> Any:
    """A column of a savepoint: Arrow's own when it has the wanted type and says everything, else Python's values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pickles = table.column(f"{name}_pickle").combine_chunks()
    shown = table.column(name).combine_chunks()
    exact = pickles.null_count == len(pickles)
    if wanted is not None and (exact or (not pa.types.is_string(shown.type) and _alike(shown.type, wanted))):
        try:
            cast = shown.cast(wanted)
            # Bytes are there for every list or row; they are of interest where the column could not take the value.
            return ready(cast, pickles if exact else pc.if_else(cast.is_valid(), pa.scalar(None, pa.binary()), pickles))
        except pa.ArrowException:
            pass  # a type that the reader asked for and that does not fit all values
    return decode_column(shown, pickles, stand_ins.loads)


def _alike(stored: Any, wanted: Any) -> bool:
    """Whether a column can be shown as it is stored: with the same parts under the same names."""
    import pyarrow as pa

    return not pa.types.is_nested(wanted) or bool(stored == wanted)


def _listed(keys: Any, table: Any) -> Any:
    """Keys that are to be repeated, one per element."""
    return keys if isinstance(keys, list) else _column(table, "key", None)


def _value_of(record: bytes) -> Any:
    from tidegate.state.rocksdb.records import record_value

    try:
        return record_value(record)
    except Exception:  # of a class that is not here, or refuses its content
        return stand_ins.loads(record[_framed_end(record) :] if record[0] == _FRAMED else record)


def _original(record: bytes) -> Any:
    from tidegate.state.rocksdb.records import framed_original

    try:
        return framed_original(record)
    except Exception:
        return stand_ins.loads(record[5 : _framed_end(record)])


def _framed_end(record: bytes) -> int:
    return 5 + int.from_bytes(record[1:5], "big")


def _entry_of(codec: Any, record_key: bytes, record: bytes) -> Any:
    original = _original(record)
    return codec.decode(record_key) if original is None else original


def _int_keys(record_keys: list[bytes]) -> tuple[Any, Any]:
    """(keys, key groups) as arrays, when all keys are small integers; otherwise (None, None)."""
    import numpy as np

    if set(map(len, record_keys)) != {17}:
        return None, None
    layout = np.dtype([("group", ">u2"), ("state", ">u2"), ("length", ">u4"), ("tag", "S1"), ("key", ">i8")])
    parsed = np.frombuffer(b"".join(record_keys), dtype=layout)
    if not ((parsed["length"] == 9).all() and (parsed["tag"] == b"i").all()):
        return None, None
    return parsed["key"].astype(np.int64), parsed["group"].astype(np.int32)
