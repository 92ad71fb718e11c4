"""The entries of a keyed snapshot, whichever backend wrote it: what restores into another backend and savepoints read.

What an entry's value is depends on the state's kind: the value, the list, the dict of a map, the reduced value, the
accumulator, True for a timer. With a time to live (`KeyedStateInfo.ttl`) every value, element or map value is the pair
(value, time of the last access in ms).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.common.errors import SnapshotError
from tidegate.state.heap.snapshot import BACKEND_NAME, read_snapshot
from tidegate.state.key_groups import stable_hash
from tidegate.state.savepoint.format import BACKEND_NAME as SAVEPOINT
from tidegate.state.savepoint.reader import read_entries
from tidegate.storage.handles import KeyedSnapshot
from tidegate.storage.reader import StateSource


class StateEntry(NamedTuple):
    state: str
    namespace: Any  # None for a state that has no namespaces
    key: Any
    value: Any


def iterate_snapshot(
    operator_name: str,
    snapshot: KeyedSnapshot,
    source: StateSource,
    work_dir: str | Path | None = None,
    *,
    key_groups: tuple[int, int] | None = None,
    max_parallelism: int | None = None,
) -> Iterator[StateEntry]:
    """All entries, state by state (RocksDB: key group by key group); the order is otherwise not promised.

    `key_groups` [start, end) leaves out the others; a heap snapshot needs `max_parallelism` for that. `work_dir` takes
    the files of a RocksDB snapshot while the iterator lives; None: a temporary folder."""
    if snapshot.backend == BACKEND_NAME:
        yield from _heap_entries(operator_name, snapshot, source, key_groups, max_parallelism)
    elif snapshot.backend == "rocksdb":
        from tidegate.state.rocksdb.reader import read_files

        with tempfile.TemporaryDirectory(prefix="tidegate-snapshot-", dir=work_dir) as folder:
            for state, namespace, key, value in read_files(operator_name, snapshot, source, folder, key_groups):
                yield StateEntry(state, namespace, key, value)
    elif snapshot.backend == SAVEPOINT:
        for state, namespace, key, value in read_entries(operator_name, snapshot, source, key_groups):
            yield StateEntry(state, namespace, key, value)
    else:
        raise SnapshotError(
            f"operator '{operator_name}': the snapshot was written by the state backend '{snapshot.backend}', which "
            "this version of Tidegate does not know; use a newer one"
        )


def _heap_entries(
    operator_name: str,
    snapshot: KeyedSnapshot,
    source: StateSource,
    key_groups: tuple[int, int] | None,
    max_parallelism: int | None,
) -> Iterator[StateEntry]:
    owns = None
    if key_groups is not None and max_parallelism is not None:
        start, end = key_groups
        if not (start <= snapshot.key_group_start and snapshot.key_group_end <= end):
            groups = max_parallelism

            def owns(key: Any) -> bool:
                return start <= stable_hash(key) % groups < end

    namespaced = {info.name for info in snapshot.states if info.namespaced}
    for state, entries in read_snapshot(operator_name, snapshot, source, owns).items():
        if state in namespaced:
            for (key, namespace), value in entries.items():
                yield StateEntry(state, namespace, key, value)
        else:
            for key, value in entries.items():
                yield StateEntry(state, None, key, value)
