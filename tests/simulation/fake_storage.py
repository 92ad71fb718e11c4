"""Checkpoint storage for the simulator: the real `FileSystemStorage`, on files in a dict that can be told to fail.

How slow a write is, is for the simulator to act out: it asks `write_delay_ms` when it schedules the end of a task's
asynchronous part. Nothing here reads a clock or uses a thread.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.common.errors import SnapshotDamagedError, StorageUnavailableError
from tidegate.common.ids import CheckpointId, SubtaskIndex, VertexId
from tidegate.storage.files import Files
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.job_lock import JobLock
from tidegate.storage.location import StorageLocation
from tidegate.storage.reader import FileStateSource
from tidegate.storage.worker_storage import FileSystemWorkerStorage, WorkerStorage

Fault = Callable[[str, str], bool]
"""(operation, path) -> whether it fails; operations: create, write, commit, read, list, delete."""


class FakeFiles:
    """Files in a dict. `fault` is asked before every operation."""

    remote = False

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.fault: Fault = lambda operation, path: False

    def fail_next(self, operation: str, times: int = 1) -> None:
        """Let the next operations of a kind fail, the rest pass."""
        left = [times]

        def fault(asked: str, path: str) -> bool:
            if asked == operation and left[0] > 0:
                left[0] -= 1
                return True
            return False

        self.fault = fault

    def check(self, operation: str, path: str) -> None:
        if self.fault(operation, path):
            raise StorageUnavailableError(f"cannot {operation} {self.describe(path)}: the test says so")

    def describe(self, path: str) -> str:
        return f"fake:{path}"

    def create(self, path: str) -> FakeOutput:
        self.check("create", path)
        return FakeOutput(self, path)

    def read(self, path: str) -> bytes:
        self.check("read", path)
        if path not in self.content:
            raise SnapshotDamagedError(f"cannot read {self.describe(path)}: there is no such file or directory")
        return self.content[path]

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self.read(path)[offset : offset + length]

    def size(self, path: str) -> int | None:
        return len(self.content[path]) if path in self.content else None

    def names(self, path: str) -> list[str]:
        self.check("list", path)
        prefix = f"{path}/" if path else ""
        return sorted({name[len(prefix) :].partition("/")[0] for name in self.content if name.startswith(prefix)})

    def delete_file(self, path: str) -> None:
        self.check("delete", path)
        self.content.pop(path, None)

    def delete_directory(self, path: str) -> None:
        self.check("delete", path)
        prefix = f"{path}/" if path else ""
        for name in [name for name in self.content if name.startswith(prefix)]:
            del self.content[name]


class FakeOutput:
    def __init__(self, files: FakeFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._files.check("write", self._path)
        self._data += data

    def commit(self) -> None:
        self._files.check("commit", self._path)
        self._files.content[self._path] = bytes(self._data)

    def discard(self) -> None:
        self._files.content.pop(self._path, None)


class FakeLock:
    """Leases have a simulation of their own."""

    def acquire(self, now_ms: float) -> None: ...

    def check(self) -> None: ...

    def release(self) -> None: ...


class FakeStorage(FileSystemStorage):
    """`min_file_size` is 0 by default, so that all state goes through the fake files."""

    def __init__(self, job_id: str = "job", min_file_size: int = 0) -> None:
        super().__init__("/fake", job_id, min_file_size=min_file_size)
        self.fake_files = FakeFiles()
        self.write_delay_ms: Callable[[CheckpointId, VertexId, SubtaskIndex], float] = lambda *_: 0.0
        self._folders: dict[str, FakeFiles] = {}

    def folder(self, uri: str) -> FakeFiles:
        """Of a savepoint: beside the job's own directory."""
        if uri == self.root:
            return self.fake_files
        if uri not in self._folders:
            self._folders[uri] = FakeFiles()
            self._folders[uri].fault = lambda operation, path: self.fake_files.fault(operation, path)
        return self._folders[uri]

    def files(self) -> Files:
        return self.fake_files

    def _make_lock(self) -> JobLock:
        return FakeLock()

    def worker_storage(self) -> WorkerStorage:
        return FakeWorkerStorage(self)


class FakeWorkerStorage(FileSystemWorkerStorage):
    def __init__(self, storage: FakeStorage) -> None:
        super().__init__(storage._location, storage._min_file_size)
        object.__setattr__(self, "_fake_storage", storage)

    def _files(self, location: StorageLocation) -> Files:
        storage: FakeStorage = self._fake_storage  # type: ignore[attr-defined]
        return storage.folder(str(location))

    def source(self, root: str = "") -> FileStateSource:
        return FileStateSource(self._files(StorageLocation.parse(root) if root else self.job_directory))
