"""Keyed state in plain dicts, with incremental snapshots.

Per state there is one `StateTable`. `snapshot` folds its changes into the base, then freezes either the changed entries
or all of them; `IncrementLedger` says which keys count as changed and which chain the increment continues. None is the
tombstone of every kind of state, so an entry can never be None.

Values belong to the backend: an object that user code changes in place without `update` (or `put`, `add`) may or may
not be in the next snapshot.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.ids import CheckpointId
from tidegate.datastream.state import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from tidegate.state.backend import KeyedStateBackend, StateSource
from tidegate.state.heap_snapshot import BACKEND_NAME, HeapSnapshotWriter, chain_entries, freeze, read_snapshot
from tidegate.state.increments import IncrementLedger
from tidegate.state.key_groups import stable_hash
from tidegate.state.keyed_states import (
    Cursor,
    HeapAggregatingState,
    HeapListState,
    HeapMapState,
    HeapReducingState,
    HeapValueState,
    NamespaceCursor,
)
from tidegate.state.table import StateTable
from tidegate.storage.handles import KeyedIncrement, KeyedSnapshot, KeyedStateInfo


class HeapKeyedStateBackend(KeyedStateBackend):
    """See `KeyedStateBackend`.

    `max_increments`: a chain is a full snapshot and at most that many increments; 0 makes every snapshot full (for the
    JobManager's memory as storage, where a chain would be sent again with every acknowledgement)."""

    def __init__(
        self,
        operator_name: str,
        key_group_range: tuple[int, int],
        max_parallelism: int,
        max_increments: int = 10,
    ) -> None:
        self.operator_name = operator_name
        self.key_group_range = key_group_range  # [start, end)
        self.max_parallelism = max_parallelism
        self.max_increments = max_increments
        self.current_namespace = None
        self._tables: dict[str, StateTable] = {}
        self._states: dict[str, Any] = {}  # name -> state object; its table is in _tables
        self._ledger = IncrementLedger()

    def __getattr__(self, name: str) -> Any:
        # `current_key` does not exist before the first record, so that a state access in open() cannot go unnoticed.
        if name == "current_key":
            raise ConfigurationError(
                f"operator '{self.operator_name}': keyed state was used outside of the processing of a record, where "
                "there is no current key; get the state object in open(), read and write it in the method that "
                "gets the record"
            )
        raise AttributeError(name)

    # ------------------------------------------------------------ states

    def get_state(self, descriptor: StateDescriptor, namespaced: bool = False) -> Any:
        name = descriptor.get_name()
        if descriptor.ttl_config is not None:
            raise ConfigurationError(
                f"operator '{self.operator_name}': state '{name}' has a time to live, which is not supported yet; "
                "remove enable_time_to_live() and clear the state yourself"
            )
        info = KeyedStateInfo(
            name=name,
            kind=descriptor.kind,
            type_description=_type_description(descriptor),
            namespaced=namespaced,
        )
        known = self._states.get(name)
        if known is not None:
            self._check_same_declaration(info)
            return known
        table = self.table(info)
        cursor: Cursor = NamespaceCursor(self) if namespaced else self
        state = _make_state(descriptor, cursor)
        table.attach(state)
        self._states[name] = state
        return state

    def table(self, info: KeyedStateInfo) -> StateTable:
        """The table of a state, restored or new: for states of other kinds than those of the descriptors (timers)."""
        table = self._tables.get(info.name)
        if table is None:
            table = self._tables[info.name] = StateTable(info)
        elif (table.info.kind, table.info.namespaced) != (info.kind, info.namespaced):
            raise SnapshotError(
                f"operator '{self.operator_name}': state '{info.name}' is a {_kind(table.info)} state in the snapshot, "
                f"but the job declares it as a {_kind(info)} state; give the new state another name"
            )
        table.info = info
        return table

    def keys(self, state_name: str) -> Iterator[Any]:
        table = self._tables.get(state_name)
        if table is None:
            return iter(())
        if table.info.namespaced:
            return iter({key: None for key, _ in table.live_keys()})
        return table.live_keys()

    def _check_same_declaration(self, info: KeyedStateInfo) -> None:
        known = self._tables[info.name].info
        if (known.kind, known.namespaced) != (info.kind, info.namespaced):
            raise ConfigurationError(
                f"operator '{self.operator_name}': state '{info.name}' is declared twice, as a {_kind(known)} state "
                f"and as a {_kind(info)} state; give each state a name of its own"
            )

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
                    chunks += freeze(self.operator_name, name, list(base), list(base.values()))
                elif keys := keys_to_write.get(name):
                    if keys is changed.get(name):  # nothing but the delta: saves looking up each key in a large base
                        values = list(deltas[name].values())
                    else:
                        values = list(map(base.get, keys))
                    chunks += freeze(self.operator_name, name, keys, values)
        except BaseException:
            self._ledger.abort(checkpoint_id)
            raise
        states = [table.info for table in self._tables.values()]
        return HeapSnapshotWriter(
            self.operator_name, self.key_group_range, checkpoint_id, states, earlier, chunks, ledger_entry
        )

    def _plan(self, full: bool) -> tuple[list[KeyedIncrement], dict[str, list[Any]] | None]:
        """(the chain to continue, the keys to write), or ([], None) for a full snapshot."""
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
                loaded = read_snapshot(self.operator_name, snapshot, source, None if inside else self._owns)
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

    def _owns(self, key: Any) -> bool:
        return self.key_group_range[0] <= stable_hash(key) % self.max_parallelism < self.key_group_range[1]

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        self._ledger.confirm(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._ledger.abort(checkpoint_id)

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


def _make_state(descriptor: StateDescriptor, cursor: Cursor) -> Any:
    if isinstance(descriptor, ReducingStateDescriptor):
        return HeapReducingState(cursor, descriptor.get_reduce_function().reduce)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return HeapAggregatingState(cursor, descriptor.get_agg_function())
    plain: type[Any] | None = {"value": HeapValueState, "list": HeapListState, "map": HeapMapState}.get(descriptor.kind)
    if plain is None:
        raise ConfigurationError(
            f"state '{descriptor.get_name()}': there is no keyed state of kind '{descriptor.kind}'"
        )
    return plain(cursor)


def _type_description(descriptor: StateDescriptor) -> str:
    parts = [getattr(descriptor, "key_type_info", None), descriptor.type_info]
    return ", ".join(str(part) for part in parts if part is not None)


def _kind(info: KeyedStateInfo) -> str:
    return f"{info.kind} (per window)" if info.namespaced else info.kind
