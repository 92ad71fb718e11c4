"""List state: a list is stored in chunks, so that appending never reads what is there.

A flush writes what was added since the last one as one more chunk; the record key ends with a number that grows (the
database's sequence number), so the chunks of a list stand in order. Reading a list of many chunks joins them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from tidegate.common.value_sizes import estimated_size
from tidegate.contracts.state import ListState
from tidegate.state.keyed_states import Cursor
from tidegate.state.read_budget import ReadBudget, check_parts
from tidegate.state.rocksdb.frozen import Frozen
from tidegate.state.rocksdb.keys import prefix_end
from tidegate.state.rocksdb.recent import ENTRY_COST, MISSING
from tidegate.state.rocksdb.records import frame, framed_original, record_value
from tidegate.state.rocksdb.tables import RocksTable
from tidegate.state.serialization import dumps

if TYPE_CHECKING:
    from rocksdict import WriteBatch

NUMBER = struct.Struct(">Q")
JOIN_AT = 32
"""A list that is found in so many chunks is rewritten as one."""


class ListChange:
    """`replaced`: what is stored is gone; `new` comes after it otherwise."""

    __slots__ = ("new", "replaced")

    def __init__(self, replaced: bool, new: list[Any]) -> None:
        self.replaced = replaced
        self.new = new


class ListTable(RocksTable):
    """`delta`: entry -> ListChange. Recent entries are whole lists."""

    delta: dict[Any, ListChange]
    frozen: dict[Any, ListChange]
    _frozen_at = 0  # chunks with a greater number hold what is frozen

    def get(self, entry: Any) -> list[Any]:
        """A list of its own, empty when there is no entry."""
        change = self.delta.get(entry)
        if change is None:
            return self._stored(entry)[:]
        return change.new[:] if change.replaced else self._stored(entry) + change.new

    def peek(self, entry: Any, budget: ReadBudget) -> list[Any]:
        budget.take(self.info, 1)
        parts: list[list[Any]] = []  # newest first
        for changes in (self.delta, self.frozen):
            change = changes.get(entry)
            if change is not None:
                parts.append(change.new)
                self._take_kept(change.new, budget)
                if change.replaced:
                    break
        else:
            parts.append(self._peek_stored(entry, budget))
        check_parts(self.info, sum(map(len, parts)))
        return list(chain.from_iterable(reversed(parts)))

    def _peek_stored(self, entry: Any, budget: ReadBudget) -> list[Any]:
        known: list[Any] = self.recent.look(entry)
        if known is not MISSING:
            self._take_kept(known, budget)
            return known
        elements: list[Any] = []
        for record in self._older_chunks(self.codec.encode(entry)):
            budget.take(self.info, 1, len(record))
            elements += record_value(record)
            check_parts(self.info, len(elements))
        budget.take(self.info, len(elements))
        return elements

    def _take_kept(self, elements: list[Any], budget: ReadBudget) -> None:
        check_parts(self.info, len(elements))
        budget.take(self.info, len(elements), estimated_size(elements))

    def put(self, entry: Any, value: list[Any]) -> None:
        self.delta[entry] = ListChange(True, list(value))
        self.count(value, 1 + len(value) // 64)

    def remove(self, entry: Any) -> None:
        self.put(entry, [])

    def load(self, entry: Any, value: Any, fresh: bool) -> None:
        self.delta[entry] = ListChange(not fresh, list(value or ()))
        self.count(value, 1 + len(value or ()) // 64)

    def count(self, value: Any, by: int) -> None:
        self.changes += by
        if self.changes >= self.check_at:
            self.check(value, self.changes)

    def check_size(self) -> None:
        """Does nothing here: elements are counted as they are added."""

    def _stored(self, entry: Any) -> list[Any]:
        """What `delta` builds on. Not to be changed by the caller."""
        change = self.frozen.get(entry)
        if change is not None and change.replaced:
            return change.new
        known: list[Any] = self.recent.find(entry)
        if known is MISSING:
            known = self._read(entry)
        return known if change is None else known + change.new

    def _read(self, entry: Any) -> list[Any]:
        """The list in RocksDB, without what is frozen, which may or may not be there by now."""
        elements: list[Any] = []
        size = chunks = 0
        for record in self._older_chunks(self.codec.encode(entry)):
            elements += record_value(record)
            size += len(record)
            chunks += 1
        self.recent.remember(entry, elements, ENTRY_COST + 3 * size)
        if chunks >= JOIN_AT and entry not in self.delta and entry not in self.frozen:
            self.delta[entry] = ListChange(True, elements[:])
            self.changes += 1
        return elements

    def _older_chunks(self, prefix: bytes) -> Iterator[bytes]:
        """The records of a list that are older than what is frozen."""
        for record_key, record in self.database.scan(prefix, prefix_end(prefix)):
            if not self.frozen or NUMBER.unpack_from(record_key, len(record_key) - NUMBER.size)[0] <= self._frozen_at:
                yield record

    def freeze(self, frozen: Frozen | None) -> None:
        self._frozen_at = self.database.sequence()
        super().freeze(frozen)

    def _values_of(self, changes: Iterable[ListChange]) -> list[Any]:
        return list(chain.from_iterable(change.new for change in changes))

    def _serialise(self, changes: list[tuple[Any, ListChange]]) -> list[tuple[bytes, bool, bytes | None]]:
        """Makes triples: what the record keys begin with, whether the old chunks go, the new chunk."""
        encode, record_of = self.codec.encode, self._record
        return [(encode(e), c.replaced, record_of(e, e, c.new) if c.new else None) for e, c in changes]

    def _fill(self, batch: WriteBatch, records: list[Any], frozen: Frozen) -> None:
        suffix = NUMBER.pack(self.database.sequence() + 1)
        for prefix, replaced, record in records:
            if replaced:
                for record_key in self.database.scan_keys(prefix, prefix_end(prefix)):
                    batch.delete(record_key)
            if record is not None:
                batch[prefix + suffix] = record
                frozen.size += len(record)

    def _remember(self, frozen: Frozen) -> None:
        cost = ENTRY_COST + 3 * frozen.size // len(frozen.changes)
        for entry, change in frozen.changes.items():
            if change.replaced:
                self.recent.remember(entry, change.new, cost)
                continue
            known = self.recent.find(entry)
            if known is not MISSING:
                self.recent.remember(entry, known + change.new, cost)

    def stored_items(self) -> Iterator[tuple[Any, Any]]:
        split = self.codec.split
        for _, records in groupby(self._records(), lambda r: r[0][: split(r[0])]):
            entry: Any = MISSING
            elements: list[Any] = []
            for record_key, record in records:
                if entry is MISSING:
                    entry = self._original(record_key, record)
                elements += record_value(record)
            yield entry, elements

    def _drop_from(self, batch: WriteBatch, record_key: bytes, record: bytes, expired: Callable[[Any], bool]) -> None:
        pairs = record_value(record)
        live = [pair for pair in pairs if not expired(pair)]
        if len(live) == len(pairs):
            return
        entry = self._original(record_key, record)
        if entry in self.delta:
            return
        self.recent.forget(entry)
        if not live:
            batch.delete(record_key)
        else:
            data = dumps(live)
            original = framed_original(record)
            batch[record_key] = data if original is None else frame(original, data)


class RocksListState(ListState[Any]):
    __slots__ = ("_cursor", "_delta", "_table")

    def __init__(self, cursor: Cursor, table: ListTable) -> None:
        self._cursor = cursor
        self._table = table
        self._delta = table.delta

    def get(self) -> list[Any]:
        """A copy: adding while one iterates is fine."""
        return self._table.get(self._cursor.current_key)

    def add(self, value: Any) -> None:
        entry = self._cursor.current_key
        change = self._delta.get(entry)
        if change is None:
            self._delta[entry] = ListChange(False, [value])
        else:
            change.new.append(value)
        table = self._table
        table.changes += 1
        if table.changes >= table.check_at:
            table.check(value, table.changes)

    def add_all(self, values: Iterable[Any]) -> None:
        for value in list(values):
            self.add(value)

    def update(self, values: Iterable[Any]) -> None:
        self._table.put(self._cursor.current_key, list(values or ()))

    def clear(self) -> None:
        self._table.remove(self._cursor.current_key)
