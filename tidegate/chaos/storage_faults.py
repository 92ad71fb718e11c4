"""Checkpoint storage that misbehaves for a while; and one that keeps a job's last checkpoint for the comparison."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import StorageUnavailableError
from tidegate.storage.checkpoint_storage import CheckpointStorage
from tidegate.storage.cleanup import Deletion, checkpoint_files
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import checkpoint_directory, metadata_file

WAYS = ("fails", "is slow", "is full")
_SLOW_S = 0.3


@dataclass
class BadTime:
    """From `begins` to `ends` (of `clock`, in seconds) whatever is written or read goes wrong in one way; a full disk
    can still be read."""

    begins: float
    ends: float
    way: str
    told: Callable[[], None]  # when it strikes for the first time
    struck: bool = False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    by: str = "tidegate chaos"  # who is to blame: stands in the errors

    def strike(self, *, reading: bool = False) -> None:
        """Before a write or a read."""
        if not self.begins <= self.clock() < self.ends or (reading and self.way == "is full"):
            return
        if not self.struck:
            self.struck = True
            self.told()
        if self.way == "is slow":
            self.sleep(_SLOW_S)
        elif self.way == "is full":
            error = OSError(errno.ENOSPC, f"No space left on device ({self.by})")
            raise StorageUnavailableError(str(error)) from error
        else:
            raise StorageUnavailableError(f"the storage does not answer ({self.by})")


class FaultyWorkerStorage:
    """A `WorkerStorage` in a bad time: snapshots and savepoints that are written, and state that is read to restore.
    `reads`: otherwise that comes as always. Pickled, it is the storage alone: the bad time is of this process."""

    def __init__(self, storage: Any, bad_time: BadTime, *, reads: bool = True) -> None:
        self._storage = storage
        self._bad_time = bad_time
        self._reads = reads

    @property
    def supports_increments(self) -> bool:
        return bool(self._storage.supports_increments)

    def task_writer(self, *arguments: Any) -> Any:
        return _FaultyWriter(self._storage.task_writer(*arguments), self._bad_time)

    def source(self, root: str = "") -> Any:
        source = self._storage.source(root)
        return _FaultySource(source, self._bad_time) if self._reads else source

    def savepoint_files(self, target: str) -> Any:
        return _FaultyFiles(self._storage.savepoint_files(target), self._bad_time)

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _itself, (self._storage,)


def _itself(storage: Any) -> Any:
    return storage


class _FaultyWriter:
    """A `TaskStateWriter` whose closing, which makes the snapshot durable, may go wrong."""

    def __init__(self, writer: Any, bad_time: BadTime) -> None:
        self._writer = writer
        self._bad_time = bad_time

    def close(self) -> None:
        self._bad_time.strike()
        self._writer.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class _FaultySource:
    """A `StateSource` whose reading may go wrong."""

    def __init__(self, source: Any, bad_time: BadTime) -> None:
        self._source = source
        self._bad_time = bad_time

    def read(self, handle: Any) -> bytes:
        self._bad_time.strike(reading=True)
        data: bytes = self._source.read(handle)
        return data


class _FaultyFiles:
    """The `Files` of a savepoint, of which a new one may not become complete."""

    def __init__(self, files: Any, bad_time: BadTime) -> None:
        self._files = files
        self._bad_time = bad_time

    def create(self, path: str) -> Any:
        return _FaultyFile(self._files.create(path), self._bad_time)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class _FaultyFile:
    """An `OutputFile` whose `commit` may go wrong, and then leaves nothing behind."""

    def __init__(self, file: Any, bad_time: BadTime) -> None:
        self._file = file
        self._bad_time = bad_time
        self._gone = False

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def commit(self) -> None:
        try:
            self._bad_time.strike()
        except BaseException:
            self.discard()
            raise
        self._file.commit()

    def discard(self) -> None:
        if not self._gone:
            self._gone = True
            self._file.discard()


class ChaosStorage:
    """The driver's storage: never deletes the newest completed checkpoint, and may have a bad time, in which the
    metadata of checkpoints and savepoints cannot be written."""

    def __init__(self, storage: CheckpointStorage, bad_time: BadTime | None) -> None:
        self._storage = storage
        self._bad_time = bad_time
        self._kept: tuple[str, set[str]] | None = None  # folder, files that it needs

    def write_metadata(self, metadata: CheckpointMetadata) -> str:
        if self._bad_time is not None:
            self._bad_time.strike()
        path = self._storage.write_metadata(metadata)
        needed = {metadata_file(metadata.checkpoint_id), *checkpoint_files(metadata)}
        self._kept = (checkpoint_directory(metadata.checkpoint_id), needed)
        return path

    def worker_storage(self) -> Any:
        """For the driver's own part in savepoints; workers get it pickled."""
        storage = self._storage.worker_storage()
        return storage if self._bad_time is None else FaultyWorkerStorage(storage, self._bad_time)

    def delete(self, deletion: Deletion) -> list[str]:
        if self._kept is not None:
            folder, needed = self._kept
            deletion = Deletion(
                [file for file in deletion.files if file not in needed],
                [one for one in deletion.directories if one != folder],
            )
        return self._storage.delete(deletion)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)
