"""Files that a source reads: listing, looking whether one is still the same, opening. Local disks and `pyarrow.fs`.

A path is absolute: a local path, or a URI without options (`s3://bucket/a/b`). Options and secrets stay in the location
that a source was given and get into no split and no checkpoint.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from tidegate.contracts.file_formats import input_errors
from tidegate.storage.files import open_filesystem
from tidegate.storage.location import StorageLocation


@dataclass(frozen=True)
class FileStatus:
    path: str
    size: int
    modified_ns: int


class InputFiles:
    """The files below some folders (or files). Safe to use from several threads."""

    def __init__(self, locations: Sequence[StorageLocation]) -> None:
        self._locations = tuple(locations)
        self._remote: dict[str, tuple[Any, str, str]] = {}  # uri of a root -> (file system, its path there, uri)

    def list_all(self) -> list[FileStatus]:
        """Every file, sorted by path. Names that begin with '.' or '_' are left out, with what is below them, unless
        they were asked for by name."""
        found: dict[str, FileStatus] = {}
        for location in self._locations:
            shown = location.local_path if location.is_local else location.uri
            with input_errors("list", shown):
                listed = _list_local(shown) if location.is_local else self._list_remote(location)
            found.update((status.path, status) for status in listed)
        return [found[path] for path in sorted(found)]

    def status(self, path: str) -> FileStatus | None:
        """Size and time of a file; None when there is no such file."""
        with input_errors("read", path):
            if not is_remote(path):
                return _local_status(path)
            from pyarrow.fs import FileType

            filesystem, full = self._resolve(path)
            info = filesystem.get_file_info(full)
            return FileStatus(path, int(info.size), int(info.mtime_ns or 0)) if info.type == FileType.File else None

    def open(self, path: str) -> BinaryIO:
        """Opens the file for reading at any position, without a buffer."""
        with input_errors("read", path):
            if not is_remote(path):
                return open(path, "rb", buffering=0)
            filesystem, full = self._resolve(path)
            opened: BinaryIO = filesystem.open_input_file(full)
            return opened

    def open_arrow(self, path: str) -> Any:
        """Opens the file as a `pyarrow.NativeFile`."""
        with input_errors("read", path):
            if is_remote(path):
                filesystem, full = self._resolve(path)
                return filesystem.open_input_file(full)
            import pyarrow as pa

            return pa.OSFile(path, "rb")

    def _list_remote(self, location: StorageLocation) -> list[FileStatus]:
        from pyarrow.fs import FileSelector, FileType

        filesystem, root, uri = self._root(location)
        at_root = filesystem.get_file_info(root)
        if at_root.type == FileType.File:
            return [FileStatus(uri, int(at_root.size), int(at_root.mtime_ns or 0))]
        if at_root.type == FileType.NotFound:
            raise FileNotFoundError(uri)
        listed = []
        for info in filesystem.get_file_info(FileSelector(root, recursive=True)):
            below = info.path.removeprefix(root).lstrip("/")
            if info.type == FileType.File and not any(_hidden(name) for name in below.split("/")):
                listed.append(FileStatus(f"{uri}/{below}", int(info.size), int(info.mtime_ns or 0)))
        return listed

    def _root(self, location: StorageLocation) -> tuple[Any, str, str]:
        found = self._remote.get(location.uri)
        if found is None:
            filesystem, root = open_filesystem(location)
            found = self._remote[location.uri] = (filesystem, root.rstrip("/"), location.uri)
        return found

    def _resolve(self, path: str) -> tuple[Any, str]:
        for location in self._locations:
            if path == location.uri or path.startswith(location.uri + "/"):
                filesystem, root, uri = self._root(location)
                return filesystem, root + path.removeprefix(uri)
        # A split of a snapshot, from when the source had other paths.
        folder, _, name = path.rpartition("/")
        filesystem, root, _ = self._root(StorageLocation.parse(folder))
        return filesystem, f"{root}/{name}"


def is_remote(path: str) -> bool:
    return "://" in path


def _hidden(name: str) -> bool:
    return name[:1] in (".", "_")


def _local_status(path: str) -> FileStatus | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileStatus(path, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _list_local(root: str) -> list[FileStatus]:
    if os.path.isfile(root):
        status = _local_status(root)
        return [] if status is None else [status]
    listed = []
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            if folder == root:
                raise
            continue  # deleted since its parent was listed
        for entry in entries:
            if _hidden(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file():
                status = _local_status(entry.path)
                if status is not None:
                    listed.append(status)
    return listed


class InputFile:
    """One file as a format sees it. `size` is that of the listing."""

    def __init__(self, files: InputFiles, status: FileStatus) -> None:
        self._files = files
        self.path = status.path
        self.size = status.size

    def open(self) -> BinaryIO:
        return self._files.open(self.path)

    def open_arrow(self) -> Any:
        return self._files.open_arrow(self.path)
