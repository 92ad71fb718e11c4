"""What the tables of all kinds share: changes kept in Python first, written to RocksDB in batches.

A table has `delta`, the changes since the last `flush`, and a cache of what RocksDB holds (`RecentEntries`), both as
Python objects. A hot key so costs no disk access and no pickling. How much is kept is bounded: by the number of changes
and by an estimate of their size, which is made by pickling every 64th value. So the bound may be overrun by what 63
writes hold; what one record of the stream puts into state has to fit into memory anyway.
"""

from __future__ import annotations

import abc
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.keys import EntryCodec, frame, framed_original, is_exact
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.serialization import PROTOCOL, dumps, dumps_entries
from tidegate.storage.handles import KeyedStateInfo

if TYPE_CHECKING:
    from rocksdict import WriteBatch

MAX_CHANGES = 131_072
"""Changes that wait for a flush: bounds the synchronous part of a checkpoint, which has to write them (2 to 4 us for a
change of a small value)."""

CHECK_EVERY = 64
_ROUNDS_PER_FLUSH = 16
ENTRY_COST = 200  # bytes that dict slot, key and object headers take
BATCH_BYTES = 4 << 20
BATCH_CHANGES = 32_768
MISSING: Any = object()


def heap_cost(value: Any) -> int:
    """About how many bytes a value takes as Python objects."""
    kind = type(value)
    if kind is int or kind is float or kind is bool or value is None:
        return ENTRY_COST
    if kind is str or kind is bytes:
        return ENTRY_COST + len(value)
    try:
        return ENTRY_COST + 3 * len(pickle.dumps(value, PROTOCOL))
    except Exception:
        return ENTRY_COST  # cannot be pickled plainly: the flush will say so, or find a way


class RecentEntries(dict[Any, Any]):
    """What was lately read from or written to RocksDB. Two generations: when the younger one has its share of bytes it
    becomes the older, and what was not asked for since is forgotten."""

    def __init__(self, resources: SlotResources) -> None:
        super().__init__()
        self._resources = resources
        self._older: dict[Any, Any] = {}
        self._older_cost = ENTRY_COST  # of one entry, on average
        self._cost = 0

    def find(self, key: Any) -> Any:
        """MISSING when it is not known here."""
        value = self.get(key, MISSING)
        if value is MISSING and self._older:
            value = self._older.pop(key, MISSING)
            if value is not MISSING:
                self.remember(key, value, self._older_cost)
        return value

    def remember(self, key: Any, value: Any, cost: int) -> None:
        self[key] = value
        self.charge(cost)

    def charge(self, cost: int) -> None:
        """For what was put into the dict."""
        self._cost += cost
        if self._cost * 4 > self._resources.table_bytes:
            self._older = dict(self)
            self._older_cost = self._cost // len(self)
            self.clear()
            self._cost = 0

    def forget(self, key: Any) -> None:
        self.pop(key, None)
        self._older.pop(key, None)


