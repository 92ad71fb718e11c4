"""Databases of checkpoints, opened to look keys up: those that were used last, one for each part of an operator.

The files of a database never change and later checkpoints refer to them again: the next checkpoint's database is made
of links to those that are here, and only what is new is fetched.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from tidegate.state.reading import ReadableTable
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.reader import download, make_table
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.rocksdb.settings import MB, RocksDBSettings
from tidegate.storage.handles import KeyedFile, KeyedSnapshot
from tidegate.storage.reader import StateSource

_OPEN = 16


@dataclass
class _OpenPart:
    """`reading.StateTables` of one database."""

    operator_name: str
    root: str
    snapshot: KeyedSnapshot
    groups: int
    folder: Path
    database: Database

    def names(self) -> list[str]:
        return [info.name for info in self.snapshot.states]

    def readable(self, name: str) -> ReadableTable | None:
        for number, info in enumerate(self.snapshot.states):
            if info.name == name:
                groups = self.snapshot.key_group_start, self.snapshot.key_group_end
                resources = SlotResources(RocksDBSettings(memory_per_slot=MB))
                return make_table(self.operator_name, info, number, self.groups, groups, self.database, resources)
        return None

    def close(self) -> None:
        self.database.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class SnapshotDatabases:
    """Used by one thread at a time. `close` deletes everything."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-committed-"))
        self._parts: OrderedDict[tuple[str, int, int], _OpenPart] = OrderedDict()  # least recently used first
        self._made = 0
        self.fetched = 0  # files that were read from the storage so far

    def tables(
        self, root: str, operator_id: str, operator_name: str, part: KeyedSnapshot, groups: int, source: StateSource
    ) -> _OpenPart:
        place = (operator_id, part.key_group_start, part.key_group_end)
        known = self._parts.pop(place, None)
        if known is None or (known.root, known.snapshot) != (root, part):
            before, known = known, self._open(root, operator_name, part, groups, source, known)
            if before is not None:
                before.close()
        self._parts[place] = known
        while len(self._parts) > _OPEN:
            self._parts.popitem(last=False)[1].close()
        return known

    def _open(
        self,
        root: str,
        operator_name: str,
        part: KeyedSnapshot,
        groups: int,
        source: StateSource,
        before: _OpenPart | None,
    ) -> _OpenPart:
        self._made += 1
        folder = self._folder / str(self._made)
        folder.mkdir()
        try:
            there = {} if before is None or before.root != root else {f.name: f for f in before.snapshot.files}
            fresh = [file for file in part.files if not (before and _linked(file, there, before.folder, folder))]
            self.fetched += len(fresh)
            download(operator_name, fresh, source, folder)
            database = Database(operator_name, folder, None, read_only=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return _OpenPart(operator_name, root, part, groups, folder, database)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()
        self._parts.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _linked(file: KeyedFile, there: dict[str, KeyedFile], folder: Path, into: Path) -> bool:
    if not file.name.endswith(".sst") or there.get(file.name) != file:
        return False
    os.link(folder / file.name, into / file.name)
    return True
