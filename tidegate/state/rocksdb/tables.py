"""What the tables of all kinds share: changes kept in Python first, written to RocksDB in batches.

A table has `delta`, the changes since the last flush or snapshot, and a cache of what RocksDB holds (`RecentEntries`),
both as Python objects. A hot key so costs no disk access and no pickling. On their way into RocksDB changes are
*frozen* (see `frozen`): no longer in `delta`, perhaps not yet in the database, and read from where they are. A snapshot
only freezes; its asynchronous part writes.

How much is kept is bounded: by the number of changes and by an estimate of their size, which is made by pickling every
64th value. So the bound may be overrun by what 63 writes hold; what one record of the stream puts into state has to fit
into memory anyway.
"""

from __future__ import annotations

import abc
import pickle
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.common.type_schema import UNDECLARED, TypeSchema
from tidegate.state.evolution import observed_schema
from tidegate.state.read_budget import ReadBudget, check_parts
from tidegate.state.reading import NamespacesOf
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.frozen import Frozen, immutable
from tidegate.state.rocksdb.keys import RANGE, EntryCodec, is_exact, prefix_end
from tidegate.state.rocksdb.recent import ENTRY_COST, RecentEntries
from tidegate.state.rocksdb.records import encode_record, frame, framed_original
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.serialization import PROTOCOL, dumps, dumps_entries
from tidegate.storage.handles import KeyedStateInfo

if TYPE_CHECKING:
    from rocksdict import WriteBatch

MAX_CHANGES = 131_072
"""Changes that wait for a flush. A snapshot freezes them in 0.05 us each."""

MAX_MUTABLE_CHANGES = 16_384
"""The same for values that user code could still change in place: a snapshot has to pickle those at once."""

CHECK_EVERY = 64
_ROUNDS_PER_FLUSH = 16
BATCH_BYTES = 4 << 20
BATCH_RECORDS = 4_096  # RocksDB holds the interpreter's lock while it takes a batch: about 4 ms for so many
_PORTION = 32_768  # changes that are serialised, and sorted, at once
DRAIN_PORTION = 4_096  # the same between two batches of the stream
PLAIN_DRAIN_PORTION = 16_384  # and of numbers, 6 to 13 ms: the longer a run, the less RocksDB has to search for each
_DRAIN_RECORDS = 2_048  # and so many are then written at once


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


def _nothing() -> None:
    pass


