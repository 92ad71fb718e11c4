"""Folders on the worker's local disk: one per slot, named after the process, removed with the last database in it.

A process that is killed leaves its folder behind. The owner holds a lock on a file in it, which the operating system
frees when the process dies, whatever happens: so the next slot that starts with the same directory finds left-overs by
trying their locks. (The process id in the name is for people; ids are reused, and differ between containers.)

A folder gets the name that others look for only when its lock is held: before that it could be taken for a left-over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from tidegate.common.errors import StateBackendError

PREFIX = "tidegate-rocksdb-"
_LOCK = "owner.lock"
_UNFINISHED = "new-"  # before the name of a folder whose lock is not held yet


class SlotFolder:
    """Made at the first `new_folder`. Not shared between processes."""

    def __init__(self, directories: tuple[str, ...] = ()) -> None:
        self._directories = directories
        self._path: Path | None = None
        self._in_use: set[Path] = set()
        self._next = 0
        self._finalizer: weakref.finalize[[Path, int], SlotFolder] | None = None

    @property
    def path(self) -> Path | None:
        return self._path

    def new_folder(self, purpose: str) -> Path:
        """An empty folder; give it back with `release`."""
        path = (self._path or self._create()) / f"{self._next}-{purpose}"
        self._next += 1
        try:
            path.mkdir()
        except OSError as error:
            raise _unusable(path, error) from error
        self._in_use.add(path)
        return path

    def release(self, folder: Path) -> None:
        """Delete it, and the slot's folder with the last one. Never raises."""
        shutil.rmtree(folder, ignore_errors=True)
        self._in_use.discard(folder)
        if not self._in_use and self._finalizer is not None:
            self._finalizer()
            self._finalizer, self._path = None, None

    def _create(self) -> Path:
        given = [_local_path(d) for d in self._directories] or [Path(tempfile.gettempdir())]
        parent = given[os.getpid() % len(given)]
        try:
            parent.mkdir(parents=True, exist_ok=True)
            remove_left_overs(parent)
            path, lock = _new_locked_folder(parent)
        except OSError as error:
            raise _unusable(parent, error) from error
        self._finalizer = weakref.finalize(self, _remove, path, lock)
        self._path = path
        return path


def _new_locked_folder(parent: Path) -> tuple[Path, int]:
    """A folder of this process, and its lock as an open file."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{PREFIX}{os.getpid()}-", dir=parent))
    lock = -1
    try:
        lock = os.open(unfinished / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = unfinished.rename(parent / unfinished.name.removeprefix(_UNFINISHED))
    except OSError:
        if lock >= 0:
            os.close(lock)
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return path, lock


def remove_left_overs(parent: Path) -> list[Path]:
    """Delete the folders of processes that are gone; returns them."""
    removed = []
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
            finally:
                os.close(lock)
    return removed


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _local_path(directory: str) -> Path:
    return Path(directory.removeprefix("file://"))


def _unusable(path: Path, error: OSError) -> StateBackendError:
    return StateBackendError(
        f"the folder {path} for RocksDB state cannot be used: {error.strerror or error}; give a folder on a local disk "
        "that the workers can write to (state.backend.rocksdb.localdir), with enough space for the state"
    )
