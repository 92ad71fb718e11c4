"""The RocksDB databases of all simulated processes of a run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tidegate.state.rocksdb.settings import MB, RocksDBSettings
from tidegate.taskmanager.slot import SlotRuntime

_IN_MEMORY = Path("/dev/shm")


def _fastest_folder() -> str | None:
    """In memory where there is such a place: what a killed process leaves on its disk is never read again, so nothing
    is proved by waiting for the disk."""
    return str(_IN_MEMORY) if _IN_MEMORY.is_dir() and os.access(_IN_MEMORY, os.W_OK) else None


class LocalDatabases:
    """They lie below one temporary folder. A killed process leaves its own open: `remove` closes and deletes all."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="tidegate-simulation-", dir=_fastest_folder())
        self._runtimes: list[SlotRuntime] = []

    @property
    def settings(self) -> RocksDBSettings:
        return RocksDBSettings(
            local_directories=(self._folder,), background_threads=1, memory_per_slot=4 * MB, write_buffer_size=MB // 16
        )

    def add(self, runtime: SlotRuntime) -> None:
        self._runtimes.append(runtime)

    def remove(self) -> None:
        for runtime in self._runtimes:
            for task in runtime.tasks:
                for operator in task.chain.operators:
                    keyed = operator.context.keyed
                    if keyed is not None:
                        keyed.dispose()
        shutil.rmtree(self._folder, ignore_errors=True)
