"""A disk that loses what was not synced when the power fails.

The code under test works on a real folder. What `os.fsync` was called for is noted: of a file its bytes, of a folder
its names. `survivors` makes the folder that is found after a power failure. What was synced is there for certain. Of
the rest each file and each folder may have been written back by itself, or not, whatever the order in which it was
changed: this is all that POSIX promises, and more than most file systems dare.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_CHANGES = ("mkdir", "rename", "replace", "link", "unlink", "rmdir", "truncate")

Inode = int
Chance = Callable[[], bool]


def everything() -> bool:
    """Nothing was lost: only the processes have died."""
    return True


def nothing() -> bool:
    """All is lost that was not synced."""
    return False


def some(rng: random.Random) -> Chance:
    return lambda: rng.random() < 0.5


class LosingDisk:
    """`moment` is called whenever something on the disk has changed or was synced; a look at the disk from within it
    does not call it again."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        root.mkdir()
        self.root = root
        self.moment: Callable[[], None] = lambda: None
        self._bytes: dict[Inode, bytes] = {}
        self._names: dict[Inode, dict[str, Inode]] = {}
        self._folders: set[Inode] = {root.stat().st_ino}
        self._held: dict[Inode, int] = {}  # open, so that no number of theirs is given to another file
        self._busy = False
        for name in _CHANGES:
            self._wrap(patch, name, lambda *_: None)
        self._wrap(patch, "fsync", self._synced)

    def _wrap(self, patch: pytest.MonkeyPatch, name: str, note: Callable[..., None]) -> None:
        original = getattr(os, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            if not self._busy:
                self._busy = True
                try:
                    note(*arguments)
                    self.moment()
                finally:
                    self._busy = False
            return result

        patch.setattr(os, name, wrapped)

    def look(self) -> None:
        """Between two changes."""
        self._busy = True
        try:
            self.moment()
        finally:
            self._busy = False

    def close(self) -> None:
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _synced(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not Path(path).is_relative_to(self.root):
            return
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = self._look(path)
            self._hold(path, status.st_ino)
        else:
            self._bytes[status.st_ino] = Path(path).read_bytes()
            self._hold(path, status.st_ino)

    def _look(self, folder: str) -> dict[str, Inode]:
        names = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                names[entry.name] = number = entry.inode()
                if entry.is_dir():
                    self._folders.add(number)
                self._hold(entry.path, number)
        return names

    def _hold(self, path: str, number: Inode) -> None:
        if number not in self._held:
            self._held[number] = os.open(path, os.O_RDONLY)

    # ------------------------------------------------------------ the power fails
    def survivors(self, into: Path, by_itself: Chance) -> Path:
        """`by_itself`: whether one more file or folder was written back without having been synced."""
        paths: dict[Inode, str] = {}
        for folder, folders, files in os.walk(self.root):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                paths[os.stat(path).st_ino] = path
                if name in folders:
                    self._folders.add(os.stat(path).st_ino)
        number = self.root.stat().st_ino
        paths[number] = str(self.root)
        self._build(into, number, paths, by_itself)
        return into

    def _build(self, into: Path, number: Inode, paths: dict[Inode, str], by_itself: Chance) -> None:
        os.mkdir(into)
        written = number in paths and by_itself()
        names = self._look(paths[number]) if written else self._names.get(number, {})
        for name, child in sorted(names.items()):
            if child in self._folders:
                self._build(into / name, child, paths, by_itself)
            elif child in paths and by_itself():
                (into / name).write_bytes(Path(paths[child]).read_bytes())
            else:
                (into / name).write_bytes(self._bytes.get(child, b""))
