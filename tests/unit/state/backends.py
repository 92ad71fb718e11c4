"""Both keyed state backends, for tests that run on each."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.named_states import NamedStates
from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.rocksdb.settings import RocksDBSettings

KINDS = ("heap", "rocksdb")
ALL = (0, 128)


class FakeClock:
    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Backends:
    """Makes backends of one kind and disposes of them at the end."""

    def __init__(self, kind: str, directory: str, clock: Callable[[], float] | None = None) -> None:
        self.kind = kind
        self.clock = clock or FakeClock()
        self.resources = SlotResources(RocksDBSettings(local_directories=(str(directory),)))
        self._made: list[NamedStates] = []

    def make(self, key_groups=ALL, incremental=True, kind=None, max_increments=10) -> NamedStates:
        if (kind or self.kind) == "heap":
            backend = HeapKeyedStateBackend("op", key_groups, 128, max_increments if incremental else 0, self.clock)
        else:
            backend = RocksDBKeyedStateBackend("op", key_groups, 128, self.resources, incremental, self.clock)
        self._made.append(backend)
        return backend

    def restored(self, snapshots, source, key_groups=ALL, continue_chain=False, kind=None) -> NamedStates:
        backend = self.make(key_groups, kind=kind)
        backend.restore(snapshots, source, continue_chain=continue_chain)
        return backend

    def dispose(self) -> None:
        for backend in self._made:
            backend.dispose()
        self._made.clear()


def settle(backend: NamedStates) -> None:
    """Make the backend forget its recent changes: the next read comes from below."""
    if isinstance(backend, RocksDBKeyedStateBackend):
        backend.flush()
        for table in backend._tables.values():
            table.recent.clear()
            table.recent._older.clear()
    else:
        for table in backend._tables.values():
            table.merge()
