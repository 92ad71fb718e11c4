"""Where the tests keep what they have fetched: outside the repository, shared by all processes and checkouts."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class UnavailableError(Exception):
    """A real component that cannot be had on this machine; the message says what is missing and what would help."""


def cache_folder(name: str) -> Path:
    """A folder of its own for each component; `TIDEGATE_CACHE` moves all of them."""
    root = Path(os.environ.get("TIDEGATE_CACHE") or Path.home() / ".cache" / "tidegate")
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time prepares a component; the others wait and find it."""
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