class RocksTable(abc.ABC):
    """See `named_states.Table`. `flush` writes `delta`; states call `check` at every CHECK_EVERY-th change."""

    def __init__(
        self,
        operator_name: str,
        info: KeyedStateInfo,
        codec: EntryCodec,
        key_groups: tuple[int, int],
        database: Database,
        resources: SlotResources,
    ) -> None:
        self.operator_name = operator_name
        self.info = info
        self.codec = codec
        self.database = database
        self.recent = RecentEntries(resources)
        self.delta: dict[Any, Any] = {}  # entry -> its change; the same dict for the table's life
        self.changes = 0  # since the last flush; tables of single values count `len(delta)` instead
        self.check_at = CHECK_EVERY
        self._key_groups = key_groups
        self._resources = resources
        self._pending_bytes = 0
        self._sweep_position: bytes | None = None
        self._rounds = 0
        self._registered = False
        self._average_record = 64.0  # bytes

    # ------------------------------------------------------------ bounds

    def check(self, value: Any, count: int) -> None:
        """`value` is the last one written, `count` the changes so far."""
        self._register()
        self._pending_bytes += heap_cost(value) * CHECK_EVERY
        self.check_at = count + CHECK_EVERY
        if count >= MAX_CHANGES or self._pending_bytes * 2 > self._resources.table_bytes:
            self.flush()

    def check_size(self) -> None:
        """For values that grow without a new key; from time to time."""
        if not self.delta:
            return
        self._register()
        sample = [*islice(self.delta.values(), 8), *islice(reversed(self.delta.values()), 8)]
        size = sum(map(heap_cost, sample)) / len(sample) * len(self.delta)
        self._pending_bytes = max(self._pending_bytes, int(size))
        if self._pending_bytes * 2 > self._resources.table_bytes:
            self.flush()

    def _register(self) -> None:
        """Only tables that hold something have a share of the slot's memory."""
        if not self._registered:
            self._registered = True
            self._resources.tables_changed(1)

    def unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._resources.tables_changed(-1)

    # ------------------------------------------------------------ writing

    def flush(self) -> None:
        """Everything is in RocksDB when this returns. After an error the rest is still in `delta`."""
        delta = self.delta
        while delta:
            portion = max(1, min(BATCH_CHANGES, int(BATCH_BYTES / self._average_record)))
            changes = list(islice(delta.items(), portion))
            self.database.write(self._write(self.database.batch(), changes))
            for entry, _ in changes:
                del delta[entry]
        self.changes = 0
        self._pending_bytes = 0
        self.check_at = CHECK_EVERY

    @abc.abstractmethod
    def _write(self, batch: WriteBatch, changes: list[tuple[Any, Any]]) -> WriteBatch:
        """Put the changes into the batch, which may be written and replaced when it grows large; remember them as
        recent. Returns the last batch."""

    @abc.abstractmethod
    def load(self, entry: Any, value: Any, fresh: bool) -> None:
        """Make `value` (None: nothing) the whole content of an entry. `fresh`: it is certain to have none yet."""

    def _record(self, entry: Any, original: Any, value: Any) -> bytes:
        """A record's value; `original` is what its key stands for."""
        try:
            data = pickle.dumps(value, PROTOCOL)
        except Exception:
            dumps_entries(self.operator_name, self.info.name, [entry], [value])  # names the culprit, or it can be done
            data = dumps(value)
        self._average_record += (len(data) - self._average_record) * 0.01
        return data if type(original) is int or is_exact(original) else frame(original, data)

    # ------------------------------------------------------------ reading

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        for group in range(*self._key_groups):
            yield from self.database.scan(*self.codec.range(group))

    def _original(self, record_key: bytes, record: bytes) -> Any:
        """What the record's key stands for, for kinds with one record per entry."""
        original = framed_original(record)
        return self.codec.decode(record_key) if original is None else original

    @abc.abstractmethod
    def stored_items(self) -> Iterator[tuple[Any, Any]]:
        """Entries as RocksDB has them, whole."""

    def live_items(self) -> Iterator[tuple[Any, Any]]:
        self.flush()
        return self.stored_items()

    def live_keys(self) -> Iterator[Any]:
        for entry, _ in self.live_items():
            yield entry

    # ------------------------------------------------------------ time to live

    def drop_expired(self, budget: int, expired: Callable[[Any], bool]) -> None:
        """See `named_states.Table`. Looks at records, also of lists and maps; those being changed are left alone."""
        batch = self.database.batch()
        for record_key, record in self._next_records(budget):
            self._drop_from(batch, record_key, record, expired)
        if len(batch):
            self.database.write(batch)

    def _next_records(self, count: int) -> list[tuple[bytes, bytes]]:
        """The records after those of the last call; from the start again after the end."""
        start, end = self._key_groups
        if self._sweep_position is None:
            self._rounds += 1
            if self._rounds % _ROUNDS_PER_FLUSH == 0:
                self.flush()  # what is changed only in Python would never be looked at
        position = self._sweep_position or self.codec.range(start)[0]
        found: list[tuple[bytes, bytes]] = []
        for group in range(int.from_bytes(position[:2], "big"), end):
            first, last = self.codec.range(group)
            found += islice(self.database.scan(max(first, position), last), count - len(found))
            if len(found) >= count:
                self._sweep_position = found[-1][0] + b"\0"
                return found
        self._sweep_position = None
        return found

    @abc.abstractmethod
    def _drop_from(
        self, batch: WriteBatch, record_key: bytes, record: bytes, expired: Callable[[Any], bool]
    ) -> None: ...
