"""States with one value per entry, and timers: one record each.

The state objects are those of the heap backend: they look into `delta` first, then ask the table's `base`, here the
recent entries and RocksDB behind them. Only the writing methods add the check of the cache's bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.state.keyed_states import Cursor, HeapAggregatingState, HeapReducingState, HeapValueState
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.keys import EntryCodec, record_value
from tidegate.state.rocksdb.tables import ENTRY_COST, MISSING, RecentEntries, RocksTable

if TYPE_CHECKING:
    from rocksdict import WriteBatch


class StoredValues:
    """The `base` of the state objects: everything that is not in `delta`."""

    def __init__(self, recent: RecentEntries, codec: EntryCodec, database: Database) -> None:
        self._recent = recent
        self._encode = codec.encode
        self._database = database
        self._get = database.raw.get

    def get(self, entry: Any) -> Any:
        value = self._recent.find(entry)
        if value is MISSING:
            record_key = self._encode(entry)
            try:
                record = self._get(record_key)
            except Exception as error:
                raise self._database.failure("cannot be read", error) from error
            value = None if record is None else record_value(record)
            self._recent.remember(entry, value, ENTRY_COST + (0 if record is None else 3 * len(record)))
        return value

    def __contains__(self, entry: Any) -> bool:
        """Perhaps: a tombstone too many does no harm, and looking costs more."""
        return True


class ValueTable(RocksTable):
    """`delta`: entry -> value, None when deleted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.base = StoredValues(self.recent, self.codec, self.database)

    def get(self, entry: Any) -> Any:
        value = self.delta.get(entry, MISSING)
        return self.base.get(entry) if value is MISSING else value

    def put(self, entry: Any, value: Any) -> None:
        self.delta[entry] = value
        if len(self.delta) >= self.check_at:
            self.check(value, len(self.delta))

    def remove(self, entry: Any) -> None:
        self.put(entry, None)

    def load(self, entry: Any, value: Any, fresh: bool) -> None:
        self.put(entry, value)

    def _write(self, batch: WriteBatch, changes: list[tuple[Any, Any]]) -> WriteBatch:
        encode, record_of = self.codec.encode, self._record
        records = [(encode(e), None if value is None else record_of(e, e, value)) for e, value in changes]
        records.sort()  # RocksDB takes keys in order at a third of the cost
        size = 0
        for record_key, record in records:
            if record is None:
                batch.delete(record_key)
            else:
                batch[record_key] = record
                size += len(record)
        self.recent.update(changes)
        self.recent.charge(ENTRY_COST * len(changes) + 3 * size)
        return batch

    def stored_items(self) -> Iterator[tuple[Any, Any]]:
        for record_key, record in self._records():
            yield self._original(record_key, record), record_value(record)

    def _drop_from(self, batch: WriteBatch, record_key: bytes, record: bytes, expired: Callable[[Any], bool]) -> None:
        if expired(record_value(record)):
            entry = self._original(record_key, record)
            if entry not in self.delta:
                batch.delete(record_key)
                self.recent.forget(entry)


class RocksValueState(HeapValueState):
    __slots__ = ("_table",)

    def __init__(self, cursor: Cursor, table: ValueTable) -> None:
        super().__init__(cursor)
        self._table = table
        self.rebind(table.delta, table.base)  # type: ignore[arg-type]

    def update(self, value: Any) -> None:
        delta = self._delta
        delta[self._cursor.current_key] = value
        if len(delta) >= self._table.check_at:
            self._table.check(value, len(delta))

    def clear(self) -> None:
        self.update(None)


class RocksReducingState(HeapReducingState):
    __slots__ = ("_table",)

    def __init__(self, cursor: Cursor, table: ValueTable, reduce: Callable[[Any, Any], Any]) -> None:
        super().__init__(cursor, reduce)
        self._table = table
        self.rebind(table.delta, table.base)  # type: ignore[arg-type]

    def add(self, value: Any) -> None:
        super().add(value)
        if len(self._delta) >= self._table.check_at:
            self._table.check(value, len(self._delta))


class RocksAggregatingState(HeapAggregatingState):
    __slots__ = ("_table",)

    def __init__(self, cursor: Cursor, table: ValueTable, function: Any) -> None:
        super().__init__(cursor, function)
        self._table = table
        self.rebind(table.delta, table.base)  # type: ignore[arg-type]

    def add(self, value: Any) -> None:
        super().add(value)
        if len(self._delta) >= self._table.check_at:
            self._table.check(self._delta[self._cursor.current_key], len(self._delta))
