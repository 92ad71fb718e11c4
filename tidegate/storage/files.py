"""The few file operations that storage needs, under one root, on local disks and through `pyarrow.fs`.

Paths are relative to the root and '/'-separated. A file appears under its name only when it is complete: locally by a
temporary name, fsync and rename; on object stores because an object exists only once its upload is finished. Locally it
is there after a power failure too, and so are the folders that were made for it. Safe to use from several threads.

Every failure is a SnapshotError with the full path and the cause, of one of two kinds: StorageUnavailableError when it
may be another story later, SnapshotDamagedError when a file is gone for good: the store answers, and does not list it.

What is made on a local disk holds user data and is for the owner alone, unless the location says otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from tidegate.common.errors import (
    ConfigurationError,
    SnapshotDamagedError,
    SnapshotError,
    StorageUnavailableError,
    TidegateError,
)
from tidegate.common.secrets import without_secrets
from tidegate.storage import calls
from tidegate.storage.job_directory import LOCK, METADATA_NAME, checkpoint_of_directory
from tidegate.storage.location import StorageLocation

_OBJECT_STORES = ("s3", "gcs", "abfs")
UNFINISHED = ".part-"  # in the name of a file that is not complete


@dataclass(frozen=True)
class Permissions:
    """Of what is made on a local disk; the umask is taken off as always."""

    directory: int
    file: int


OWNER, GROUP, UMASK = "owner", "group", "umask"
PERMISSIONS = {OWNER: Permissions(0o700, 0o600), GROUP: Permissions(0o750, 0o640), UMASK: Permissions(0o777, 0o666)}


class OutputFile(Protocol):
    """A file being written, by one thread. Ends with exactly one of `commit` and `discard`."""

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None:
        """Durable and visible under its name when this returns."""

    def discard(self) -> None:
        """Leave nothing behind. Never raises."""


class Files(Protocol):
    remote: bool  # a read costs a round trip

    def describe(self, path: str) -> str:
        """The full path of a file, for messages."""

    def create(self, path: str) -> OutputFile: ...

    def read(self, path: str) -> bytes: ...

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Reads a range of bytes, fewer when the file ends before."""

    def size(self, path: str) -> int | None:
        """The size of a file; None when there is no such file."""

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted, without those of unfinished files; [] when there is no such directory."""

    def delete_file(self, path: str, for_good: bool = False) -> None:
        """Deletes a file. It is no error when it is missing. `for_good`: it is not back after a power failure."""

    def delete_directory(self, path: str) -> None:
        """Deletes a folder with everything in it. It is no error when it is missing."""


def write_file(files: Files, path: str, data: bytes) -> None:
    """Writes a whole file, which appears at once or not at all."""
    output = files.create(path)
    try:
        output.write(data)
        output.commit()
    except BaseException:
        output.discard()
        raise


def open_files(location: StorageLocation, *, makes_root: bool = True) -> Files:
    """The file system of a location in this process, made once. `makes_root`: see `LocalFiles`."""
    return _open_files(location, makes_root, os.getpid())


def check_writable(files: Files) -> None:
    """Fail early and clearly when nothing can be written below the root."""
    probe = f"_write_test-{uuid.uuid4().hex[:8]}"
    try:
        write_file(files, probe, b"tidegate")
        files.delete_file(probe)
    except SnapshotError as error:
        raise ConfigurationError(
            f"the checkpoint directory {files.describe('')} cannot be written to: {error}; check that it exists or can "
            "be made, and that the user of the job has the rights to write there"
        ) from error


@contextlib.contextmanager
def storage_errors(action: str, where: str) -> Iterator[None]:
    """Around every call of a storage: what goes wrong is one of our errors, and what hangs can be seen (`calls`)."""
    try:
        with calls.noted(f"{action} {where}"):
            yield
    except TidegateError:
        raise
    except Exception as cause:  # pyarrow raises OSError, ValueError and NotImplementedError
        if isinstance(cause, FileNotFoundError):
            raise StorageUnavailableError(f"cannot {action} {where}: there is no such file or directory") from cause
        raise StorageUnavailableError(f"cannot {action} {where}: {type(cause).__name__}: {cause}") from cause


@contextlib.contextmanager
def reading(files: Files, path: str) -> Iterator[None]:
    """A file that is not there is gone for good when `is_gone` says so. Otherwise a disk is taken not to be mounted:
    nothing older in it could be read either."""
    where = files.describe(path)
    try:
        with storage_errors("read", where):
            yield
    except StorageUnavailableError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or not is_gone(files, path):
            raise
        raise SnapshotDamagedError(f"cannot read {where}: there is no such file, it has been deleted") from error


def is_gone(files: Files, path: str) -> bool:
    """Whether the store can be asked, and has the directory, but not this file. StorageUnavailableError when it cannot.

    That it has the directory is proved by what is written there last (the metadata of a checkpoint or savepoint), or
    by the lock of a run. Anything else may have been left by a writer while the disk was not mounted."""
    directory, _, name = path.rpartition("/")
    if name in files.names(directory):
        return False
    beside = files.names("")
    if LOCK in beside or METADATA_NAME in beside:
        return True
    folders = (folder for folder in beside if checkpoint_of_directory(folder) is not None)
    return any(METADATA_NAME in files.names(folder) for folder in folders)


def make_directories(path: str, root: str, mode: int, *, make_root: bool = True) -> None:
    """`path`, which is `root` or below it. What is above the root is the user's, and is made as the umask says. Whoever
    makes a folder sees to it that it is there after a power failure. `make_root`: False leaves the root and what is
    above it to others; StorageUnavailableError when it is not there."""
    missing = []
    while path and not os.path.isdir(path):
        if not make_root and len(path) <= len(root):
            raise StorageUnavailableError(f"nothing can be written to {root}: it is not there; is its disk mounted?")
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another task made it just now
            os.mkdir(directory, mode if len(directory) >= len(root) else 0o777)
            with contextlib.suppress(PermissionError):  # a folder that one may write to, but not read
                sync_directory(os.path.dirname(directory))


def sync_directory(path: str) -> None:
    """The names in it survive a power failure."""
    directory = os.open(path or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# ---------------------------------------------------------------- local


class LocalFiles:
    remote = False

    def __init__(self, root: str, permissions: str = OWNER, *, makes_root: bool = True) -> None:
        """`makes_root`: whether the first file makes the root, where it is not there. Who works in a directory that
        somebody else has made does not: when it is not there its disk is not, and what would be written in its place
        would hide that."""
        self._root = root
        self._permissions = PERMISSIONS[permissions]
        self._makes_root = makes_root

    def describe(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    def create(self, path: str) -> OutputFile:
        full = self.describe(path)
        with storage_errors("write", full):
            folder, mode = os.path.dirname(full), self._permissions.directory
            make_directories(folder, self._root, mode, make_root=self._makes_root)
            return _LocalOutput(full, self._permissions.file)

    def read(self, path: str) -> bytes:
        full = self.describe(path)
        with reading(self, path), open(full, "rb") as file:
            return file.read()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        full = self.describe(path)
        with reading(self, path), open(full, "rb", buffering=0) as file:
            file.seek(offset)
            return _read_fully(file, length)

    def size(self, path: str) -> int | None:
        full = self.describe(path)
        with storage_errors("read", full):
            try:
                return os.stat(full).st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def names(self, path: str) -> list[str]:
        full = self.describe(path)
        with storage_errors("list", full):
            try:
                return sorted(name for name in os.listdir(full) if UNFINISHED not in name)
            except FileNotFoundError:
                return []

    def delete_file(self, path: str, for_good: bool = False) -> None:
        full = self.describe(path)
        with storage_errors("delete", full), contextlib.suppress(FileNotFoundError):
            os.unlink(full)
            if for_good:
                sync_directory(os.path.dirname(full))

    def delete_directory(self, path: str) -> None:
        full = self.describe(path)
        with storage_errors("delete", full), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(full)


def _read_fully(file: Any, length: int) -> bytes:
    data: bytes = file.read(length)
    while len(data) < length:  # one read call returns at most 2 GiB
        more = file.read(length - len(data))
        if not more:
            break
        data += more
    return data


class _LocalOutput:
    def __init__(self, full_path: str, mode: int) -> None:
        self._path = full_path
        self._temporary = f"{full_path}{UNFINISHED}{uuid.uuid4().hex[:8]}"
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def write(self, data: bytes) -> None:
        with storage_errors("write", self._path):
            self._file.write(data)

    def commit(self) -> None:
        with storage_errors("write", self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self._path)
            sync_directory(os.path.dirname(self._path))

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # closing flushes, which fails again on a full disk
            self._file.close()
        for path in (self._temporary, self._path):
            with contextlib.suppress(OSError):
                os.unlink(path)


# ---------------------------------------------------------------- everything else


class ArrowFiles:
    remote = True

    def __init__(self, filesystem: Any, root: str, shown_root: str) -> None:
        self._fs = filesystem  # pyarrow.fs.FileSystem
        self._root = root.rstrip("/")
        self._shown_root = shown_root
        self._is_object_store = filesystem.type_name in _OBJECT_STORES

    def describe(self, path: str) -> str:
        return f"{self._shown_root}/{path}" if path else self._shown_root

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def create(self, path: str) -> OutputFile:
        full = self._full(path)
        with storage_errors("write", self.describe(path)):
            if self._is_object_store:
                return _ArrowOutput(self._fs, full, full, self.describe(path))
            self._fs.create_dir(full.rpartition("/")[0], recursive=True)
            temporary = f"{full}{UNFINISHED}{uuid.uuid4().hex[:8]}"
            return _ArrowOutput(self._fs, temporary, full, self.describe(path))

    def read(self, path: str) -> bytes:
        with reading(self, path), self._fs.open_input_stream(self._full(path)) as stream:
            data: bytes = stream.read()
            return data

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        with reading(self, path), self._fs.open_input_file(self._full(path)) as file:
            data: bytes = file.read_at(length, offset)
            return data

    def size(self, path: str) -> int | None:
        from pyarrow.fs import FileType

        with storage_errors("read", self.describe(path)):
            info = self._fs.get_file_info(self._full(path))
            return info.size if info.type == FileType.File else None

    def names(self, path: str) -> list[str]:
        from pyarrow.fs import FileSelector

        with storage_errors("list", self.describe(path)):
            infos = self._fs.get_file_info(FileSelector(self._full(path), allow_not_found=True))
            return sorted(info.base_name for info in infos if UNFINISHED not in info.base_name)

    def delete_file(self, path: str, for_good: bool = False) -> None:
        with storage_errors("delete", self.describe(path)), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._full(path))

    def delete_directory(self, path: str) -> None:
        with storage_errors("delete", self.describe(path)), contextlib.suppress(FileNotFoundError):
            self._fs.delete_dir(self._full(path))


class _ArrowOutput:
    """On an object store a file that is given up is there for a moment, cut short, under its name: pyarrow's streams
    can be closed, which uploads what they hold, but not aborted. So nobody may take a file for written because it is
    there: state is read by handles that are sent after `commit`, with length and checksum, and metadata, which makes a
    checkpoint complete by being there, is written in one piece and refused when it is cut short."""

    def __init__(self, filesystem: Any, written_path: str, final_path: str, shown: str) -> None:
        self._fs = filesystem
        self._written_path = written_path
        self._final_path = final_path
        self._shown = shown
        self._stream = filesystem.open_output_stream(written_path)

    def write(self, data: bytes) -> None:
        with storage_errors("write", self._shown):
            self._stream.write(data)

    def commit(self) -> None:
        with storage_errors("write", self._shown):
            self._stream.close()
            if self._written_path != self._final_path:
                self._fs.move(self._written_path, self._final_path)

    def discard(self) -> None:
        with contextlib.suppress(Exception):
            self._stream.close()
        for path in {self._written_path, self._final_path}:
            with contextlib.suppress(Exception):
                self._fs.delete_file(path)


@functools.lru_cache(maxsize=16)
def _open_files(location: StorageLocation, makes_root: bool, pid: int) -> Files:
    if location.is_local:
        return LocalFiles(location.local_path, location.permissions or OWNER, makes_root=makes_root)
    with storage_errors("reach", without_secrets(location.uri)):
        filesystem, path = open_filesystem(location)
        return ArrowFiles(filesystem, path, without_secrets(location.uri))


def open_filesystem(location: StorageLocation) -> tuple[Any, str]:
    """The `pyarrow.fs.FileSystem` of a location that is not local, and the path in it."""
    if location.scheme == "s3":
        return _s3_filesystem(location)
    import pyarrow.fs

    filesystem, path = pyarrow.fs.FileSystem.from_uri(str(location))
    return filesystem, path


def _s3_filesystem(location: StorageLocation) -> tuple[Any, str]:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    path = location.uri.removeprefix("s3://")
    options: dict[str, Any] = dict(location.options)
    endpoint = options.pop("endpoint_override", None)
    if endpoint:
        scheme, separator, address = endpoint.rpartition("://")
        options["endpoint_override"] = address.rstrip("/")
        if separator:
            options.setdefault("scheme", scheme)
        options.setdefault("region", "us-east-1")
    elif "region" not in options:
        options["region"] = resolve_s3_region(path.partition("/")[0])
    options["anonymous"] = options.get("anonymous", "").lower() in ("1", "true", "yes")
    # Bounded waits: an unreachable store fails the checkpoint instead of holding it for minutes.
    retry = AwsStandardS3RetryStrategy(max_attempts=3)
    return S3FileSystem(connect_timeout=5, request_timeout=30, retry_strategy=retry, **options), path
