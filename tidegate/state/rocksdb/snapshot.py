"""A checkpoint of the database, from its frozen moment (see `frozen`) to the upload of the files that are new.

Files with state never change once they are written, and RocksDB never uses a name twice in the life of a database. So a
file that the newest confirmed checkpoint has, under the same name and with the same size, is not uploaded again: the
snapshot refers to the parts that are there. (After a restore the life of the database goes on, with the files of the
checkpoint restored from as the confirmed ones.)
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tidegate.common.errors import SnapshotError, check_internal
from tidegate.common.ids import CheckpointId
from tidegate.state.heap.increments import MAX_UNCONFIRMED
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.frozen import Cut, FrozenTable
from tidegate.state.rocksdb.tables import heap_cost
from tidegate.storage.handles import KeyedFile, KeyedSnapshot, KeyedStateInfo, StateHandle
from tidegate.storage.writers import StateSink

BACKEND_NAME = "rocksdb"
PART_BYTES = 4 << 20
_ENTRIES_AT_ONCE = 1024
_BYTES_AT_ONCE = 16 << 20
_MEASURED_EVERY = 16
OWN_FILE_BYTES = 256 * 1024
"""Smaller files of the database share a file in the storage: few files. Larger ones can then be deleted one by one."""


class UploadLedger:
    """Which files are certain to be in the storage. Calls per checkpoint: `open_snapshot`, then at most one of
    `confirm` and `abort` (others are ignored)."""

    def __init__(self) -> None:
        self.confirmed: dict[str, KeyedFile] = {}  # by name, of the newest confirmed checkpoint
        self._unconfirmed: dict[CheckpointId, RocksDBSnapshotWriter] = {}  # ascending ids

    def open_snapshot(self, checkpoint_id: CheckpointId, writer: RocksDBSnapshotWriter) -> None:
        check_internal(
            not self._unconfirmed or checkpoint_id > next(reversed(self._unconfirmed)),
            f"snapshot {checkpoint_id} was asked for after snapshot {next(reversed(self._unconfirmed), None)}",
        )
        self._unconfirmed[checkpoint_id] = writer
        while len(self._unconfirmed) > MAX_UNCONFIRMED:
            del self._unconfirmed[next(iter(self._unconfirmed))]

    def confirm(self, checkpoint_id: CheckpointId) -> None:
        writer = self._unconfirmed.get(checkpoint_id)
        if writer is None:
            return
        if writer.detached:
            del self._unconfirmed[checkpoint_id]
            return
        check_internal(writer.files is not None, f"checkpoint {checkpoint_id} was confirmed before it was written")
        self.confirmed = {file.name: file for file in writer.files or ()}
        self._unconfirmed = {n: w for n, w in self._unconfirmed.items() if n > checkpoint_id}

    def abort(self, checkpoint_id: CheckpointId) -> None:
        self._unconfirmed.pop(checkpoint_id, None)


class RocksDBSnapshotWriter:
    """See `state.backend.KeyedSnapshotWriter`. Owns the folder of hard links: it is deleted when everything has been
    written, or when nobody holds the writer any more (an aborted checkpoint may still be written)."""

    def __init__(
        self,
        operator_name: str,
        database: Database,
        tables: Sequence[FrozenTable],
        folder: Path,
        key_group_range: tuple[int, int],
        checkpoint_id: CheckpointId,
        states: list[KeyedStateInfo],
        uploaded: dict[str, KeyedFile],
        detached: bool,
    ) -> None:
        self.detached = detached  # belongs to the user (a savepoint): later checkpoints must not depend on its files
        self.files: list[KeyedFile] | None = None  # set when everything has been written
        self._operator_name = operator_name
        self._database = database
        self._folder = folder
        self.key_group_range = key_group_range
        self._checkpoint_id = checkpoint_id
        self.states = states
        self._uploaded = uploaded  # by name; {} for a full snapshot
        self._delete_folder = weakref.finalize(self, shutil.rmtree, folder, True)
        self.cut = Cut(database, folder, tables, self)

    def write(self, sink: StateSink) -> KeyedSnapshot:
        try:
            if not self.detached:
                # When nearly everything has changed the new files hold much of it twice: as it was written, and as
                # RocksDB has merged some of it since. Merged first, they are as large as a full snapshot. And what
                # the first checkpoint uploads in many small runs RocksDB would merge, and upload again, soon after.
                # This is done beside the cut, not within, so that the mailbox never waits for it.
                self._database.merge_new_files(self._uploaded)
            self.cut.links()
            self.files = self._upload(sink)
        except OSError as error:
            raise SnapshotError(
                f"operator '{self._operator_name}': the snapshot of the RocksDB database in {self._folder} cannot be "
                f"read: {error.strerror or error}"
            ) from error
        finally:
            self._delete_folder()
        start, end = self.key_group_range
        return KeyedSnapshot(
            backend=BACKEND_NAME, key_group_start=start, key_group_end=end, states=self.states, files=self.files
        )

    def take_entries(self) -> Iterator[tuple[str, list[Any], list[Any], list[Any]]]:
        """Instead of `write`: (state, keys, namespaces, values) of some entries at a time, for a savepoint."""
        from tidegate.state.rocksdb.reader import read_database

        try:
            folder = self.cut.links()
            entries = read_database(self._operator_name, folder, self.states, self.key_group_range)
            for state, group in groupby(entries, itemgetter(0)):
                for some in _portions(group):
                    yield state, [e[2] for e in some], [e[1] for e in some], [e[3] for e in some]
        finally:
            self._delete_folder()

    def _upload(self, sink: StateSink) -> list[KeyedFile]:
        files, large = [], []
        for path in sorted(self._folder.iterdir()):
            if path.suffix != ".sst" and path.name != "CURRENT" and not path.name.startswith("MANIFEST-"):
                continue  # RocksDB makes the others anew
            size = path.stat().st_size
            known = self._uploaded.get(path.name) if path.suffix == ".sst" else None
            if known is not None and known.size == size:
                files.append(known)
            elif size >= OWN_FILE_BYTES:
                large.append((path, size))
            else:
                files.append(self._copy(sink, path, size))
        for path, size in large:
            sink.start_file()
            files.append(self._copy(sink, path, size))
        if large:
            sink.start_file()
        return files

    def _copy(self, sink: StateSink, path: Path, size: int) -> KeyedFile:
        parts: list[StateHandle] = [sink.write(part) for part in _parts(path)]
        return KeyedFile(name=path.name, size=size, checkpoint_id=self._checkpoint_id, parts=parts)


def _portions(entries: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Few enough for memory, whatever the size of the values, of which every 16th is measured."""
    some: list[tuple[Any, ...]] = []
    size = 0
    for number, entry in enumerate(entries):
        some.append(entry)
        if number % _MEASURED_EVERY == 0:
            size += heap_cost(entry[3]) * _MEASURED_EVERY
        if len(some) >= _ENTRIES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(PART_BYTES):
            yield data
