"""The RocksDB databases of all simulated processes of a run."""

from __future__ import annotations

import shutil
import tempfile

from tests.fast_folder import fastest_folder
from tidegate.state.rocksdb.settings import MB, RocksDBSettings
from tidegate.taskmanager.slot import SlotRuntime


class LocalDatabases:
    """They lie below one temporary folder. A killed process leaves its own open: `remove` closes and deletes all."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="tidegate-simulation-", dir=fastest_folder())
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
