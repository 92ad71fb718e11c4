"""The keyed state backends of one slot."""

from __future__ import annotations

from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.named_states import Clock, NamedStates
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.rocksdb.settings import RocksDBSettings

HASHMAP = "hashmap"
ROCKSDB = "rocksdb"


class KeyedBackends:
    """Makes them; those in RocksDB share the slot's memory and folder. `max_increments` 0: no increments, whatever the
    backend."""

    def __init__(self, kind: str, rocksdb: RocksDBSettings, max_increments: int, clock: Clock) -> None:
        self._max_increments = max_increments
        self._clock = clock
        self._resources = SlotResources(rocksdb) if kind == ROCKSDB else None

    def make(self, operator_name: str, key_group_range: tuple[int, int], max_parallelism: int) -> NamedStates:
        if self._resources is None:
            return HeapKeyedStateBackend(
                operator_name, key_group_range, max_parallelism, self._max_increments, self._clock
            )
        from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend

        return RocksDBKeyedStateBackend(
            operator_name,
            key_group_range,
            max_parallelism,
            self._resources,
            incremental=self._max_increments > 0,
            clock=self._clock,
        )
