"""The readers of `FileSource`: a split is a list of file parts, read one after the other.

A reader has one file open at a time. Files of an object store are read on helper threads, one batch ahead, so that the
mailbox never waits for the network; local files are read at once, a bounded piece per call.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.files.input_files import FileStatus, InputFile, InputFiles, is_remote
from tidegate.contracts.connectors import SourceContext, SourceSplit, SplitReader
from tidegate.contracts.file_formats import FileFormat, FileRecordReader, InputFileError, input_errors

_HELPERS = 4  # threads of a worker process that read from object stores
_WOKEN_BEFORE_MS = 1000.0  # when a helper thread is done, the reader is woken: this is only for the worst case


@functools.lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_HELPERS, thread_name_prefix="tidegate-files")


def _in_background(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    return _pool(os.getpid()).submit(work, *arguments)


@dataclass(frozen=True)
class FilePart:
    """The bytes [start, end) of a file that had this size and time of change when it was found."""

    path: str
    size: int
    modified_ns: int
    start: int
    end: int

    @staticmethod
    def whole(status: FileStatus) -> FilePart:
        return FilePart(status.path, status.size, status.modified_ns, 0, status.size)

    @property
    def name(self) -> str:
        """Of the file as it was found: `path_of` gives its path back."""
        return f"{self.path}@{self.size}-{self.modified_ns}"


def path_of(name: str) -> str:
    return name.rpartition("@")[0]


class PartReader:
    """One part. The file has to be the same at the first record, at the last one, and after every restart."""

    def __init__(
        self,
        files: InputFiles,
        file_format: FileFormat,
        part: FilePart,
        offset: Any | None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._files = files
        self._wake = wake  # called when a helper thread is done
        self._format = file_format
        self._part = part
        self._start_offset = offset
        self._reader: FileRecordReader[Any] | None = None
        self._background = is_remote(part.path)
        self._future: Future[tuple[list[Any] | None, Any]] | None = None
        self.offset = offset  # after the last record that `poll` returned

    def poll(self, max_records: int) -> list[Any] | None:
        if not self._background:
            values, self.offset = self._step(max_records)
            return values
        if self._future is None:
            self._future = self._begin_step(max_records)
        if not self._future.done():
            return []
        values, self.offset = self._future.result()
        self._future = None if values is None else self._begin_step(max_records)
        return values

    def _begin_step(self, max_records: int) -> Future[tuple[list[Any] | None, Any]]:
        future: Future[tuple[list[Any] | None, Any]] = _in_background(self._step, max_records)
        wake = self._wake
        if wake is not None:
            future.add_done_callback(lambda _: wake())
        return future

    @property
    def waiting(self) -> bool:
        """A helper thread is at work: polling again at once would be in vain."""
        return self._future is not None and not self._future.done()

    def _step(self, max_records: int) -> tuple[list[Any] | None, Any]:
        part = self._part
        with input_errors("read", part.path):
            if self._reader is None:
                self._check_unchanged("since it was found")
                file = InputFile(self._files, FileStatus(part.path, part.size, part.modified_ns))
                self._reader = self._format.create_reader(file, part.start, part.end, self._start_offset)
            values = self._reader.read(max_records)
            if values is None:
                self._check_unchanged("while it was read")
            return values, self._reader.offset()

    def _check_unchanged(self, when: str) -> None:
        part, now = self._part, self._files.status(self._part.path)
        advice = (
            "Files must stay as they are from the moment the job may see them until a checkpoint after they were read "
            "is complete: write them under a name with a leading '.' or '_' (or elsewhere) and rename them."
        )
        if now is None:
            raise InputFileError(f"{part.path} has vanished {when}. {advice}")
        if (now.size, now.modified_ns) != (part.size, part.modified_ns):
            what = f"{part.size} bytes then, {now.size} now" if now.size != part.size else "its time of change differs"
            raise InputFileError(f"{part.path} has changed {when} ({what}). {advice}")

    def close(self) -> None:
        future, self._future = self._future, None
        if future is None:
            self._close_reader()
        else:
            future.add_done_callback(lambda _: self._close_reader())

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


# ---------------------------------------------------------------- a fixed set of files


@dataclass(frozen=True)
class FileListSplit(SourceSplit):
    """Parts that are read one after the other."""

    parts: tuple[FilePart, ...]

    @staticmethod
    def of_found(parts: Sequence[FilePart]) -> FileListSplit:
        """Of files that were found while the job runs, each in one split only."""
        return FileListSplit(f"from {parts[0].name}", tuple(parts))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)


class FileListReader(SplitReader[Any]):
    """The offset is (number of the part, offset in it). `queued`: it waits for others until it is polled, which holds
    nobody's time back."""

    def __init__(
        self,
        files: InputFiles,
        file_format: FileFormat,
        split: FileListSplit,
        offset: tuple[int, Any] | None,
        context: SourceContext,
        queued: bool = False,
    ) -> None:
        self._files = files
        self._format = file_format
        self._parts = split.parts
        self._index = 0 if offset is None else offset[0]
        self._offset: Any = None if offset is None else offset[1]
        self._clock = context.clock
        self._wake = context.wake
        self._queued = queued
        self._reader: PartReader | None = None

    def poll(self, max_records: int) -> list[Any] | None:
        self._queued = False
        if self._index >= len(self._parts):
            return None
        if self._reader is None:
            part = self._parts[self._index]
            self._reader = PartReader(self._files, self._format, part, self._offset, self._wake)
        values = self._reader.poll(max_records)
        if values is not None:
            return values
        self._reader.close()
        self._reader, self._offset = None, None
        self._index += 1
        return [] if self._index < len(self._parts) else None

    def offset(self) -> tuple[int, Any]:
        return self._index, self._offset if self._reader is None else self._reader.offset

    def progress(self) -> float:
        return self._index / max(1, len(self._parts))

    @property
    def idle(self) -> bool:
        return self._queued

    def wake_at_ms(self) -> float | None:
        now: float = self._clock.now_ms()
        if self._reader is None or not self._reader.waiting:
            return now
        return None if self._wake is None else now + _WOKEN_BEFORE_MS

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


# ---------------------------------------------------------------- a folder that is watched, in older snapshots


@dataclass(frozen=True)
class MonitorSplit(SourceSplit):
    """Once a lane: the files whose names have this hash. Snapshots of older versions have them."""

    lane: int
    lanes: int


@dataclass(frozen=True)
class MonitorOffset:
    """Of a lane."""

    processed: dict[str, tuple[int, int]]  # path -> (size, time of change) of every file that was read to its end
    part: FilePart | None  # being read
    offset: Any  # in it

    def as_lists(self) -> list[tuple[SourceSplit, Any, bool]]:
        """The same as splits of today: those that are done, and what is being read."""
        done = [FilePart(path, size, modified, 0, size) for path, (size, modified) in self.processed.items()]
        lists: list[tuple[SourceSplit, Any, bool]] = [(FileListSplit.of_found([part]), None, True) for part in done]
        if self.part is not None:
            lists.append((FileListSplit.of_found([self.part]), (0, self.offset), False))
        return lists
