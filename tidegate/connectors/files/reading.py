"""The readers of `FileSource`: a fixed list of file parts, or a folder that is watched.

A reader has one file open at a time. Files of an object store are read on helper threads, one batch ahead, so that the
mailbox never waits for the network; local files are read at once, a bounded piece per call.
"""

from __future__ import annotations

import functools
import logging
import os
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import present
from tidegate.connectors.files.input_files import FileStatus, InputFile, InputFiles, is_remote
from tidegate.contracts.connectors import SourceSplit, SplitReader
from tidegate.contracts.file_formats import FileFormat, FileRecordReader, InputFileError, input_errors

_HELPERS = 4  # threads of a worker process that read from object stores
_log = logging.getLogger(__name__)


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


class PartReader:
    """One part. The file has to be the same at the first record, at the last one, and after every restart."""

    def __init__(self, files: InputFiles, file_format: FileFormat, part: FilePart, offset: Any | None) -> None:
        self._files = files
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
            self._future = _in_background(self._step, max_records)
        if not self._future.done():
            return []
        values, self.offset = self._future.result()
        self._future = None if values is None else _in_background(self._step, max_records)
        return values

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


class FileListReader(SplitReader[Any]):
    """The offset is (number of the part, offset in it)."""

    def __init__(
        self,
        files: InputFiles,
        file_format: FileFormat,
        split: FileListSplit,
        offset: tuple[int, Any] | None,
        clock: Any,
    ) -> None:
        self._files = files
        self._format = file_format
        self._parts = split.parts
        self._index = 0 if offset is None else offset[0]
        self._offset: Any = None if offset is None else offset[1]
        self._clock = clock
        self._reader: PartReader | None = None

    def poll(self, max_records: int) -> list[Any] | None:
        if self._index >= len(self._parts):
            return None
        if self._reader is None:
            self._reader = PartReader(self._files, self._format, self._parts[self._index], self._offset)
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

    def wake_at_ms(self) -> float | None:
        if self._reader is not None and self._reader.waiting:
            return None
        now: float = self._clock.now_ms()
        return now

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


# ---------------------------------------------------------------- a folder that is watched


@dataclass(frozen=True)
class MonitorSplit(SourceSplit):
    """The files whose name hashes to this lane, those of today and those to come."""

    lane: int
    lanes: int

    def has(self, path: str) -> bool:
        return zlib.crc32(path.encode()) % self.lanes == self.lane


@dataclass(frozen=True)
class MonitorOffset:
    processed: dict[str, tuple[int, int]]  # path -> (size, time of change) of every file that was read to its end
    part: FilePart | None  # being read
    offset: Any  # in it


class FolderWatch:
    """The listing that the lanes of a subtask share: made anew every interval, for object stores on a helper thread."""

    def __init__(self, files: InputFiles, remote: bool, interval_ms: float) -> None:
        self._files = files
        self._remote = remote
        self._interval_ms = interval_ms
        self._future: Future[list[FileStatus]] | None = None
        self.version = 0  # of `found`; 0: nothing was listed yet
        self.found: list[FileStatus] = []
        self.next_ms: float | None = None  # when the next listing is due

    def refresh(self, now_ms: float) -> None:
        if self._future is not None:
            if self._future.done():
                future, self._future = self._future, None
                self._take(future.result(), now_ms)
        elif self.next_ms is None or now_ms >= self.next_ms:
            if self._remote:
                self._future = _in_background(self._files.list_all)
            else:
                self._take(self._files.list_all(), now_ms)

    def _take(self, found: list[FileStatus], now_ms: float) -> None:
        self.found = sorted(found, key=lambda status: (status.modified_ns, status.path))
        self.version += 1
        self.next_ms = now_ms + self._interval_ms

    @property
    def listing(self) -> bool:
        return self._future is not None


class MonitorReader(SplitReader[Any]):
    """Reads the files of its lane one after the other, oldest first, and never ends. A file is read once: when it is
    changed later, that is only logged."""

    def __init__(
        self,
        files: InputFiles,
        file_format: FileFormat,
        split: MonitorSplit,
        offset: MonitorOffset | None,
        watch: FolderWatch,
        clock: Any,
    ) -> None:
        self._files = files
        self._format = file_format
        self._split = split
        self._watch = watch
        self._clock = clock
        self._processed = {} if offset is None else dict(offset.processed)
        self._queue: deque[FilePart] = deque()  # found, in order, not begun
        self._version = 0  # of the listing that was looked at last
        self._warned: set[FileStatus] = set()
        self._part = None if offset is None else offset.part
        self._reader: PartReader | None = None
        if offset is not None and offset.part is not None:
            self._reader = PartReader(files, file_format, offset.part, offset.offset)

    def poll(self, max_records: int) -> list[Any]:
        if self._reader is None:
            if not self._queue:
                self._look()
            if not self._queue:
                return []
            self._part = self._queue.popleft()
            self._reader = PartReader(self._files, self._format, self._part, None)
        values = self._reader.poll(max_records)
        if values is not None:
            return values
        part = present(self._part, "the part that was read")
        self._processed[part.path] = (part.size, part.modified_ns)
        self._reader.close()
        self._reader, self._part = None, None
        return []

    def _look(self) -> None:
        watch = self._watch
        watch.refresh(self._clock.now_ms())
        if watch.version == self._version:
            return
        self._version = watch.version
        for status in watch.found:
            if not self._split.has(status.path):
                continue
            before = self._processed.get(status.path)
            if before is None:
                self._queue.append(FilePart.whole(status))
            elif before != (status.size, status.modified_ns) and status not in self._warned:
                self._warned.add(status)
                _log.warning("%s was changed after it had been read; what is new in it is not read", status.path)

    @property
    def idle(self) -> bool:
        return self._reader is None and not self._queue and self._version > 0

    def offset(self) -> MonitorOffset:
        return MonitorOffset(dict(self._processed), self._part, None if self._reader is None else self._reader.offset)

    def wake_at_ms(self) -> float | None:
        if self._reader is not None and self._reader.waiting:
            return None
        now: float = self._clock.now_ms()
        if self._reader is not None or self._queue:
            return now
        if self._watch.listing:
            return None
        return now if self._watch.next_ms is None else max(now, self._watch.next_ms)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