class RocksTable(abc.ABC):
    """See `named_states.Table`. `flush` writes `delta`; states call `check` at every CHECK_EVERY-th change.

    Everything is for the mailbox thread, except `write_frozen`, which a `Cut` may call from another one."""

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
        self.frozen: dict[Any, Any] = {}  # likewise, older than `delta`, newer than `recent`; never changed
        self.changes = 0  # in `delta`; tables of single values count `len(delta)` instead
        self.check_at = CHECK_EVERY
        self.settle: Callable[[], None] = _nothing  # before anything newer than a pending snapshot is written
        self._freezing: Frozen | None = None  # the owner of `frozen`, until `absorb`
        self._key_groups = key_groups
        self._resources = resources
        self._pending_bytes = 0
        self._sweep_position: bytes | None = None
        self._rounds = 0
        self._registered = False
        self._average_record = 64.0  # bytes
        self._observed: TypeSchema | None = None  # the dataclass of the values, once one was seen
        self._drain_portion = DRAIN_PORTION

    # ------------------------------------------------------------ bounds

    def check(self, value: Any, count: int) -> None:
        """`value` is the last one written, `count` the changes so far."""
        self._register()
        self._pending_bytes += heap_cost(value) * CHECK_EVERY
        self.check_at = count + CHECK_EVERY
        if (
            count >= MAX_CHANGES
            or self._pending_bytes * 3 > self._resources.table_bytes
            or (count >= MAX_MUTABLE_CHANGES and not immutable((value,)))
        ):
            self._write_back()

    def check_size(self) -> None:
        """Looks from time to time at values that grow without a new key."""
        if not self.delta:
            return
        self._register()
        sample = [*islice(self.delta.values(), 8), *islice(reversed(self.delta.values()), 8)]
        size = sum(map(heap_cost, sample)) / len(sample) * len(self.delta)
        self._pending_bytes = max(self._pending_bytes, int(size))
        if self._pending_bytes * 3 > self._resources.table_bytes:
            self._write_back()

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
        """Everything is in RocksDB when this returns. After an error the rest is still here, and the next call goes on
        with it."""
        self.settle()
        self._finish()
        if self.delta:
            self.freeze(Frozen(self.delta.copy(), None))
            self._finish()

    def _write_back(self) -> None:
        """Writes changes to RocksDB to make room in `delta`."""
        self.flush()

    def drain(self) -> None:
        """Write some of what is frozen; called between batches while no snapshot is pending."""
        if self._freezing is not None and not self._write_some(self._drain_portion, _DRAIN_RECORDS):
            self.absorb()

    def _finish(self) -> None:
        self.write_frozen()
        self.absorb()

    def prepare(self) -> Frozen | None:
        """The first half of freezing: what may fail. Pickles the values that user code could still change."""
        changes = self._unwritten()
        if not changes:
            return None
        lasting = immutable(self._values_of(changes.values()))
        return Frozen(changes, None if lasting else self._serialise(list(changes.items())))

    def _unwritten(self) -> dict[Any, Any]:
        """All changes that may not be in RocksDB, as a new dict."""
        return self.delta.copy()

    def freeze(self, frozen: Frozen | None) -> None:
        """The second half of freezing, which cannot fail: what `prepare` returned is frozen, and new changes begin."""
        if frozen is None:
            return
        self._freezing, self.frozen = frozen, frozen.changes
        self.recent.make_room(self._pending_bytes)
        self.delta.clear()
        self.changes = 0
        self._pending_bytes = 0
        self.check_at = CHECK_EVERY

    def write_frozen(self) -> None:
        """Put what is frozen into RocksDB. On any thread, one at a time; may be called again, also after an error."""
        while self._write_some(_PORTION, BATCH_RECORDS):
            pass

    def _write_some(self, portion: int, batch_records: int) -> bool:
        """Write one batch of what is frozen. Returns False when nothing was left to write."""
        frozen = self._freezing
        if frozen is None:
            return False
        most = max(1, int(BATCH_BYTES / self._average_record))
        if frozen.written >= len(frozen.records):
            changes = frozen.next_portion(min(portion, most))
            if not changes:
                return False
            frozen.serialised(self._serialise(changes))
        records = frozen.records[frozen.written : frozen.written + min(batch_records, most)]
        batch = self.database.batch()
        self._fill(batch, records, frozen)
        self.database.write(batch)
        frozen.written += len(records)
        return True

    def absorb(self) -> None:
        """What was frozen is written: it counts as recent from now on."""
        frozen, self._freezing, self.frozen = self._freezing, None, {}
        if frozen is not None:
            self._remember(frozen)

    @abc.abstractmethod
    def _values_of(self, changes: Iterable[Any]) -> Iterable[Any]:
        """All that was stored by the user in these changes; may be iterated twice."""

    @abc.abstractmethod
    def _serialise(self, changes: list[tuple[Any, Any]]) -> list[Any]:
        """What `_fill` takes: bytes, and nothing that user code can reach. Does not look into the database."""

    @abc.abstractmethod
    def _fill(self, batch: WriteBatch, records: list[Any], frozen: Frozen) -> None:
        """Put some of what `_serialise` made into the batch; may read the database."""

    @abc.abstractmethod
    def _remember(self, frozen: Frozen) -> None:
        """Keeps written changes as known values: they are now what RocksDB holds."""

    @abc.abstractmethod
    def load(self, entry: Any, value: Any, fresh: bool) -> None:
        """Make `value` (None: nothing) the whole content of an entry. `fresh`: it is certain to have none yet."""

    def _record(self, entry: Any, original: Any, value: Any) -> bytes:
        """A record's value; `original` is what its key stands for."""
        try:
            data = encode_record(value)
        except Exception:
            dumps_entries(self.operator_name, self.info.name, [entry], [value])  # names the culprit, or it can be done
            data = dumps(value)
        self._average_record += (len(data) - self._average_record) * 0.01
        return data if type(original) is int or is_exact(original) else frame(original, data)

    # ------------------------------------------------------------ what the values are

    def described(self, changes: Iterable[Any] = ()) -> KeyedStateInfo:
        """`info`, with the dataclass of the values when nobody declared their type: its fields may be others when the
        state is restored. `changes`: some of `delta`."""
        if self.info.schema is not None and self.info.schema != UNDECLARED:
            return self.info
        if self._observed is None:
            value = next((v for v in self._values_of(list(islice(changes, 8))) if v is not None), None)
            self._observed = observed_schema("value", self.info.ttl, value)
        return self.info if self._observed is None else msgspec.structs.replace(self.info, schema=self._observed)

    def observe(self) -> None:
        """Learns the dataclass of the values, as `described` does, from an entry that is stored."""
        entry = next(self.live_items(), None)
        if entry is not None:
            self._observed = observed_schema(self.info.kind, self.info.ttl, entry[1])

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
        """All entries as RocksDB holds them, each whole."""

    def live_items(self) -> Iterator[tuple[Any, Any]]:
        self.flush()
        return self.stored_items()

    def live_keys(self) -> Iterator[Any]:
        for entry, _ in self.live_items():
            yield entry

    # ------------------------------------------------------------ seen from outside (`state.reading`)

    @abc.abstractmethod
    def peek(self, entry: Any, budget: ReadBudget) -> Any:
        """See `state.reading.ReadableTable`. Neither flushes nor remembers what was read."""

    def peek_namespaces(self, keys: Collection[Any], budget: ReadBudget) -> NamespacesOf:
        """What is in the database is found by key, what is changed only by key and namespace together."""
        budget.take(self.info, len(self.delta) + len(self.frozen))
        changed: dict[Any, dict[Any, None]] = {key: {} for key in keys}
        for key, namespace in chain(self.delta, self.frozen):
            if key in changed:
                changed[key][namespace] = None
        codec = EntryCodec(self.codec.state, self.codec.max_parallelism, False)

        def namespaces(key: Any) -> list[Any]:
            found = dict(changed[key])
            check_parts(self.info, len(found))
            prefix = codec.encode(key)
            last = b""
            for record_key, record in self.database.scan(prefix, prefix_end(prefix)):
                budget.take(self.info, 1)
                entry_key = record_key[: self.codec.split(record_key)]
                if entry_key != last:
                    last = entry_key
                    found[self._original(record_key, record)[1]] = None
                    check_parts(self.info, len(found))
            return list(found)

        return namespaces

    def peek_entries(self) -> Iterator[Any]:
        yield from self.delta
        yield from (entry for entry in self.frozen if entry not in self.delta)
        last = b""
        for record_key, record in self._records_of_groups_in_use():
            entry_key = record_key[: self.codec.split(record_key)]
            if entry_key != last:
                last = entry_key
                entry = self._original(record_key, record)
                if entry not in self.delta and entry not in self.frozen:
                    yield entry

    def _records_of_groups_in_use(self) -> Iterator[tuple[bytes, bytes]]:
        """As `_records`; key groups without records of the state are passed over, of which there may be thousands."""
        group, end = self._key_groups
        state = self.codec.state
        while group < end:
            following = self.database.scan(RANGE.pack(group, state), RANGE.pack(end - 1, state + 1))
            found = next(following, None)
            if found is None:
                return
            group, found_state = RANGE.unpack_from(found[0])
            if found_state == state:
                yield from self.database.scan(*self.codec.range(group))
            if found_state >= state:
                group += 1

    def sampled_records(self, groups: int, most: int) -> int:
        """How many records some key groups have, at most `most` counted in each."""
        start, end = self._key_groups
        step = max(1, (end - start) // groups)
        return sum(
            sum(1 for _ in islice(self.database.scan(*self.codec.range(group)), most))
            for group in range(start, end, step)[:groups]
        )

    # ------------------------------------------------------------ time to live

    def drop_expired(self, budget: int, expired: Callable[[Any], bool]) -> None:
        """See `named_states.Table`. Looks at records, also of lists and maps; those being changed are left alone. Not
        while anything is frozen."""
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
