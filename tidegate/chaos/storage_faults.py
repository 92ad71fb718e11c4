"""Checkpoint storage that misbehaves for a while; and one that keeps a job's last checkpoint for the comparison."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import StorageUnavailableError
from tidegate.common.ids import CheckpointId
from tidegate.storage.checkpoint_storage import CheckpointStorage
from tidegate.storage.cleanup import Deletion, checkpoint_files
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import checkpoint_directory, metadata_file

WAYS = ("fails", "is slow", "is full")
_SLOW_S = 0.3


@dataclass
class BadTime:
    """From `begins` to `ends` (of `clock`, in seconds) whatever is written goes wrong in one way."""

    begins: float
    ends: float
    way: str
    told: Callable[[], None]  # when it strikes for the first time
    struck: bool = False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    by: str = "tidegate chaos"  # who is to blame: stands in the errors

    def strike(self) -> None:
        """Before a write."""
        if not self.begins <= self.clock() < self.ends:
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
    """A `WorkerStorage` in a bad time; everything else is the other storage's."""

    def __init__(self, storage: Any, bad_time: BadTime) -> None:
        self._storage = storage
        self._bad_time = bad_time

    @property
    def supports_increments(self) -> bool:
        return bool(self._storage.supports_increments)

    def task_writer(self, *arguments: Any) -> Any:
        return _FaultyWriter(self._storage.task_writer(*arguments), self._bad_time)

    def source(self, root: str = "") -> Any:
        return self._storage.source(root)

    def savepoint_files(self, target: str) -> Any:
        return self._storage.savepoint_files(target)


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


class ChaosStorage:
    """The driver's storage: never deletes the newest completed checkpoint, and may have a bad time."""

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

    def read_metadata(self, checkpoint_id: CheckpointId) -> CheckpointMetadata:
        return self._storage.read_metadata(checkpoint_id)

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
