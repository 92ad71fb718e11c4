"""Keyed state of the heap cut into buckets of keys, each a snapshot of its own.

For whoever keeps the state of an operator in many small pieces, and loads only those that it needs: a micro-batch. A
bucket is `stable_hash(key)` modulo a multiple of the number of key groups, so that all its keys are of one key group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import CheckpointId
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.heap.snapshot import BACKEND_NAME
from tidegate.state.heap.table import HeapTable
from tidegate.state.key_groups import KeyRouter
from tidegate.state.serialization import dumps_entries
from tidegate.storage.handles import KeyedChunk, KeyedIncrement, KeyedSnapshot
from tidegate.storage.writers import StateSink


class Buckets:
    """How the keys of one operator are cut. `per_group`: buckets in each key group."""

    def __init__(self, max_parallelism: int, per_group: int) -> None:
        if per_group < 1:
            raise ConfigurationError(f"a key group has at least one bucket, not {per_group}")
        self._max_parallelism = max_parallelism
        self.count = max_parallelism * per_group
        self.of_key: dict[Any, int] = KeyRouter(self.count, self.count)  # type: ignore[assignment]

    def touched(self, keys: Iterable[Any]) -> set[int]:
        return set(map(self.of_key.__getitem__, keys))

    def group_of(self, bucket: int) -> int:
        return bucket % self._max_parallelism

    # ------------------------------------------------------------ snapshots
    def changed(self, backend: HeapKeyedStateBackend, everything: bool) -> set[int]:
        """The buckets in which anything has changed since the backend was restored or this was called last;
        `everything`: also those that have not changed. Merges what has changed into its tables."""
        changed: set[int] = set()
        for table in backend.tables():
            changed |= self.touched(_keys(table, table.live_keys() if everything else table.delta))
            changed |= self.touched(_keys(table, table.delta))
            table.merge()
        return changed

    def take(
        self, backend: HeapKeyedStateBackend, checkpoint_id: CheckpointId, sink: StateSink, wanted: set[int]
    ) -> dict[int, KeyedSnapshot | None]:
        """All entries of each of these buckets; None for one that is empty. `changed` goes before."""
        chunks: dict[int, list[KeyedChunk]] = {bucket: [] for bucket in wanted}
        for table in backend.tables():
            name = table.info.name
            for bucket, (keys, values) in self._entries(table, wanted).items():
                data = dumps_entries(backend.operator_name, name, keys, values)
                chunks[bucket].append(KeyedChunk(state=name, entries=len(keys), handle=sink.write(data)))
        states = backend.described_states()
        return {
            bucket: KeyedSnapshot(
                backend=BACKEND_NAME,
                key_group_start=self.group_of(bucket),
                key_group_end=self.group_of(bucket) + 1,
                states=states,
                increments=[KeyedIncrement(checkpoint_id=checkpoint_id, full=True, chunks=found)],
            )
            if found
            else None
            for bucket, found in chunks.items()
        }

    def with_one_key(self, backends: Iterable[HeapKeyedStateBackend], wanted: set[int]) -> set[int]:
        """Those of the wanted buckets, none of which is empty, that hold a single key in all these backends."""
        left = set(wanted)
        first: dict[int, Any] = {}
        for table in (table for backend in backends for table in backend.tables()):
            for key in _keys(table, table.base):
                if not left:
                    return left
                bucket = self.of_key[key]
                if bucket in left and first.setdefault(bucket, key) != key:
                    left.remove(bucket)
        return left

    def _entries(self, table: HeapTable, wanted: set[int]) -> dict[int, tuple[list[Any], list[Any]]]:
        found: dict[int, tuple[list[Any], list[Any]]] = {}
        of_key, namespaced = self.of_key, table.info.namespaced
        for entry, value in table.base.items():
            bucket = of_key[entry[0] if namespaced else entry]
            if bucket in wanted:
                pair = found.get(bucket)
                if pair is None:
                    pair = found[bucket] = ([], [])
                pair[0].append(entry)
                pair[1].append(value)
        return found


def _keys(table: HeapTable, entries: Iterable[Any]) -> Iterator[Any]:
    return (entry[0] for entry in entries) if table.info.namespaced else iter(entries)
