"""Map state: one record per map entry, so that a map may be larger than memory; `items()` of course is not.

No order is promised: entries come in the order of their keys' bytes, those changed lately last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tidegate.common.value_sizes import estimated_size
from tidegate.contracts.state import MapState
from tidegate.state.keyed_states import Cursor
from tidegate.state.read_budget import ReadBudget, check_parts
from tidegate.state.rocksdb.frozen import Frozen
from tidegate.state.rocksdb.keys import decode_value, encode_value, prefix_end
from tidegate.state.rocksdb.recent import ENTRY_COST, MISSING
from tidegate.state.rocksdb.records import framed_original, record_value
from tidegate.state.rocksdb.tables import RocksTable

if TYPE_CHECKING:
    from rocksdict import WriteBatch

GONE: Any = object()
"""Stands for "no such entry" in changes and among recent entries, where None is a value."""

POINT_DELETES = 1_000
"""A cleared map with more entries than this is deleted as a range: markers of deleted ranges slow down reads."""


class MapChange:
    """`cleared`: what is stored is gone. `puts`: map key -> value or GONE."""

    __slots__ = ("cleared", "puts")

    def __init__(self, cleared: bool, puts: dict[Any, Any]) -> None:
        self.cleared = cleared
        self.puts = puts


class MapTable(RocksTable):
    """`delta`: entry -> MapChange. Recent entries: (entry, map key) -> value or GONE."""

    delta: dict[Any, MapChange]
    frozen: dict[Any, MapChange]

    def get(self, entry: Any) -> dict[Any, Any]:
        """The whole map, a dict of its own."""
        change = self._change(entry)
        if change is None:
            return dict(self._scan(entry))
        content = change.puts if change.cleared else {**dict(self._scan(entry)), **change.puts}
        return {key: value for key, value in content.items() if value is not GONE}

    def peek(self, entry: Any, budget: ReadBudget) -> dict[Any, Any]:
        changes = [change for one in (self.delta, self.frozen) if (change := one.get(entry)) is not None]
        for kept in changes:
            check_parts(self.info, len(kept.puts))
            budget.take(self.info, len(kept.puts), estimated_size(kept.puts))
        change = self._change(entry)
        content: dict[Any, Any] = {}
        if change is None or not change.cleared:
            for key, value in self._peek_stored(entry, budget):
                content[key] = value
                check_parts(self.info, len(content))
        content.update({} if change is None else change.puts)
        check_parts(self.info, len(content))
        budget.take(self.info, 1)
        return {key: value for key, value in content.items() if value is not GONE}

    def _peek_stored(self, entry: Any, budget: ReadBudget) -> Iterator[tuple[Any, Any]]:
        prefix = self.codec.encode(entry)
        for record_key, record in self.database.scan(prefix, prefix_end(prefix)):
            budget.take(self.info, 1, len(record))
            yield self._map_key(record_key, len(prefix), record), record_value(record)

    def _change(self, entry: Any) -> MapChange | None:
        """The change of an entry against what RocksDB holds, which may have some of the frozen changes already: that
        they are applied twice does no harm. Not to be changed by the caller."""
        change, older = self.delta.get(entry), self.frozen.get(entry)
        if older is None or (change is not None and change.cleared):
            return change
        return older if change is None else MapChange(older.cleared, {**older.puts, **change.puts})

    def put(self, entry: Any, value: Mapping[Any, Any]) -> None:
        self.delta[entry] = MapChange(True, dict(value))
        self.count(value, 1 + len(value))

    def remove(self, entry: Any) -> None:
        self.put(entry, {})

    def load(self, entry: Any, value: Any, fresh: bool) -> None:
        self.delta[entry] = MapChange(not fresh, dict(value or {}))
        self.count(value, 1 + len(value or {}))

    def count(self, value: Any, by: int) -> None:
        self.changes += by
        if self.changes >= self.check_at:
            self.check(value, self.changes)

    def check_size(self) -> None:
        """Map entries are counted as they are put."""

    def get_one(self, entry: Any, key: Any) -> Any:
        """The value of a map key, GONE when there is none."""
        for changes in (self.delta, self.frozen):
            change = changes.get(entry)
            if change is not None:
                value = change.puts.get(key, MISSING)
                if value is not MISSING:
                    return value
                if change.cleared:
                    return GONE
        value = self.recent.find((entry, key))
        if value is MISSING:
            record_key = self.codec.encode(entry) + encode_value(key)
            try:
                record = self.database.raw.get(record_key)
            except Exception as error:
                raise self.database.failure("cannot be read", error) from error
            value = GONE if record is None else record_value(record)
            self.recent.remember((entry, key), value, ENTRY_COST + (0 if record is None else 3 * len(record)))
        return value

    def is_empty(self, entry: Any) -> bool:
        change = self._change(entry)
        if change is None:
            return next(self._scan(entry), None) is None
        if any(value is not GONE for value in change.puts.values()):
            return False
        return change.cleared or all(key in change.puts for key, _ in self._scan(entry))

    def _scan(self, entry: Any) -> Iterator[tuple[Any, Any]]:
        prefix = self.codec.encode(entry)
        for record_key, record in self.database.scan(prefix, prefix_end(prefix)):
            yield self._map_key(record_key, len(prefix), record), record_value(record)

    @staticmethod
    def _map_key(record_key: bytes, start: int, record: bytes) -> Any:
        original = framed_original(record)
        return decode_value(record_key[start:]) if original is None else original[1]

    def _values_of(self, changes: Iterable[MapChange]) -> list[Any]:
        return [value for change in changes for value in change.puts.values() if value is not GONE]

    def _serialise(self, changes: list[tuple[Any, MapChange]]) -> list[tuple[bytes, Any]]:
        """Makes pairs (record key, record or None), and before those of a cleared map (what they begin with, a list of
        the entry: `[entry]`)."""
        records: list[tuple[bytes, Any]] = []
        for entry, change in changes:
            prefix = self.codec.encode(entry)
            if change.cleared:
                records.append((prefix, [entry]))
            for key, value in change.puts.items():
                record = None if value is GONE else self._record(entry, (entry, key), value)
                records.append((prefix + encode_value(key), record))
        return records

    def _fill(self, batch: WriteBatch, records: list[Any], frozen: Frozen) -> None:
        for record_key, record in records:
            if record is None:
                batch.delete(record_key)
            elif type(record) is list:
                self._delete_all(batch, record[0], record_key, frozen)
            else:
                batch[record_key] = record
                frozen.size += len(record)

    def _delete_all(self, batch: WriteBatch, entry: Any, prefix: bytes, frozen: Frozen) -> None:
        end = prefix_end(prefix)
        keys = []
        for record_key, record in self.database.scan(prefix, end):
            frozen.forgotten.append((entry, self._map_key(record_key, len(prefix), record)))
            keys.append(record_key)
        if len(keys) > POINT_DELETES:
            batch.delete_range(prefix, end)
        else:
            for record_key in keys:
                batch.delete(record_key)

    def _remember(self, frozen: Frozen) -> None:
        for known in frozen.forgotten:
            self.recent.forget(known)
        puts = sum(len(change.puts) for change in frozen.changes.values())
        cost = ENTRY_COST + 3 * frozen.size // max(1, puts)
        for entry, change in frozen.changes.items():
            for key, value in change.puts.items():
                self.recent.remember((entry, key), value, cost)

    def stored_items(self) -> Iterator[tuple[Any, Any]]:
        split = self.codec.split
        for prefix, records in groupby(self._records(), lambda r: r[0][: split(r[0])]):
            entry: Any = MISSING
            content = {}
            for record_key, record in records:
                if entry is MISSING:
                    entry = self._original(record_key, record)
                content[self._map_key(record_key, len(prefix), record)] = record_value(record)
            yield entry, content

    def live_keys(self) -> Iterator[Any]:
        self.flush()
        split = self.codec.split
        last = None
        for record_key, record in self._records():
            prefix = record_key[: split(record_key)]
            if prefix != last:
                last = prefix
                yield self._original(record_key, record)

    def _original(self, record_key: bytes, record: bytes) -> Any:
        original = framed_original(record)
        return self.codec.decode(record_key) if original is None else original[0]

    def _drop_from(self, batch: WriteBatch, record_key: bytes, record: bytes, expired: Callable[[Any], bool]) -> None:
        if not expired(record_value(record)):
            return
        entry = self._original(record_key, record)
        if entry not in self.delta:
            batch.delete(record_key)
            self.recent.forget((entry, self._map_key(record_key, self.codec.split(record_key), record)))


class RocksMapState(MapState[Any, Any]):
    __slots__ = ("_cursor", "_table")

    def __init__(self, cursor: Cursor, table: MapTable) -> None:
        self._cursor = cursor
        self._table = table

    def get(self, key: Any) -> Any:
        value = self._table.get_one(self._cursor.current_key, key)
        return None if value is GONE else value

    def contains(self, key: Any) -> bool:
        return self._table.get_one(self._cursor.current_key, key) is not GONE

    def put(self, key: Any, value: Any) -> None:
        table, entry = self._table, self._cursor.current_key
        change = table.delta.get(entry)
        if change is None:
            table.delta[entry] = MapChange(False, {key: value})
        else:
            change.puts[key] = value
        table.changes += 1
        if table.changes >= table.check_at:
            table.check(value, table.changes)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        for key, value in dict(dict_value).items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        self.put(key, GONE)

    def items(self) -> list[tuple[Any, Any]]:
        """A copy, like `keys` and `values`: changing the map while one iterates is fine."""
        return list(self._table.get(self._cursor.current_key).items())

    def keys(self) -> list[Any]:
        return list(self._table.get(self._cursor.current_key))

    def values(self) -> list[Any]:
        return list(self._table.get(self._cursor.current_key).values())

    def is_empty(self) -> bool:
        return self._table.is_empty(self._cursor.current_key)

    def clear(self) -> None:
        self._table.remove(self._cursor.current_key)
