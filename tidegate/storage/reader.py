"""The reading side: the bytes that a handle names, verified."""

from __future__ import annotations

from typing import Protocol

from tidegate.common.errors import SnapshotDamagedError, SnapshotError, StorageUnavailableError
from tidegate.storage.checksums import checksum
from tidegate.storage.compression import decompress
from tidegate.storage.files import Files
from tidegate.storage.handles import FileRange, InlineBytes, StateHandle

_WHOLE_FILE_LIMIT = 8 * 1024 * 1024
_CACHE_LIMIT = 32 * 1024 * 1024


class StateSource(Protocol):
    """Reads what a handle names; verifies the checksum and raises SnapshotError with the file's name otherwise."""

    def read(self, handle: StateHandle) -> bytes: ...


class InlineStateSource:
    """Handles that carry their bytes (the JobManager's memory as storage)."""

    def read(self, handle: StateHandle) -> bytes:
        if isinstance(handle, FileRange):
            raise SnapshotError(f"the state lies in the file {handle.path}, but this storage has no files")
        return read_inline(handle)


class FileStateSource:
    """Reads from the files of a job directory or a savepoint. Small remote files are fetched once and as a whole, since
    several ranges of them will be read; the cache is bounded. Used by one thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._whole: dict[str, bytes] = {}  # path -> content, least recently fetched first; total <= _CACHE_LIMIT
        self._ranged: set[str] = set()  # paths of files too large to be fetched as a whole

    def read(self, handle: StateHandle) -> bytes:
        if isinstance(handle, InlineBytes):
            return read_inline(handle)
        where = self._files.describe(handle.path)
        if handle.path.startswith("/") or ".." in handle.path.split("/"):
            raise SnapshotDamagedError(
                f"the snapshot names the file {handle.path}, which is outside of its own directory"
            )
        data = self._bytes(handle)
        if not _is_whole(data, handle):
            # Once more and past the cache, before a checkpoint is given up: it may have been the way, not the file.
            self._whole.pop(handle.path, None)
            data = self._files.read_range(handle.path, handle.offset, handle.length)
        if len(data) < handle.length:
            size = self._files.size(handle.path)
            if size is not None and size >= handle.offset + handle.length:
                raise StorageUnavailableError(
                    f"cannot read {where}: {len(data)} of {handle.length} bytes came from offset {handle.offset}, "
                    f"although the file has {size}"
                )
            raise SnapshotDamagedError(
                f"{where} is truncated: bytes {handle.offset} to {handle.offset + handle.length} are needed, it ends "
                f"at {handle.offset + len(data)}; use another checkpoint"
            )
        if not _is_whole(data, handle):
            raise SnapshotDamagedError(
                f"{where} is corrupt: the checksum of bytes {handle.offset} to {handle.offset + handle.length} does "
                "not match: it is damaged, or the file of another snapshot; use another checkpoint"
            )
        return decompress(data, handle.codec)

    def _bytes(self, handle: FileRange) -> bytes:
        path = handle.path
        if not self._files.remote or path in self._ranged:
            return self._files.read_range(path, handle.offset, handle.length)
        whole = self._whole.get(path)
        if whole is None:
            if (self._files.size(path) or 0) > _WHOLE_FILE_LIMIT:
                self._ranged.add(path)
                return self._files.read_range(path, handle.offset, handle.length)
            whole = self._whole[path] = self._files.read(path)
            while sum(map(len, self._whole.values())) > _CACHE_LIMIT:
                del self._whole[next(iter(self._whole))]
        return whole[handle.offset : handle.offset + handle.length]


def _is_whole(data: bytes, handle: FileRange) -> bool:
    return len(data) == handle.length and checksum(data) == handle.checksum


def read_inline(handle: InlineBytes) -> bytes:
    if checksum(handle.data) != handle.checksum:
        raise SnapshotDamagedError("state that is kept in the metadata is corrupt: its checksum does not match")
    return decompress(handle.data, handle.codec)
