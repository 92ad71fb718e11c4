"""Where tests put local databases that they open by the dozen, so that they do not wait for a disk: what a killed
process leaves there is never read again, so waiting for the disk proves nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")
_ENOUGH = 2**30  # bytes


def fastest_folder() -> str | None:
    """A folder in memory, where there is one with room; else None, for the system's place for temporary files."""
    if not _IN_MEMORY.is_dir() or not os.access(_IN_MEMORY, os.W_OK):
        return None
    return str(_IN_MEMORY) if shutil.disk_usage(_IN_MEMORY).free > _ENOUGH else None
