"""The writing side of one task's snapshot: bytes in, handles out.

A `TaskStateWriter` serves one checkpoint of one task and is used by one helper thread::

    exclusive.write* shared.write*  close    (handles may be sent only after close)
    exclusive.write* shared.write*  abort    (after any error, or when the checkpoint was aborted)

`cancel` may come from another thread at any time and makes the next write or close fail.
"""

from __future__ import annotations

from typing import Protocol

from tidegate.common.errors import SnapshotError
from tidegate.storage import compression
from tidegate.storage.checksums import checksum
from tidegate.storage.files import Files, OutputFile
from tidegate.storage.handles import FileRange, InlineBytes, StateHandle

DEFAULT_MIN_FILE_SIZE = 20 * 1024
DEFAULT_MEMORY_LIMIT = 5 * 1024 * 1024


class StateTooLargeError(SnapshotError):
    """The state of a task is larger than the storage takes."""


class StateSink(Protocol):
    """Where the asynchronous part of a snapshot writes: bytes in, handle out. Called from a helper thread."""

    def write(self, data: bytes) -> StateHandle: ...

    def start_file(self) -> None:
        """What is written next should lie in a file of its own, which can be deleted alone; a hint."""


class TaskStateWriter(Protocol):
    @property
    def exclusive(self) -> StateSink:
        """Takes what belongs to this checkpoint alone."""

    @property
    def shared(self) -> StateSink:
        """Takes what later checkpoints may build on (increments of keyed state)."""

    @property
    def results(self) -> StateSink:
        """Takes results on their way to the client. They are only passing through, so no limit of the storage for the
        state of a job is for them."""

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
    """One file for exclusive and one for shared data (more when asked by `start_file`), made when first needed. The
    first bytes of the task, up to `min_file_size`, are put into the handles themselves: small state makes no files."""

    def __init__(
        self, files: Files, exclusive_path: str, shared_path: str, min_file_size: int, codec: str = compression.NONE
    ) -> None:
        self._files = files
        self.codec = codec
        self._min_file_size = min_file_size
        self._inlined = 0
        self._cancelled = False
        self._exclusive = _FileSink(self, exclusive_path)
        self._shared = _FileSink(self, shared_path)
        self.bytes_written = 0

    @property
    def exclusive(self) -> StateSink:
        return self._exclusive

    @property
    def shared(self) -> StateSink:
        return self._shared

    @property
    def results(self) -> StateSink:
        return self._exclusive

    @property
    def files_written(self) -> int:
        return sum(len(sink.outputs) for sink in (self._exclusive, self._shared))

    def close(self) -> None:
        self.check_not_cancelled()
        for sink in (self._exclusive, self._shared):
            sink.commit()

    def abort(self) -> None:
        self._cancelled = True
        for sink in (self._exclusive, self._shared):
            for output in sink.outputs:
                output.discard()

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
        self._first_path = self._path = path
        self._offset = 0
        self._output: OutputFile | None = None
        self.outputs: list[OutputFile] = []  # all that were made; every one but `_output` is committed

    def start_file(self) -> None:
        self.commit()
        stem, dot, suffix = self._first_path.rpartition(".")
        self._path = f"{stem}-{len(self.outputs)}{dot}{suffix}" if self.outputs else self._first_path

    def commit(self) -> None:
        if self._output is not None:
            self._output.commit()
        self._output, self._offset = None, 0

    def write(self, data: bytes) -> StateHandle:
        writer = self._writer
        writer.check_not_cancelled()
        data = compression.compress(data, writer.codec)
        writer.bytes_written += len(data)
        if self._output is None:
            if writer.try_inline(data):
                return InlineBytes(data, checksum(data), writer.codec)
            self._output = writer.create(self._path)
            self.outputs.append(self._output)
        self._output.write(data)
        handle = FileRange(self._path, self._offset, len(data), checksum(data), writer.codec)
        self._offset += len(data)
        return handle


class InlineTaskStateWriter:
    """All bytes go into the handles, and so into the JobManager's memory, up to a limit per task."""

    files_written = 0

    def __init__(self, limit: int, task_name: str, codec: str = compression.NONE) -> None:
        self._limit = limit
        self._codec = codec
        self._task_name = task_name
        self._cancelled = False
        self._limited_bytes = 0
        self.bytes_written = 0

    @property
    def exclusive(self) -> StateSink:
        return self

    @property
    def shared(self) -> StateSink:
        return self

    @property
    def results(self) -> StateSink:
        return _Unlimited(self)

    def write(self, data: bytes) -> StateHandle:
        handle = self.write_unlimited(data)
        self._limited_bytes += len(handle.data)
        if self._limited_bytes > self._limit:
            raise StateTooLargeError(
                f"the state of {self._task_name} is larger than {self._limit:,} bytes, the limit of the JobManager's "
                "memory as checkpoint storage; set a checkpoint directory (execution.checkpointing.dir, or "
                "set_checkpoint_storage_dir) so that state goes to files, or raise the limit "
                "(state.storage.jobmanager.max-state-size, or JobManagerCheckpointStorage)"
            )
        return handle

    def write_unlimited(self, data: bytes) -> InlineBytes:
        self._check_not_cancelled()
        data = compression.compress(data, self._codec)
        self.bytes_written += len(data)
        return InlineBytes(data, checksum(data), self._codec)

    def start_file(self) -> None: ...

    def close(self) -> None:
        self._check_not_cancelled()

    def abort(self) -> None:
        self._cancelled = True

    def cancel(self) -> None:
        self._cancelled = True

    def _check_not_cancelled(self) -> None:
        if self._cancelled:
            raise SnapshotError("the checkpoint was aborted while its state was written")


class _Unlimited:
    """Where results go in an `InlineTaskStateWriter`."""

    def __init__(self, writer: InlineTaskStateWriter) -> None:
        self.write = writer.write_unlimited

    def start_file(self) -> None: ...
