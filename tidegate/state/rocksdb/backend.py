"""Keyed state in RocksDB: larger than memory, with checkpoints that upload only new files.

One database per operator subtask; a state is a number in the record keys (see `keys`). Working values pass through
Python objects first (see `tables`), a flush writes them in batches. `KeyedSnapshot.states` lists the states by number,
so a restored database is understood without a look into it.

A snapshot freezes the changes and is written by its asynchronous part (see `frozen`).

Values belong to the backend, as on the heap: an object that user code changes in place without `update` (or `put`,
`add`) may or may not be in the next snapshot. Unlike there, a value that cannot be pickled fails at the next flush, not
only at the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidegate.common.errors import StateBackendError, check_internal
from tidegate.common.ids import CheckpointId
from tidegate.common.type_schema import CLASS
from tidegate.contracts.state import ReducingStateDescriptor, StateDescriptor
from tidegate.state.entries import iterate_snapshot
from tidegate.state.figures import StateFigures
from tidegate.state.heap.snapshot import BACKEND_NAME as HEAP
from tidegate.state.heap.snapshot import iterate_chunks
from tidegate.state.keyed_states import Cursor
from tidegate.state.named_states import Clock, NamedStates, aggregate_function, unknown_kind
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.figures import database_figures
from tidegate.state.rocksdb.frozen import Cut
from tidegate.state.rocksdb.keys import GROUP, RANGE, EntryCodec
from tidegate.state.rocksdb.lists import NUMBER, RocksListState
from tidegate.state.rocksdb.maps import RocksMapState
from tidegate.state.rocksdb.reader import download, make_table
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.rocksdb.snapshot import BACKEND_NAME, RocksDBSnapshotWriter, UploadLedger
from tidegate.state.rocksdb.tables import RocksTable
from tidegate.state.rocksdb.values import RocksAggregatingState, RocksReducingState, RocksValueState, ValueTable
from tidegate.storage.handles import KeyedSnapshot, KeyedStateInfo
from tidegate.storage.reader import StateSource

_CHECK_SIZE_EVERY = 32  # batches
_ALL_GROUPS = 1 << 16


class RocksDBKeyedStateBackend(NamedStates):
    """See `KeyedStateBackend`. `incremental`: upload only files that the newest confirmed checkpoint does not have."""

    reads_from_disk = True
    cleans_by_compaction = True

    def __init__(
        self,
        operator_name: str,
        key_group_range: tuple[int, int],
        max_parallelism: int,
        resources: SlotResources | None = None,
        incremental: bool = True,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(operator_name, key_group_range, max_parallelism, clock)
        self.incremental = incremental
        self._resources = resources or SlotResources()
        self._own_folder: Path | None = None  # made when first needed
        self._open: Database | None = None
        self._ledger = UploadLedger()
        self._prefetching: list[ValueTable] = []  # tables whose entries are known from the keys of a batch
        self._batches = 0
        self._cut: Cut | None = None  # of the newest snapshot, until what it froze is in RocksDB and absorbed
        self._disposed = False

    @property
    def folder(self) -> Path:
        """Where the database and its checkpoints lie."""
        if self._own_folder is None:
            try:
                self._own_folder = self._resources.new_folder("db")
            except StateBackendError as error:
                raise StateBackendError(f"operator '{self.operator_name}': {error}") from error
        return self._own_folder

    @property
    def _database(self) -> Database:
        if self._open is None:
            self._open = Database(self.operator_name, self.folder / "live", self._resources)
        return self._open

    # ------------------------------------------------------------ states

    def _evolve(self, table: Any, before: KeyedStateInfo, info: KeyedStateInfo) -> None:
        super()._evolve(table, before, info)
        if before.schema is not None and before.schema.kind == CLASS:
            table.observe()

    def _convert(self, table: Any, convert: Callable[[Any], Any]) -> None:
        """Writes beside the scan, which sees the database as it was when it began."""
        for entry, value in table.live_items():
            table.load(entry, convert(value), False)
        table.flush()

    def _new_table(self, info: KeyedStateInfo) -> RocksTable:
        table = make_table(
            self.operator_name,
            info,
            len(self._tables),
            self.max_parallelism,
            self.key_group_range,
            self._database,
            self._resources,
        )
        table.settle = self._settle
        if isinstance(table, ValueTable) and not info.namespaced and info.kind != "timers":
            self._prefetching.append(table)
        return table

    def _plain_state(self, kind: str, descriptor: StateDescriptor, table: Any, cursor: Cursor) -> Any:
        if kind == "reducing" and isinstance(descriptor, ReducingStateDescriptor):
            return RocksReducingState(cursor, table, descriptor.get_reduce_function().reduce)
        if kind == "aggregating":
            return RocksAggregatingState(cursor, table, aggregate_function(descriptor))
        plain: type[Any] | None = {"value": RocksValueState, "list": RocksListState, "map": RocksMapState}.get(kind)
        if plain is None:
            raise unknown_kind(descriptor)
        return plain(cursor, table)

    def prefetch(self, select: Callable[[Any], Any], values: list[Any]) -> None:
        wanted = [table for table in self._prefetching if table.may_prefetch]
        if wanted:
            try:
                keys = list(map(select, values))
                for table in wanted:
                    table.prefetch(keys)
            except Exception:
                return  # the user's selector, or a key that is none: the operator meets it again, and knows the record

    def end_of_batch(self) -> None:
        if self._cut is not None and self._cut.done:
            self._settle()
        if self._cut is None:  # what follows writes to the database
            super().end_of_batch()
            for table in self._tables.values():
                table.drain()
        for table in self._tables.values():
            table.recent.free_some()
        self._batches += 1
        if self._batches >= _CHECK_SIZE_EVERY:
            self._batches = 0
            for table in self._tables.values():
                table.check_size()

    def _settle(self) -> None:
        """See that what is frozen is in RocksDB: the asynchronous part has done it, is waited for, or comes later."""
        if self._cut is not None:
            self._cut.finish()
            self._cut = None
            for table in self._tables.values():
                table.absorb()

    def flush(self) -> None:
        """Write everything to RocksDB."""
        for table in self._tables.values():
            table.flush()

    def figures(self) -> dict[str, StateFigures]:
        return database_figures(self._tables.values())

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self, checkpoint_id: CheckpointId, full: bool = False) -> RocksDBSnapshotWriter:
        """The synchronous part: freeze what has changed. After an error everything is as before."""
        self._settle()
        tables = list(self._tables.values())
        states = []
        for table, frozen in [(table, table.prepare()) for table in tables]:
            states.append(table.described(() if frozen is None else frozen.changes.values()))
            table.freeze(frozen)
        writer = RocksDBSnapshotWriter(
            self.operator_name,
            self._database,
            tables,
            self.folder / f"checkpoint-{checkpoint_id}",
            self.key_group_range,
            checkpoint_id,
            states,
            self._ledger.confirmed if self.incremental and not full else {},
            detached=full,
        )
        self._cut = writer.cut
        self._ledger.open_snapshot(checkpoint_id, writer)
        return writer

    def restore(self, snapshots: Iterable[KeyedSnapshot], source: StateSource, *, continue_chain: bool = False) -> None:
        """The RocksDB snapshot that has most of the own key groups becomes the database; the others are copied into it
        record by record, those of another backend entry by entry."""
        start, end = self.key_group_range
        rest = list(snapshots)
        own = [s for s in rest if s.backend == BACKEND_NAME]
        if own:
            best = max(own, key=lambda s: min(end, s.key_group_end) - max(start, s.key_group_start))
            rest.remove(best)
            self._adopt(best, source)
            if continue_chain and self.incremental:
                self._ledger.confirmed = {file.name: file for file in best.files}
        for snapshot in rest:
            if snapshot.backend == BACKEND_NAME:
                self._copy(snapshot, source)
            else:
                self._load(snapshot, source)

    def _adopt(self, snapshot: KeyedSnapshot, source: StateSource) -> None:
        live = self.folder / "live"
        live.mkdir()
        download(self.operator_name, snapshot.files, source, live)
        start, end = self.key_group_range
        if snapshot.key_group_start < start:
            self._database.delete_range(GROUP.pack(0), GROUP.pack(start))
        if snapshot.key_group_end > end:
            self._database.delete_range(GROUP.pack(end), GROUP.pack(_ALL_GROUPS - 1) + b"\xff")
        for info in snapshot.states:
            self.table(info)

    def _copy(self, snapshot: KeyedSnapshot, source: StateSource) -> None:
        """Records keep their form; states get the numbers that they have here, and the chunks of a list small numbers,
        since those of another database mean nothing in this one."""
        numbers = [self.table(info).codec.state for info in snapshot.states]
        codecs = [EntryCodec(n, self.max_parallelism, info.namespaced) for n, info in enumerate(snapshot.states)]
        lists = {n for n, info in enumerate(snapshot.states) if info.kind == "list"}
        start = max(self.key_group_range[0], snapshot.key_group_start)
        end = min(self.key_group_range[1], snapshot.key_group_end)
        folder = self._resources.new_folder("restore")
        try:
            download(self.operator_name, snapshot.files, source, folder)
            other = Database(self.operator_name, folder, read_only=True)
            try:
                batch, last, chunk = self._database.batch(), b"", 0
                for key, record in other.scan(GROUP.pack(start), GROUP.pack(end)):
                    group, state = RANGE.unpack_from(key)
                    if state in lists:
                        prefix = key[: codecs[state].split(key)]
                        chunk, last = (chunk + 1, last) if prefix == last else (0, prefix)
                        key = prefix + NUMBER.pack(chunk)
                    batch[RANGE.pack(group, numbers[state]) + key[RANGE.size :]] = record
                    if len(batch) >= 4096 or len(record) > 1024:
                        self._database.write(batch)
                        batch = self._database.batch()
                self._database.write(batch)
            finally:
                other.close()
        finally:
            self._resources.folder.release(folder)

    def _load(self, snapshot: KeyedSnapshot, source: StateSource) -> None:
        """A snapshot of the heap backend, or a savepoint; never all of it in memory."""
        for info in snapshot.states:
            self.table(info)
        start, end = self.key_group_range
        if snapshot.backend != HEAP:
            namespaced = {info.name for info in snapshot.states if info.namespaced}
            for state, namespace, key, value in iterate_snapshot(
                self.operator_name, snapshot, source, key_groups=self.key_group_range
            ):
                self._tables[state].load((key, namespace) if state in namespaced else key, value, True)
            self.flush()
            return
        inside = start <= snapshot.key_group_start and snapshot.key_group_end <= end
        for first, info, keys, values in iterate_chunks(self.operator_name, snapshot, source):
            load = self._tables[info.name].load
            for entry, value in zip(keys, values, strict=True):
                if inside or self._owns(entry[0] if info.namespaced else entry):
                    load(entry, value, first)
        self.flush()

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        self._ledger.confirm(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._ledger.abort(checkpoint_id)

    def dispose(self) -> None:
        """Close the database and delete its folder, at once: what a snapshot still does with it is interrupted. May be
        called twice."""
        if self._disposed:
            return
        self._disposed = True
        if self._open is not None:
            self._open.interrupt()
        if self._cut is not None:
            self._cut.abandon(self.operator_name)
        if self._open is not None:
            self._open.close()
        for table in self._tables.values():
            table.unregister()
        if self._own_folder is not None:
            self._resources.folder.release(self._own_folder)
        self._tables.clear()
        self._states.clear()

    def check_invariants(self) -> None:
        for table in self._tables.values():
            check_internal(table.changes >= 0, f"state '{table.info.name}' counts {table.changes} changes")
