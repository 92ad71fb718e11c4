"""The files of a sink: written under a hidden name, visible under their own name when their checkpoint is complete.

All hidden files of a job lie in one folder, `<base>/.inprogress-<job id>/`, and their names begin with a dot too, so a
reader that leaves out names with a leading '.' or '_' never meets them, and cleaning up needs no walk over the output.

A hidden file is written by one process and never written again once it was closed. What an earlier attempt left open is
never continued, only its valid beginning is copied: a worker that was taken for dead may still have it open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Protocol

from tidegate.common.errors import TidegateError
from tidegate.storage.files import make_directories, open_filesystem, sync_directory
from tidegate.storage.location import StorageLocation

_HIDDEN = ".inprogress-"
_COPY_CHUNK = 8 << 20


class OutputFileError(TidegateError):
    """A file of a sink cannot be written or published; the message has the full path and the cause."""


class PartStream(Protocol):
    """A hidden file being written, by one thread."""

    def write(self, data: bytes) -> None: ...

    def sync(self) -> None:
        """What was written so far survives a crash. Only where the store says `keeps_open_files`."""

    def close(self) -> None:
        """Closes the file, which is complete and durable when this returns."""

    def abandon(self) -> None:
        """Release it without a care for what was written. Never raises."""


class PartFiles(Protocol):
    """The files below one base folder. Paths are relative to it and '/'-separated."""

    keeps_open_files: bool  # what `sync` has seen of a file that was never closed is still there after a crash

    def describe(self, path: str) -> str: ...

    def create(self, hidden: str) -> PartStream: ...

    def publish(self, hidden: str, final: str, length: int) -> None:
        """Give a closed file its own name. May be repeated. Never replaces another file."""

    def publish_copy(self, hidden: str, final: str, length: int) -> None:
        """The same with a copy of the first `length` bytes; the hidden file stays."""

    def publish_joined(self, inputs: Sequence[tuple[str, int]], final: str, delimiter: bytes) -> None:
        """The first bytes of hidden files, each (name, length), one behind the other under the name `final`; the hidden
        files stay. May be repeated, also when hidden files were deleted after it had succeeded."""

    def hidden_names(self, job_id: str) -> list[str]:
        """The names in the job's folder of hidden files."""

    def trim(self, hidden: str, length: int) -> None:
        """Only the first `length` bytes of a file that was left open are needed any more: give back the space of the
        others where that is possible. Whoever still writes to it does so behind them."""

    def abandoned(self, own_job_id: str, owner: str, before_s: float) -> list[str]:
        """The hidden files whose names begin with `owner` in folders of other jobs, of which no file was written to
        since `before_s` (seconds since the epoch)."""

    def delete(self, path: str) -> None:
        """Deletes the file. It is no error when it is missing."""

    def delete_folder_if_empty(self, job_id: str) -> None:
        """The job's folder of hidden files. Best effort."""

    def check_writable(self, job_id: str) -> None:
        """Raises OutputFileError when nothing can be written to the folder."""


def hidden_path(job_id: str, name: str) -> str:
    return f"{_HIDDEN}{job_id}/.{name}"


def open_part_files(location: StorageLocation) -> PartFiles:
    if location.is_local:
        return LocalPartFiles(location.local_path)
    with output_errors("reach", location.uri):
        filesystem, root = open_filesystem(location)
    return ArrowPartFiles(filesystem, root, location.uri)


@contextlib.contextmanager
def output_errors(action: str, where: str) -> Iterator[None]:
    try:
        yield
    except TidegateError:
        raise
    except Exception as cause:  # pyarrow raises OSError, ValueError and NotImplementedError
        raise OutputFileError(f"cannot {action} {where}: {type(cause).__name__}: {cause}") from cause


def _vanished(hidden: str, final: str, length: int) -> OutputFileError:
    return OutputFileError(
        f"cannot publish {final}: neither it nor its data under the hidden name {hidden} exists ({length} bytes are "
        "missing). Was a file of the output folder deleted or moved while the job was running? Finished files may "
        "be taken away only when a later checkpoint is complete; files with a leading dot never."
    )


def _occupied(final: str, size: int, length: int) -> OutputFileError:
    return OutputFileError(
        f"cannot publish {final}: there is another file of that name with {size} bytes instead of {length}; it is not "
        "replaced. Move it away."
    )


