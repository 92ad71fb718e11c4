"""The writing side of one task's snapshot: bytes in, handles out.

A `TaskStateWriter` serves one checkpoint of one task and is used by one helper thread::

    exclusive.write* shared.write*  close    (handles may be sent only after close)
    exclusive.write* shared.write*  abort    (after any error, or when the checkpoint was aborted)

`cancel` may come from another thread at any time and makes the next write or close fail.
"""

from __future__ import annotations

from typing import Protocol

from tidegate.common.errors import SnapshotError
from tidegate.storage.checksums import checksum
from tidegate.storage.files import Files, OutputFile
from tidegate.storage.handles import FileRange, InlineBytes, StateHandle

DEFAULT_MIN_FILE_SIZE = 20 * 1024
DEFAULT_MEMORY_LIMIT = 5 * 1024 * 1024


class Sink(Protocol):
    """The same as `state.backend.StateSink`, which this layer does not import."""

    def write(self, data: bytes) -> StateHandle: ...


class TaskStateWriter(Protocol):
    @property
    def exclusive(self) -> Sink:
        """For what belongs to this checkpoint alone."""

    @property
    def shared(self) -> Sink:
        """For what later checkpoints may build on (increments of keyed state)."""

    @property
    def bytes_written(self) -> int: ...

    @property
    def files_written(self) -> int: ...

    def close(self) -> None:
        """Everything is durable when this returns. Otherwise it raises, and `abort` has to follow."""

    def abort(self) -> None:
        """Delete what was written, also after close. Never raises."""

    def cancel(self) -> None: ...


class FileTaskStateWriter:
    """One file for exclusive and one for shared data, each made when first needed. The first bytes of the task, up to
    `min_file_size`, are put into the handles themselves: small state makes no files."""

    def __init__(self, files: Files, exclusive_path: str, shared_path: str, min_file_size: int) -> None:
        self._files = files
        self._min_file_size = min_file_size
        self._inlined = 0
        self._cancelled = False
        self._exclusive = _FileSink(self, exclusive_path)
        self._shared = _FileSink(self, shared_path)
        self.bytes_written = 0

    @property
    def exclusive(self) -> Sink:
        return self._exclusive

    @property
    def shared(self) -> Sink:
        return self._shared

    @property
    def files_written(self) -> int:
        return sum(sink.output is not None for sink in (self._exclusive, self._shared))

    def close(self) -> None:
        self.check_not_cancelled()
        for sink in (self._exclusive, self._shared):
            if sink.output is not None:
                sink.output.commit()

    def abort(self) -> None:
        self._cancelled = True
        for sink in (self._exclusive, self._shared):
            if sink.output is not None:
                sink.output.discard()

    def cancel(self) -> None:
        self._cancelled = True

    # ------------------------------------------------------------ used by the sinks

    def check_not_cancelled(self) -> None:
        if self._cancelled:
            raise SnapshotError("the checkpoint was aborted while its state was written")

    def try_inline(self, data: bytes) -> bool:
        if self._inlined + len(data) > self._min_file_size:
            return False
        self._inlined += len(data)
        return True

    def create(self, path: str) -> OutputFile:
        return self._files.create(path)


class _FileSink:
    def __init__(self, writer: FileTaskStateWriter, path: str) -> None:
        self._writer = writer
        self._path = path
        self._offset = 0
        self.output: OutputFile | None = None

    def write(self, data: bytes) -> StateHandle:
        writer = self._writer
        writer.check_not_cancelled()
        writer.bytes_written += len(data)
        if self.output is None:
            if writer.try_inline(data):
                return InlineBytes(data, checksum(data))
            self.output = writer.create(self._path)
        self.output.write(data)
        handle = FileRange(self._path, self._offset, len(data), checksum(data))
        self._offset += len(data)
        return handle


class InlineTaskStateWriter:
    """All bytes go into the handles, and so into the JobManager's memory, up to a limit per task."""

    files_written = 0

    def __init__(self, limit: int, task_name: str) -> None:
        self._limit = limit
        self._task_name = task_name
        self._cancelled = False
        self.bytes_written = 0

    @property
    def exclusive(self) -> Sink:
        return self

    @property
    def shared(self) -> Sink:
        return self

    def write(self, data: bytes) -> StateHandle:
        self._check_not_cancelled()
        self.bytes_written += len(data)
        if self.bytes_written > self._limit:
            raise SnapshotError(
                f"the state of {self._task_name} is larger than {self._limit:,} bytes, the limit of the JobManager's "
                "memory as checkpoint storage; set a checkpoint directory (execution.checkpointing.dir, or "
                "set_checkpoint_storage_dir) so that state goes to files, or raise the limit of "
                "JobManagerCheckpointStorage"
            )
        return InlineBytes(data, checksum(data))

    def close(self) -> None:
        self._check_not_cancelled()

    def abort(self) -> None:
        self._cancelled = True

    def cancel(self) -> None:
        self._cancelled = True

    def _check_not_cancelled(self) -> None:
        if self._cancelled:
            raise SnapshotError("the checkpoint was aborted while its state was written")
