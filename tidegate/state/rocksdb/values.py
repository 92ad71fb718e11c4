"""States with one value per entry, and timers: one record each.

The state objects are those of the heap backend: they look into `delta` first, then ask the table's `base`, here the
frozen changes, the recent entries and RocksDB behind them. The writing methods add the check of the cache's bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.common.value_sizes import estimated_size
from tidegate.state.keyed_states import Cursor, HeapAggregatingState, HeapReducingState, HeapValueState
from tidegate.state.read_budget import ReadBudget
from tidegate.state.rocksdb.bulk_keys import encode_all, encode_in_order
from tidegate.state.rocksdb.frozen import Frozen
from tidegate.state.rocksdb.recent import ENTRY_COST, MISSING
from tidegate.state.rocksdb.records import decode_records, encode_numbers, record_value
from tidegate.state.rocksdb.tables import DRAIN_PORTION, PLAIN_DRAIN_PORTION, RocksTable

if TYPE_CHECKING:
    from rocksdict import WriteBatch

_EXACT = frozenset({int, str, bytes})
_WORTH_PREFETCHING = 4
"""Fewer single reads than this in a batch are left as they are."""

_BATCHES_AHEAD = 256
"""So many batches are prefetched before one is left alone, to see whether its keys are still read (10 us each)."""


class StoredValues:
    """The `base` of the state objects: everything that is not in `delta`."""

    def __init__(self, table: ValueTable) -> None:
        self.misses = 0  # single reads from RocksDB since the last batch began
        self._table = table
        self._recent = table.recent
        self._known = table.recent.get
        self._get = table.database.raw.get

    def get(self, entry: Any) -> Any:
        frozen = self._table.frozen
        if frozen:
            value = frozen.get(entry, MISSING)
            if value is not MISSING:
                return value
        value = self._known(entry, MISSING)
        if value is not MISSING:
            return value
        value = self._recent.find(entry)
        return self._read(entry) if value is MISSING else value

    def _read(self, entry: Any) -> Any:
        self.misses += 1
        record_key = self._table.codec.encode(entry)
        try:
            record = self._get(record_key)
        except Exception as error:
            raise self._table.database.failure("cannot be read", error) from error
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
        self.base = StoredValues(self)
        self._batches_ahead = 0  # how many more are prefetched without asking

    def get(self, entry: Any) -> Any:
        value = self.delta.get(entry, MISSING)
        return self.base.get(entry) if value is MISSING else value

    def peek(self, entry: Any, budget: ReadBudget) -> Any:
        for changes in (self.delta, self.frozen):
            value = changes.get(entry, MISSING)
            if value is not MISSING:
                break
        else:
            value = self.recent.look(entry)
        if value is not MISSING:
            budget.take(self.info, 1, estimated_size(value))
            return value
        record = self.database.get_many([self.codec.encode(entry)])[0]
        budget.take(self.info, 1, len(record or b""))
        return None if record is None else record_value(record)

    def put(self, entry: Any, value: Any) -> None:
        self.delta[entry] = value
        if len(self.delta) >= self.check_at:
            self.check(value, len(self.delta))

    def remove(self, entry: Any) -> None:
        self.put(entry, None)

    def load(self, entry: Any, value: Any, fresh: bool) -> None:
        self.put(entry, value)

    # ------------------------------------------------------------ prefetching

    @property
    def may_prefetch(self) -> bool:
        """Whether prefetching is worthwhile: not when the batch before this one read next to nothing from RocksDB."""
        return self._batches_ahead > 0 or self.base.misses >= _WORTH_PREFETCHING

    def prefetch(self, keys: list[Any]) -> None:
        """The keys of the next batch: read what is not known of them in one go, which takes half the time of single
        reads. Only if a batch that was left alone did read at least a quarter of its unknown keys."""
        misses, self.base.misses = self.base.misses, 0
        unknown = self.recent.unknown(keys, self.delta, self.frozen)
        if self._batches_ahead:
            self._batches_ahead -= 1
        elif misses * 4 >= len(unknown):
            self._batches_ahead = _BATCHES_AHEAD
        else:
            return
        if len(unknown) < _WORTH_PREFETCHING:
            self._batches_ahead = 0
            return
        unknown = list(dict.fromkeys(unknown))
        records = self.database.get_many(encode_all(self.codec, unknown))
        found = [record for record in records if record is not None]
        values = decode_records(found)
        if len(found) < len(records):
            following = iter(values)
            values = [None if record is None else next(following) for record in records]
        self.recent.update(zip(unknown, values, strict=True))
        self.recent.charge(ENTRY_COST * len(unknown) + 3 * sum(map(len, found)))

    # ------------------------------------------------------------ writing

    def _write_back(self) -> None:
        """Freezes the changes. They are not written at once: `drain` writes some after each batch, so that none waits
        long."""
        self.settle()
        self._finish()
        self.freeze(Frozen(self.delta.copy(), None))

    def _unwritten(self) -> dict[Any, Any]:
        """All changes, with what is being drained: that a part of it is written twice does no harm."""
        if not self.frozen:
            return self.delta.copy()
        changes = self.frozen.copy()  # most are in there, and a copy costs a fifth of putting them into a new dict
        changes.update(self.delta)
        return changes

    def _values_of(self, changes: Iterable[Any]) -> Iterable[Any]:
        return changes

    def _serialise(self, changes: list[tuple[Any, Any]]) -> list[tuple[bytes, bytes | None]]:
        """Makes pairs (record key, record or None) in the order of the keys: so RocksDB takes them at a third of the
        cost."""
        entries, values = [entry for entry, _ in changes], [value for _, value in changes]
        keys, positions = encode_in_order(self.codec, entries)
        records: list[Any] | None = None
        if not self.codec.namespaced and set(map(type, entries)) <= _EXACT:
            records = encode_numbers(values)
        self._drain_portion = DRAIN_PORTION if records is None else PLAIN_DRAIN_PORTION
        if records is None:
            record_of = self._record
            records = [None if value is None else record_of(e, e, value) for e, value in changes]
        return [(key, records[i]) for key, i in zip(keys, positions, strict=True)]

    def _fill(self, batch: WriteBatch, records: list[Any], frozen: Frozen) -> None:
        size = 0
        for record_key, record in records:
            if record is None:
                batch.delete(record_key)
            else:
                batch[record_key] = record
                size += len(record)
        frozen.size += size

    def _remember(self, frozen: Frozen) -> None:
        self.recent.update(frozen.changes)
        self.recent.charge(ENTRY_COST * len(frozen.changes) + 3 * frozen.size)

    # ------------------------------------------------------------ reading

    def stored_items(self) -> Iterator[tuple[Any, Any]]:
        for record_key, record in self._records():
            yield self._original(record_key, record), record_value(record)

    def _drop_from(self, batch: WriteBatch, record_key: bytes, record: bytes, expired: Callable[[Any], bool]) -> None:
        if expired(record_value(record)):
            entry = self._original(record_key, record)
            if entry not in self.delta and entry not in self.frozen:
                batch.delete(record_key)
                self.recent.forget(entry)


class RocksValueState(HeapValueState):
    __slots__ = ("_table",)

    def __init__(self, cursor: Cursor, table: ValueTable) -> None:
        super().__init__(cursor)
        self._table = table
        self.rebind(table.delta, table.base)  # type: ignore[arg-type]

    def value(self) -> Any:
        key = self._cursor.current_key
        value = self._delta.get(key, MISSING)
        if value is MISSING:
            table = self._table
            if not table.frozen:  # written out, as it is where prefetched values are found
                value = table.recent.get(key, MISSING)
            if value is MISSING:
                value = table.base.get(key)
        return value

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
