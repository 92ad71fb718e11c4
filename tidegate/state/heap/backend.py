"""Keyed state in plain dicts, with incremental snapshots.

Per state there is one `HeapTable`. `snapshot` folds its changes into the base, then freezes either the changed entries
or all of them; `IncrementLedger` says which keys count as changed and which chain the increment continues. None is the
tombstone of every kind of state, so an entry can never be None.

Values belong to the backend: an object that user code changes in place without `update` (or `put`, `add`) may or may
not be in the next snapshot.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from tidegate.common.ids import CheckpointId
from tidegate.common.type_schema import UNDECLARED
from tidegate.contracts.state import ReducingStateDescriptor, StateDescriptor
from tidegate.state.entries import iterate_snapshot
from tidegate.state.evolution import observed_schema
from tidegate.state.figures import StateFigures, size_by_sample
from tidegate.state.heap.increments import IncrementLedger
from tidegate.state.heap.snapshot import BACKEND_NAME, HeapSnapshotWriter, chain_entries, freeze, read_snapshot
from tidegate.state.heap.table import HeapTable
from tidegate.state.keyed_states import (
    Cursor,
    HeapAggregatingState,
    HeapListState,
    HeapMapState,
    HeapReducingState,
    HeapValueState,
)
from tidegate.state.named_states import Clock, NamedStates, aggregate_function, unknown_kind
from tidegate.state.ttl import TtlState
from tidegate.state.ttl_cleanup import without_expired
from tidegate.storage.handles import KeyedIncrement, KeyedSnapshot, KeyedStateInfo
from tidegate.storage.reader import StateSource


class HeapKeyedStateBackend(NamedStates):
    """See `KeyedStateBackend`.

    `max_increments`: a chain is a full snapshot and at most that many increments; 0 makes every snapshot full (for the
    JobManager's memory as storage, where a chain would be sent again with every acknowledgement)."""

    def __init__(
        self,
        operator_name: str,
        key_group_range: tuple[int, int],
        max_parallelism: int,
        max_increments: int = 10,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(operator_name, key_group_range, max_parallelism, clock)
        self.max_increments = max_increments
        self._filtered: dict[str, Callable[[], Callable[[Any], bool]]] = {}  # states whose full snapshots are cleaned
        self._ledger = IncrementLedger()

    def _convert(self, table: HeapTable, convert: Callable[[Any], Any]) -> None:
        table.load({key: convert(value) for key, value in table.live_items()})
        self._ledger.confirmed_chain = None

    def _new_table(self, info: KeyedStateInfo) -> HeapTable:
        return HeapTable(info)

    def _plain_state(self, kind: str, descriptor: StateDescriptor, table: HeapTable, cursor: Cursor) -> Any:
        state = _make_state(kind, descriptor, cursor)
        table.attach(state)
        return state

    def _add_sweep(self, table: Any, state: TtlState, ttl: Any) -> None:
        super()._add_sweep(table, state, ttl)
        if ttl.get_cleanup_strategies().in_full_snapshot():
            self._filtered[table.info.name] = lambda: _expired_by(self._clock() - ttl.ttl_ms)

    def figures(self) -> dict[str, StateFigures]:
        found = {}
        for name, table in self._tables.items():
            entries = table.count()
            found[name] = StateFigures(entries=entries, exact=True, bytes=size_by_sample(table.live_items(), entries))
        return found

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self, checkpoint_id: CheckpointId, full: bool = False) -> HeapSnapshotWriter:
        """The synchronous part.

        `full` asks for one that stands alone and belongs to the user (a savepoint): later increments never build on it.
        After an error the backend is as before, and what had changed is in the next snapshot."""
        deltas = {name: delta for name, table in self._tables.items() if (delta := table.merge())}
        changed = {name: list(delta) for name, delta in deltas.items()} if self._ledger.needs_changed_keys else {}
        ledger_entry = self._ledger.open_snapshot(checkpoint_id, changed, detached=full)
        try:
            earlier, keys_to_write = self._plan(full)
            chunks = []
            for name, table in self._tables.items():
                base = table.base
                if keys_to_write is None:
                    chunks += freeze(self.operator_name, name, *self._all_entries(name, table))
                elif keys := keys_to_write.get(name):
                    if keys is changed.get(name):  # nothing but the delta: saves looking up each key in a large base
                        values = list(deltas[name].values())
                    else:
                        values = list(map(base.get, keys))
                    chunks += freeze(self.operator_name, name, keys, values)
        except BaseException:
            self._ledger.abort(checkpoint_id)
            raise
        states = self.described_states()
        return HeapSnapshotWriter(
            self.operator_name, self.key_group_range, checkpoint_id, states, earlier, chunks, ledger_entry
        )

    def _all_entries(self, name: str, table: HeapTable) -> tuple[list[Any], list[Any]]:
        base = table.base
        if name not in self._filtered:
            return list(base), list(base.values())
        expired, kind = self._filtered[name](), table.info.kind
        live = {k: kept for k, v in base.items() if (kept := without_expired(kind, v, expired)) is not None}
        return list(live), list(live.values())

    def _plan(self, full: bool) -> tuple[list[KeyedIncrement], dict[str, list[Any]] | None]:
        """Returns the chain to continue and the keys to write, or ([], None) for a full snapshot."""
        confirmed = self._ledger.confirmed_chain
        if full or confirmed is None or len(confirmed) > self.max_increments:
            return [], None
        keys = self._ledger.changed_since_confirmed()
        increments = chain_entries(confirmed[1:]) + sum(map(len, keys.values()))
        if increments > sum(len(table.base) for table in self._tables.values()):
            return [], None
        return confirmed, keys

    def restore(self, snapshots: Iterable[KeyedSnapshot], source: StateSource, *, continue_chain: bool = False) -> None:
        snapshots = list(snapshots)
        start, end = self.key_group_range
        merged: dict[str, dict[Any, Any]] = {}
        for snapshot in snapshots:
            inside = start <= snapshot.key_group_start and snapshot.key_group_end <= end
            for info in snapshot.states:
                self.table(info)
            with _collector_paused():
                if snapshot.backend == BACKEND_NAME:
                    loaded = read_snapshot(self.operator_name, snapshot, source, None if inside else self._owns)
                else:
                    loaded = self._read_foreign(snapshot, source)
            for name, entries in loaded.items():
                if name in merged:
                    merged[name].update(entries)
                else:
                    merged[name] = entries
        for name, entries in merged.items():
            self._tables[name].load(entries)
        if continue_chain and len(snapshots) == 1:
            only = snapshots[0]
            if only.backend == BACKEND_NAME and (only.key_group_start, only.key_group_end) == (start, end):
                self._ledger.confirmed_chain = only.increments

    def _read_foreign(self, snapshot: KeyedSnapshot, source: StateSource) -> dict[str, dict[Any, Any]]:
        """Reads the entries of a snapshot that another backend wrote."""
        namespaced = {info.name for info in snapshot.states if info.namespaced}
        loaded: dict[str, dict[Any, Any]] = {info.name: {} for info in snapshot.states}
        for state, namespace, key, value in iterate_snapshot(
            self.operator_name, snapshot, source, key_groups=self.key_group_range
        ):
            loaded[state][(key, namespace) if state in namespaced else key] = value
        return loaded

    def tables(self) -> list[HeapTable]:
        """For what cuts the state otherwise than `snapshot` does. It merges the tables itself, and calls nothing of
        this class that needs to know what has changed."""
        return list(self._tables.values())

    def described_states(self) -> list[KeyedStateInfo]:
        return [_described(table) for table in self._tables.values()]

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        self._ledger.confirm(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._ledger.abort(checkpoint_id)

    def drop_all(self) -> None:
        for table in self._tables.values():
            table.load({})
        self._ledger.confirmed_chain = None  # what was removed is not among the changed keys

    def dispose(self) -> None:
        for table in self._tables.values():
            table.load({})
        self._tables.clear()
        self._states.clear()

    def check_invariants(self) -> None:
        for table in self._tables.values():
            table.check_invariants()


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Making millions of containers, none of them garbage, would have the collector look at all of them again and
    again: the restore of a million lists takes half the time without."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _described(table: HeapTable) -> KeyedStateInfo:
    """The table's info, with the dataclass of its values when nobody declared their type."""
    info = table.info
    if (info.schema is not None and info.schema != UNDECLARED) or not table.base:
        return info
    found = observed_schema(info.kind, info.ttl, next(iter(table.base.values())))
    return info if found is None else msgspec.structs.replace(info, schema=found)


def _expired_by(limit_ms: float) -> Callable[[Any], bool]:
    return lambda pair: pair[1] <= limit_ms


def _make_state(kind: str, descriptor: StateDescriptor, cursor: Cursor) -> Any:
    if kind == "reducing" and isinstance(descriptor, ReducingStateDescriptor):
        return HeapReducingState(cursor, descriptor.get_reduce_function().reduce)
    if kind == "aggregating":
        return HeapAggregatingState(cursor, aggregate_function(descriptor))
    plain: type[Any] | None = {"value": HeapValueState, "list": HeapListState, "map": HeapMapState}.get(kind)
    if plain is None:
        raise unknown_kind(descriptor)
    return plain(cursor)
