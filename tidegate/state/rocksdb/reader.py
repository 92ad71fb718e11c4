"""Makes a database, or its entries, of a snapshot's files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidegate.common.errors import SnapshotDamagedError, SnapshotError, StateBackendError
from tidegate.state.rocksdb.database import Database
from tidegate.state.rocksdb.keys import EntryCodec
from tidegate.state.rocksdb.lists import ListTable
from tidegate.state.rocksdb.maps import MapTable
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.rocksdb.settings import MB, RocksDBSettings
from tidegate.state.rocksdb.tables import RocksTable
from tidegate.state.rocksdb.values import ValueTable
from tidegate.storage.handles import KeyedFile, KeyedSnapshot, KeyedStateInfo
from tidegate.storage.reader import StateSource


def download(operator_name: str, files: list[KeyedFile], source: StateSource, folder: Path) -> None:
    """Into an existing folder. SnapshotDamagedError when a part is damaged, StateBackendError when the disk is full."""
    if not any(file.name == "CURRENT" for file in files):
        raise SnapshotDamagedError(
            f"operator '{operator_name}': the snapshot by rocksdb lacks the files of its database"
        )
    for file in files:
        if "/" in file.name or file.name in ("", ".", ".."):
            raise SnapshotDamagedError(f"operator '{operator_name}': the snapshot names a database file '{file.name}'")
        path = folder / file.name
        try:
            with path.open("wb") as output:
                for part in file.parts:
                    output.write(source.read(part))
            size = path.stat().st_size
        except OSError as error:
            raise StateBackendError(
                f"operator '{operator_name}': {path} cannot be written: {error.strerror or error}; RocksDB state needs "
                "space on the worker's disk, another folder can be set with state.backend.rocksdb.localdir"
            ) from error
        if size != file.size:
            raise SnapshotDamagedError(
                f"operator '{operator_name}': the database file {file.name} has {size} bytes where the snapshot says "
                f"{file.size}"
            )


def make_table(
    operator_name: str,
    info: KeyedStateInfo,
    state: int,
    max_parallelism: int,
    key_groups: tuple[int, int],
    database: Database,
    resources: SlotResources,
) -> RocksTable:
    codec = EntryCodec(state, max_parallelism, info.namespaced)
    kinds: dict[str, type[RocksTable]] = {"list": ListTable, "map": MapTable}
    return kinds.get(info.kind, ValueTable)(operator_name, info, codec, key_groups, database, resources)


def read_files(
    operator_name: str,
    snapshot: KeyedSnapshot,
    source: StateSource,
    folder: str,
    key_groups: tuple[int, int] | None,
) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yields (state, namespace, key, value) of every entry; `folder` is empty and takes the files."""
    start, end = snapshot.key_group_start, snapshot.key_group_end
    if key_groups is not None:
        start, end = max(start, key_groups[0]), min(end, key_groups[1])
    download(operator_name, snapshot.files, source, Path(folder))
    yield from read_database(operator_name, Path(folder), snapshot.states, (start, end))


def read_database(
    operator_name: str, folder: Path, states: list[KeyedStateInfo], key_groups: tuple[int, int]
) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yields (state, namespace, key, value) of every entry of a database that nobody writes to."""
    resources = SlotResources(RocksDBSettings(memory_per_slot=16 * MB))
    database = Database(operator_name, folder, None, read_only=True)
    try:
        for number, info in enumerate(states):
            # The number of key groups is only needed to write.
            table = make_table(operator_name, info, number, 1, key_groups, database, resources)
            for entry, value in _readable(operator_name, info.name, table):
                key, namespace = entry if info.namespaced else (entry, None)
                yield info.name, namespace, key, value
    finally:
        database.close()


def _readable(operator_name: str, state: str, table: RocksTable) -> Iterator[tuple[Any, Any]]:
    try:
        yield from table.stored_items()
    except (GeneratorExit, StateBackendError):
        raise
    except Exception as error:
        raise SnapshotError(
            f"operator '{operator_name}': state '{state}' cannot be read back from the snapshot: "
            f"{type(error).__name__}: {error}; the classes of its values have to be importable under the names that "
            "they had when the snapshot was taken"
        ) from error
