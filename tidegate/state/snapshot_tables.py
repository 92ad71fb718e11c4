"""The keyed state in a part of a snapshot, key by key: `reading.StateTables` of what each backend has written.

Chunks of the heap backend and of savepoints are read as a whole; the latest ones are kept, up to a number of bytes.
A chunk never changes and later checkpoints refer to it again, so it is known by its handle: after a new checkpoint only
what that has written is read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec

from tidegate.common.errors import SnapshotError
from tidegate.common.value_sizes import estimated_size
from tidegate.state.heap.snapshot import BACKEND_NAME as HEAP
from tidegate.state.read_budget import ReadBudget, check_parts
from tidegate.state.reading import NamespacesOf, StateTables
from tidegate.state.savepoint.format import BACKEND_NAME as SAVEPOINT
from tidegate.state.savepoint.reader import read_entries
from tidegate.state.serialization import loads
from tidegate.storage.handles import KeyedChunk, KeyedIncrement, KeyedSnapshot, KeyedStateInfo, StateHandle, handle_size
from tidegate.storage.reader import StateSource

_CACHED = 64 << 20  # bytes of chunks as they are stored; as Python's objects they take several times that


class ChunkCache:
    """Entries of the chunks that were read last. Used by one thread at a time."""

    def __init__(self, limit: int = _CACHED) -> None:
        self._limit = limit
        self._entries: OrderedDict[tuple[str, StateHandle], dict[Any, Any]] = OrderedDict()  # least recently used first
        self._size = 0  # of the handles in _entries
        self.reads = 0  # chunks that were read so far

    def entries(
        self, root: str, operator_name: str, snapshot: KeyedSnapshot, chunk: KeyedChunk, source: StateSource
    ) -> dict[Any, Any]:
        """Entry -> what is stored, None when it was deleted. Not to be changed."""
        known = self._entries.get((root, chunk.handle))
        if known is not None:
            self._entries.move_to_end((root, chunk.handle))
            return known
        self.reads += 1
        found = _read(operator_name, snapshot, chunk, source)
        self._entries[root, chunk.handle] = found
        self._size += handle_size(chunk.handle)
        while self._size > self._limit and len(self._entries) > 1:
            (_, handle), _ = self._entries.popitem(last=False)
            self._size -= handle_size(handle)
        return found


def _read(operator_name: str, snapshot: KeyedSnapshot, chunk: KeyedChunk, source: StateSource) -> dict[Any, Any]:
    if snapshot.backend == HEAP:
        keys, values = loads(operator_name, chunk.state, source.read(chunk.handle))
        return dict(zip(keys, values, strict=True))
    only = KeyedIncrement(checkpoint_id=snapshot.increments[0].checkpoint_id, full=True, chunks=[chunk])
    part = msgspec.structs.replace(snapshot, increments=[only])
    namespaced = {info.name for info in snapshot.states if info.namespaced}
    return {
        (key, namespace) if state in namespaced else key: value
        for state, namespace, key, value in read_entries(operator_name, part, source, None)
    }


class ChunkTables:
    """`reading.StateTables` of a part that the heap backend wrote, or of a savepoint."""

    def __init__(
        self, root: str, operator_name: str, snapshot: KeyedSnapshot, source: StateSource, cache: ChunkCache
    ) -> None:
        self._root = root
        self._operator_name = operator_name
        self._snapshot = snapshot
        self._source = source
        self._cache = cache

    def names(self) -> list[str]:
        return [info.name for info in self._snapshot.states]

    def readable(self, name: str) -> ChunkTable | None:
        info = next((info for info in self._snapshot.states if info.name == name), None)
        return None if info is None else ChunkTable(info, self)

    def newest_first(self, state: str) -> Iterator[dict[Any, Any]]:
        """The chunks of a state back to the newest full snapshot."""
        for increment in reversed(self._snapshot.increments):
            for chunk in reversed(increment.chunks):
                if chunk.state == state:
                    yield self._cache.entries(self._root, self._operator_name, self._snapshot, chunk, self._source)
            if increment.full:
                return


class ChunkTable:
    """`reading.ReadableTable` of the chunks of one state. Nothing says in which chunk an entry is: what is not there is
    looked for in all of them, so a reader of several entries says so before (`expect`)."""

    def __init__(self, info: KeyedStateInfo, tables: ChunkTables) -> None:
        self.info = info
        self._tables = tables
        self._known: dict[Any, Any] = {}  # entries that were looked for or met: what is stored, None: nothing

    def expect(self, entries: Iterable[Any]) -> None:
        """They are about to be peeked at: goes once through the chunks for all of them."""
        missing = set(entries)
        for chunk in self._tables.newest_first(self.info.name):
            found = {entry: chunk[entry] for entry in missing if entry in chunk}
            self._known.update(found)
            missing.difference_update(found)
            if not missing:
                return
        self._known.update(dict.fromkeys(missing))

    def peek(self, entry: Any, budget: ReadBudget) -> Any:
        if entry not in self._known:
            self.expect([entry])
        value = self._known.pop(entry)
        parts = 0
        if value is not None and self.info.kind in ("list", "map"):
            parts = len(value)
            check_parts(self.info, parts)
        budget.take(self.info, 1 + parts, estimated_size(value))
        return value

    def peek_namespaces(self, keys: Collection[Any], budget: ReadBudget) -> NamespacesOf:
        found: dict[Any, dict[Any, Any]] = {key: {} for key in keys}
        for chunk in self._tables.newest_first(self.info.name):
            budget.take(self.info, len(chunk))
            for entry, value in chunk.items():
                if entry[0] in found:
                    found[entry[0]].setdefault(entry[1], value)
        for key, values in found.items():
            self._known.update({(key, namespace): value for namespace, value in values.items()})
        return lambda key: list(found[key])

    def peek_entries(self) -> Iterator[Any]:
        newer: list[dict[Any, Any]] = []
        for chunk in self._tables.newest_first(self.info.name):
            for entry, value in chunk.items():
                if not any(entry in other for other in newer):
                    self._known[entry] = value
                    yield entry  # also what was deleted, which may be nearly all of it
            newer.append(chunk)


class SnapshotReader:
    """Opens parts of snapshots; what it keeps of them is bounded. Used by one thread at a time; `close` at the end."""

    def __init__(self) -> None:
        self.chunks = ChunkCache()
        self._databases: Any = None

    def tables(
        self, root: str, operator_id: str, operator_name: str, part: KeyedSnapshot, groups: int, source: StateSource
    ) -> StateTables:
        """`groups`: how many key groups the operator has."""
        if part.backend in (HEAP, SAVEPOINT):
            return ChunkTables(root, operator_name, part, source, self.chunks)
        if part.backend != "rocksdb":
            raise SnapshotError(
                f"operator '{operator_name}': the snapshot was written by the state backend '{part.backend}', which "
                "this version of Tidegate does not know; use a newer one"
            )
        if self._databases is None:
            from tidegate.state.rocksdb.snapshot_databases import SnapshotDatabases

            self._databases = SnapshotDatabases()
        found: StateTables = self._databases.tables(root, operator_id, operator_name, part, groups, source)
        return found

    def close(self) -> None:
        if self._databases is not None:
            self._databases.close()
            self._databases = None
