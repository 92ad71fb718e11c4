"""Checkpoint storage for the simulator: the real `FileSystemStorage`, on files in a dict that can be told to fail.

Nothing here reads a clock or uses a thread.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator

from tidegate.common.errors import StorageUnavailableError
from tidegate.storage.cleanup import OrderedDeletions
from tidegate.storage.files import Files, reading
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.job_directory import LOCK, METADATA_NAME
from tidegate.storage.job_lock import JobLock
from tidegate.storage.location import StorageLocation
from tidegate.storage.reader import FileStateSource
from tidegate.storage.worker_storage import FileSystemWorkerStorage, WorkerStorage


class Mishap(enum.Enum):
    """What becomes of an operation."""

    NONE = "it succeeds"
    REFUSED = "it fails, and has no effect"
    UNANSWERED = "it has its effect, and says that it failed"
    GARBLED = "a read that brings other bytes"


Garble = Callable[[bytes, slice, list[bytes]], bytes]
"""(a file, the part of it that is read, all other files) -> what the read brings."""


class FakeFiles:
    """Files in a dict. `mishap` is asked before every operation: (operation, path) -> what becomes of it. Operations:
    create, write, commit, discard, read, list, delete."""

    def __init__(self, remote: bool = False, locked: bool = False) -> None:
        """`remote`: as the files of an object store, which are read as a whole. `locked`: a run has its lock in it."""
        self.remote = remote
        self._locked = locked
        self.content: dict[str, bytes] = {}
        self.mishap: Callable[[str, str], Mishap] = lambda operation, path: Mishap.NONE
        self.garble: Garble = lambda data, part, others: data[:-1][part]
        self.leaves_torn = False  # what an object store was not given whole: half of it is there until it is deleted
        self.quiet = False  # nothing fails while this is set
        self.intact: dict[tuple[str, int, int, str], bytes] = {}  # part of a file that was looked at -> the file, then
        self.damaged: dict[str, str] = {}  # path -> what is wrong with the file
        self.undeleted: set[str] = set()  # files, and folders, that could not be deleted, or not be found for it

    def fail_next(self, operation: str, times: int = 1) -> None:
        """Let the next operations of a kind fail, the rest pass."""
        left = [times]

        def mishap(asked: str, path: str) -> Mishap:
            if asked == operation and left[0] > 0:
                left[0] -= 1
                return Mishap.REFUSED
            return Mishap.NONE

        self.mishap = mishap

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """For those who only look on."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        """For those who are at work, within `undisturbed`."""
        before, self.quiet = self.quiet, False
        try:
            yield
        finally:
            self.quiet = before

    def attempt(self, operation: str, path: str, effect: Callable[[], None] = lambda: None) -> Mishap:
        """The effect, unless it is refused; StorageUnavailableError when it fails or goes unanswered."""
        mishap = Mishap.NONE if self.quiet else self.mishap(operation, path)
        if mishap is not Mishap.REFUSED:
            effect()
        if mishap is Mishap.REFUSED and operation in ("delete", "discard"):
            self.undeleted.add(path)
        if mishap in (Mishap.REFUSED, Mishap.UNANSWERED):
            raise StorageUnavailableError(f"cannot {operation} {self.describe(path)}: the test says so")
        return mishap

    def describe(self, path: str) -> str:
        return f"fake:{path}"

    def create(self, path: str) -> FakeOutput:
        self.attempt("create", path)
        return FakeOutput(self, path)

    def read(self, path: str) -> bytes:
        return self._read(path, slice(None))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self._read(path, slice(offset, offset + length))

    def _read(self, path: str, part: slice) -> bytes:
        with reading(self, path):
            mishap = self.attempt("read", path)
            if path not in self.content:
                raise FileNotFoundError(path)
            data = self.content[path]
        if mishap is Mishap.GARBLED:
            return self.garble(data, part, [self.content[other] for other in sorted(self.content) if other != path])
        return data[part]

    def size(self, path: str) -> int | None:
        self.attempt("list", path)
        return len(self.content[path]) if path in self.content else None

    def names(self, path: str) -> list[str]:
        self.attempt("list", path)
        prefix = f"{path}/" if path else ""
        names = {name[len(prefix) :].partition("/")[0] for name in self.content if name.startswith(prefix)}
        return sorted(names | {LOCK} if self._locked and not path else names)

    def delete_file(self, path: str, for_good: bool = False) -> None:
        self.attempt("delete", path, lambda: self._drop([path]))

    def delete_directory(self, path: str) -> None:
        prefix = f"{path}/" if path else ""
        self.attempt("delete", path, lambda: self._drop([name for name in self.content if name.startswith(prefix)]))

    def _drop(self, paths: list[str]) -> None:
        for path in paths:
            self.content.pop(path, None)


class FakeOutput:
    def __init__(self, files: FakeFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        self._files.attempt("write", self._path)
        self._data += data

    def commit(self) -> None:
        """On a local disk the new name, on an object store the object: whole or not at all."""
        self._files.attempt("commit", self._path, lambda: self._files.content.update({self._path: bytes(self._data)}))

    def discard(self) -> None:
        files = self._files
        left = files.leaves_torn and files.remote and not files.quiet and not self._path.endswith(METADATA_NAME)
        if left and self._data:
            files.content[self._path] = bytes(self._data[: len(self._data) // 2])  # there is no way to drop an upload
        with contextlib.suppress(StorageUnavailableError):
            self._files.attempt("discard", self._path, lambda: self._files._drop([self._path]))


class FakeLock:
    """Leases have a simulation of their own."""

    ends_with_its_owner = True

    def acquire(self, now_ms: float) -> None: ...

    def check(self) -> None: ...

    def release(self) -> None: ...


class FakeStorage(FileSystemStorage):
    """`min_file_size` is 0 by default, so that all state goes through the fake files."""

    def __init__(self, job_id: str = "job", min_file_size: int = 0, remote: bool = False) -> None:
        super().__init__("/fake", job_id, min_file_size=min_file_size)
        self.fake_files = FakeFiles(remote, locked=True)
        self.on_orphans_left: Callable[[], None] = lambda: None
        self._folders: dict[str, FakeFiles] = {}

    def forget(self) -> None:
        """The driver is gone, and with it what it meant to delete."""
        self._deletions = OrderedDeletions()

    def delete_orphans(self) -> list[str]:
        problems = super().delete_orphans()
        if any(problem.startswith("left-over files") for problem in problems):
            self.on_orphans_left()
        return problems

    def waiting(self) -> set[str]:
        """What is to be deleted when metadata could be."""
        waiting = self._deletions._waiting
        return {path for one in waiting for path in (*one.files, *one.directories)}

    def all_folders(self) -> list[FakeFiles]:
        return [self.fake_files, *self._folders.values()]

    def folder(self, uri: str) -> FakeFiles:
        """Of a savepoint, or of an earlier leader: beside the job's own directory."""
        if uri == self.root:
            return self.fake_files
        if uri not in self._folders:
            self._folders[uri] = FakeFiles(self.fake_files.remote)
            self._folders[uri].mishap = self._mishap
            self._folders[uri].garble = self.fake_files.garble
            self._folders[uri].leaves_torn = self.fake_files.leaves_torn
        return self._folders[uri]

    def _mishap(self, operation: str, path: str) -> Mishap:
        """Of a folder beside the job's own: as there."""
        return Mishap.NONE if self.fake_files.quiet else self.fake_files.mishap(operation, path)

    def successor(self, job_id: str) -> FakeStorage:
        """A directory for the next leader of the job, in the same store."""
        made = FakeStorage(job_id, self._min_file_size, self.fake_files.remote)
        made.fake_files.mishap, made.fake_files.garble = self.fake_files.mishap, self.fake_files.garble
        made.fake_files.leaves_torn = self.fake_files.leaves_torn
        made._folders = {**self._folders, self.root: self.fake_files}
        for files in made._folders.values():
            files.mishap = made._mishap
        return made

    def files(self, *, makes_root: bool = False) -> Files:
        return self.fake_files

    def _make_lock(self) -> JobLock:
        return FakeLock()

    def worker_storage(self) -> WorkerStorage:
        return FakeWorkerStorage(self)


class FakeWorkerStorage(FileSystemWorkerStorage):
    def __init__(self, storage: FakeStorage) -> None:
        super().__init__(storage._location, storage._min_file_size)
        object.__setattr__(self, "_fake_storage", storage)

    def _files(self, location: StorageLocation, *, makes_root: bool = True) -> Files:
        storage: FakeStorage = self._fake_storage  # type: ignore[attr-defined]
        return storage.folder(str(location))

    def source(self, root: str = "") -> FileStateSource:
        return FileStateSource(self._files(StorageLocation.parse(root) if root else self.job_directory))