# ---------------------------------------------------------------- local


class LocalPartFiles:
    keeps_open_files = True

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder_is_synced = False  # of hidden files; whoever made it may have died before it could do so

    def describe(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    def create(self, hidden: str) -> PartStream:
        full = self.describe(hidden)
        with output_errors("write", full):
            for last_try in (False, True):
                try:
                    _make_folder_of(full)
                    if not self._folder_is_synced:
                        sync_directory(self._root)
                        self._folder_is_synced = True
                    return _LocalStream(full)
                except FileNotFoundError:  # another subtask found the folder empty and deleted it
                    if last_try:
                        raise
            raise AssertionError

    def publish(self, hidden: str, final: str, length: int) -> None:
        source, target = self.describe(hidden), self.describe(final)
        with output_errors("publish", target):
            size = _size(source)
            if size is None:
                self._check_published(source, target, length)
                return
            if size != length:
                raise OutputFileError(f"cannot publish {target}: {source} has {size} bytes instead of {length}")
            _make_folder_of(target)
            try:
                _rename_to_new(source, target)
            except FileExistsError:
                self._check_published(source, target, length)
                _unlink(source)
            except FileNotFoundError:  # a worker that was taken for dead published it this moment
                self._check_published(source, target, length)

    def _check_published(self, source: str, target: str, length: int) -> None:
        """It is there, and will be after a power failure: whoever published it may have died before it could do so."""
        size = _size(target)
        if size is None:
            raise _vanished(source, target, length)
        if size != length:
            raise _occupied(target, size, length)
        sync_directory(os.path.dirname(target))

    def publish_copy(self, hidden: str, final: str, length: int) -> None:
        source, target = self.describe(hidden), self.describe(final)
        with output_errors("publish", target):
            size = _size(source)
            if _size(target) is not None or size is None:
                self._check_published(source, target, length)
                return
            if size < length:
                raise OutputFileError(f"cannot publish {target}: {source} has {size} bytes, {length} are needed")
            copy = f"{source}.copy-{uuid.uuid4().hex[:8]}"
            try:
                with open(source, "rb") as old, open(copy, "xb") as new:
                    _copy(old, new, length)
                    new.flush()
                    os.fsync(new.fileno())
                _make_folder_of(target)
                _rename_to_new(copy, target)
            finally:
                _unlink(copy)

    def publish_joined(self, inputs: Sequence[tuple[str, int]], final: str, delimiter: bytes) -> None:
        target = self.describe(final)
        length = joined_length(inputs, delimiter)
        with output_errors("publish", target):
            if _size(target) is not None:
                self._check_published(self.describe(inputs[0][0]), target, length)
                return
            joined = f"{self.describe(inputs[0][0])}.copy-{uuid.uuid4().hex[:8]}"
            try:
                with open(joined, "xb") as new:
                    _join(inputs, new, delimiter, lambda path: open(self.describe(path), "rb"))  # noqa: SIM115
                    new.flush()
                    os.fsync(new.fileno())
                _make_folder_of(target)
                try:
                    _rename_to_new(joined, target)
                except FileExistsError:  # a worker that was taken for dead published it this moment
                    self._check_published(joined, target, length)
            except FileNotFoundError:
                self._check_published(self.describe(inputs[0][0]), target, length)
            finally:
                _unlink(joined)

    def hidden_names(self, job_id: str) -> list[str]:
        folder = self.describe(f"{_HIDDEN}{job_id}")
        with output_errors("list", folder):
            try:
                return sorted(name.removeprefix(".") for name in os.listdir(folder))
            except FileNotFoundError:
                return []

    def trim(self, hidden: str, length: int) -> None:
        full = self.describe(hidden)
        with output_errors("shorten", full), contextlib.suppress(FileNotFoundError):
            if os.stat(full).st_size > length:
                os.truncate(full, length)

    def abandoned(self, own_job_id: str, owner: str, before_s: float) -> list[str]:
        found: list[str] = []
        with output_errors("list", self._root), contextlib.suppress(FileNotFoundError):
            for folder in sorted(os.listdir(self._root)):
                if not folder.startswith(_HIDDEN) or folder == f"{_HIDDEN}{own_job_id}":
                    continue
                with (
                    contextlib.suppress(FileNotFoundError, NotADirectoryError),
                    os.scandir(self.describe(folder)) as names,
                ):
                    times = {entry.name: entry.stat().st_mtime for entry in names}
                    if times and max(times.values()) < before_s:
                        found += [f"{folder}/{name}" for name in sorted(times) if name.startswith(f".{owner}")]
        return found

    def delete(self, path: str) -> None:
        full = self.describe(path)
        with output_errors("delete", full):
            _unlink(full)

    def delete_folder_if_empty(self, job_id: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.describe(f"{_HIDDEN}{job_id}"))

    def check_writable(self, job_id: str) -> None:
        probe = hidden_path(job_id, f"write-test-{uuid.uuid4().hex[:8]}")
        stream = self.create(probe)
        try:
            stream.write(b"tidegate")
            stream.close()
        finally:
            stream.abandon()
            self.delete(probe)


class _LocalStream:
    def __init__(self, full_path: str) -> None:
        self._path = full_path
        self._file: BinaryIO = open(full_path, "xb", buffering=0)  # noqa: SIM115 (closed by close or abandon)
        self._name_is_synced = False

    def write(self, data: bytes) -> None:
        with output_errors("write", self._path):
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]

    def sync(self) -> None:
        with output_errors("write", self._path):
            os.fsync(self._file.fileno())
            if not self._name_is_synced:
                sync_directory(os.path.dirname(self._path))
                self._name_is_synced = True

    def close(self) -> None:
        self.sync()
        with output_errors("write", self._path):
            self._file.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _rename_to_new(source: str, target: str) -> None:
    """Rename that raises FileExistsError instead of replacing. A crash in the middle leaves both names; one of them is
    there after a power failure, and the new one when this returns."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        if os.path.exists(target):  # a file system without hard links
            raise FileExistsError(target) from error
        os.rename(source, target)
        sync_directory(os.path.dirname(target))
    else:
        sync_directory(os.path.dirname(target))
        _unlink(source)


def _make_folder_of(path: str) -> None:
    """As the umask says."""
    make_directories(os.path.dirname(path), "", 0o777)


def _copy(old: BinaryIO, new: BinaryIO, length: int) -> None:
    left = length
    while left:
        data = old.read(min(left, _COPY_CHUNK))
        if not data:
            raise OutputFileError(f"the file became shorter while it was copied: {left} of {length} bytes are missing")
        new.write(data)
        left -= len(data)


def joined_length(inputs: Sequence[tuple[str, int]], delimiter: bytes) -> int:
    return sum(length for _, length in inputs) + len(delimiter) * (len(inputs) - 1)


def _join(inputs: Sequence[tuple[str, int]], new: BinaryIO, delimiter: bytes, open_input: Callable[[str], Any]) -> None:
    for number, (path, length) in enumerate(inputs):
        if number and delimiter:
            new.write(delimiter)
        with open_input(path) as old:
            _copy(old, new, length)


# ---------------------------------------------------------------- everything else


class ArrowPartFiles:
    """Object stores and HDFS. A file exists only once it is closed, so none is kept open over a checkpoint.

    Publishing is a rename where the store has one; on an object store a copy, which appears at once and whole, and a
    delete."""

    keeps_open_files = False

    def __init__(self, filesystem: Any, root: str, shown_root: str) -> None:
        self._fs = filesystem  # pyarrow.fs.FileSystem
        self._root = root.rstrip("/")
        self._shown_root = shown_root
        self._is_object_store = filesystem.type_name in ("s3", "gcs", "abfs")

    def describe(self, path: str) -> str:
        return f"{self._shown_root}/{path}" if path else self._shown_root

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def create(self, hidden: str) -> PartStream:
        full = self._full(hidden)
        with output_errors("write", self.describe(hidden)):
            if not self._is_object_store:
                self._fs.create_dir(full.rpartition("/")[0], recursive=True)
            return _ArrowStream(self._fs.open_output_stream(full), self.describe(hidden))

    def publish(self, hidden: str, final: str, length: int) -> None:
        source, target = self._full(hidden), self._full(final)
        with output_errors("publish", self.describe(final)):
            published = self._size(target)
            if published is not None and published != length:
                raise _occupied(self.describe(final), published, length)
            size = self._size(source)
            if published is not None:
                if size is not None:
                    self.delete(hidden)
                return
            if size is None:
                raise _vanished(self.describe(hidden), self.describe(final), length)
            if size != length:
                shown = self.describe(hidden)
                raise OutputFileError(f"cannot publish {self.describe(final)}: {shown} has {size} bytes, not {length}")
            if self._is_object_store:
                self._fs.copy_file(source, target)
                self.delete(hidden)
            else:
                self._fs.create_dir(target.rpartition("/")[0], recursive=True)
                self._fs.move(source, target)

    def publish_copy(self, hidden: str, final: str, length: int) -> None:
        """Only for state of a local folder that was moved here: files are not kept open over checkpoints."""
        copy = f"{hidden}.copy-{uuid.uuid4().hex[:8]}"
        with output_errors("publish", self.describe(final)):
            if self._size(self._full(final)) is None:
                with (
                    self._fs.open_input_stream(self._full(hidden)) as old,
                    self._fs.open_output_stream(self._full(copy)) as new,
                ):
                    _copy(old, new, length)
        self.publish(copy, final, length)

    def publish_joined(self, inputs: Sequence[tuple[str, int]], final: str, delimiter: bytes) -> None:
        length = joined_length(inputs, delimiter)
        joined = f"{inputs[0][0]}.copy-{uuid.uuid4().hex[:8]}"
        with output_errors("publish", self.describe(final)):
            published = self._size(self._full(final))
            if published is not None:
                if published != length:
                    raise _occupied(self.describe(final), published, length)
                return
            missing = [path for path, _ in inputs if self._size(self._full(path)) is None]
            if missing:
                raise _vanished(self.describe(missing[0]), self.describe(final), length)
            with self._fs.open_output_stream(self._full(joined)) as new:
                _join(inputs, new, delimiter, lambda path: self._fs.open_input_stream(self._full(path)))
        self.publish(joined, final, length)

    def _size(self, full: str) -> int | None:
        from pyarrow.fs import FileType

        info = self._fs.get_file_info(full)
        return int(info.size) if info.type == FileType.File else None

    def hidden_names(self, job_id: str) -> list[str]:
        from pyarrow.fs import FileSelector

        folder = f"{_HIDDEN}{job_id}"
        with output_errors("list", self.describe(folder)):
            infos = self._fs.get_file_info(FileSelector(self._full(folder), allow_not_found=True))
            return sorted(info.base_name.removeprefix(".") for info in infos)

    def trim(self, hidden: str, length: int) -> None:
        """No file is open over a checkpoint here."""

    def abandoned(self, own_job_id: str, owner: str, before_s: float) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        found: list[str] = []
        with output_errors("list", self._shown_root):
            for folder in self._fs.get_file_info(FileSelector(self._root, allow_not_found=True)):
                name = folder.base_name
                if (
                    folder.type != FileType.Directory
                    or not name.startswith(_HIDDEN)
                    or name == f"{_HIDDEN}{own_job_id}"
                ):
                    continue
                files = self._fs.get_file_info(FileSelector(self._full(name), allow_not_found=True))
                if files and all(file.mtime is not None and file.mtime.timestamp() < before_s for file in files):
                    found += [f"{name}/{f.base_name}" for f in files if f.base_name.startswith(f".{owner}")]
        return found

    def delete(self, path: str) -> None:
        with output_errors("delete", self.describe(path)), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._full(path))

    def delete_folder_if_empty(self, job_id: str) -> None:
        """Object stores have no folders; elsewhere there is no delete that fails on a full one."""

    def check_writable(self, job_id: str) -> None:
        probe = hidden_path(job_id, f"write-test-{uuid.uuid4().hex[:8]}")
        stream = self.create(probe)
        stream.write(b"tidegate")
        stream.close()
        self.delete(probe)


class _ArrowStream:
    def __init__(self, stream: Any, shown: str) -> None:
        self._stream = stream
        self._shown = shown

    def write(self, data: bytes) -> None:
        with output_errors("write", self._shown):
            self._stream.write(data)

    def sync(self) -> None:
        raise NotImplementedError("a file of this store exists only once it is closed")

    def close(self) -> None:
        with output_errors("write", self._shown):
            self._stream.close()

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._stream.close()
