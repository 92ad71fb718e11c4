"""Changes on their way into RocksDB: a view that nobody alters, whatever user code does next.

A snapshot's synchronous part makes `Frozen` changes of each table and one `Cut` for all of them. Values that cannot
change (numbers, strings, tuples of such) are only referred to, all others are pickled at once. The `Cut` is then
finished once, by whoever comes first: the asynchronous part on its helper thread, or the mailbox, when it has to write
something newer to the database, which must not be in the hard links. So nothing that happened after the freeze can be
in the snapshot, and the mailbox waits only if it has filled its share of memory again in that short time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

from tidegate.common.errors import SnapshotError, StateBackendError
from tidegate.state.heap.snapshot import SCALARS
from tidegate.state.rocksdb.database import Database

_DEPTH = 3  # of tuples that are looked into


class Frozen:
    """The changes of one table. Serialised all at once (`records` given), or some at a time while they are written."""

    __slots__ = ("_portion", "_rest", "changes", "forgotten", "records", "size", "written")

    def __init__(self, changes: dict[Any, Any], records: list[Any] | None) -> None:
        self.changes = changes
        self.records: list[Any] = records or []  # serialised; the first `written` of them are in RocksDB
        self.written = 0
        self.size = 0  # bytes written, for an estimate of what the changes cost as recent entries
        self.forgotten: list[Any] = []  # recent entries that are no longer true
        self._rest: Iterator[tuple[Any, Any]] = iter(changes.items()) if records is None else iter(())
        self._portion: list[tuple[Any, Any]] = []

    def next_portion(self, count: int) -> list[tuple[Any, Any]]:
        """Changes to serialise: the same ones again until `serialised` is called. []: nothing is left."""
        if not self._portion:
            self._portion = list(islice(self._rest, count))
        return self._portion

    def serialised(self, records: list[Any]) -> None:
        self.records, self.written, self._portion = records, 0, []


def immutable(values: Iterable[Any], depth: int = _DEPTH) -> bool:
    """User code cannot change any of the values in place. False may also mean: not known. Iterates twice."""
    kinds = set(map(type, values))
    if kinds <= SCALARS:
        return True
    if not depth or not kinds - SCALARS <= {tuple}:
        return False
    inner = [value for value in values if type(value) is tuple]
    return immutable(list(chain.from_iterable(inner)), depth - 1)


class FrozenTable(Protocol):
    def write_frozen(self) -> None: ...


class Cut:
    """One snapshot's moment in the database. `finish` may be called on any thread, any number of times.

    `owner` wants the hard links; when it is gone nobody does, and only the changes are written."""

    def __init__(self, database: Database, folder: Path, tables: Sequence[FrozenTable], owner: object) -> None:
        self.done = False
        self._database = database
        self._folder = folder
        self._tables = tables
        self._owner: Callable[[], object | None] = weakref.ref(owner)
        self._lock = threading.Lock()
        self._error: StateBackendError | SnapshotError | None = None  # why there are no hard links

    def finish(self) -> None:
        """When this returns everything frozen is in RocksDB. StateBackendError when it cannot be written."""
        with self._lock:
            if self.done:
                return
            for table in self._tables:
                table.write_frozen()
            owner = self._owner()  # held, since the folder goes with it
            if owner is not None:
                try:
                    self._database.checkpoint(self._folder)
                except StateBackendError as error:
                    self._error = error
            self.done = True
            del owner

    def links(self) -> Path:
        """The folder of hard links, finished if need be. For the owner."""
        self.finish()
        if self._error is not None:
            raise self._error
        return self._folder

    def abandon(self, operator_name: str) -> None:
        """The database is about to be closed. Waits for a `finish` that is under way."""
        with self._lock:
            if not self.done:
                self.done = True
                self._error = SnapshotError(
                    f"operator '{operator_name}': the task was closed before its snapshot could be written"
                )
