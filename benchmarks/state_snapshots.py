"""Snapshots and restore of the heap backend on local disk.

    python -m benchmarks.state_snapshots

Medians of several runs. Keys come in random order: with consecutive integers, which lie side by side in memory and in a
dict, everything is two to three times as fast. A full snapshot is timed until its file is on disk (fsync); the restore
reads a file that the operating system still has in memory.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.state.backend import KeyedSnapshotWriter
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import KeyedSnapshot

KEYS = 1_000_000
CHANGED = 10_000
REPEATS = 5

MakeValue = Callable[[int], Any]
KINDS: dict[str, tuple[MakeValue, MakeValue]] = {
    "int -> int": (lambda i: i, lambda i: i + 1),
    "str -> (int, float)": (lambda i: f"user-{i}", lambda i: (i, i / 2)),
    "int -> [int]": (lambda i: i, lambda i: [i]),
}


def run() -> list[dict[str, Any]]:
    return [measure(kind, *makers) for kind, makers in KINDS.items()] + [state_access()]


def measure(kind: str, make_key: MakeValue, make_value: MakeValue) -> dict[str, Any]:
    directory = tempfile.mkdtemp(prefix="tidegate-bench-")
    try:
        storage = FileSystemStorage(directory, "bench")
        storage.open(0.0)
        runs = [_one_run(storage, make_key, make_value) for _ in range(REPEATS)]
    finally:
        shutil.rmtree(directory)
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {
        "state": kind,
        "keys": KEYS,
        "changed": CHANGED,
        "increment_sync_ms": round(median["increment_sync"] * 1e3, 2),
        "full_sync_ms": round(median["full_sync"] * 1e3, 1),
        "full_keys_per_s": round(KEYS / median["full"]),
        "restore_keys_per_s": round(KEYS / median["restore"]),
    }


def _one_run(storage: FileSystemStorage, make_key: MakeValue, make_value: MakeValue) -> dict[str, float]:
    backend = _new_backend()
    state = backend.get_state(ValueStateDescriptor("v"))
    keys = [make_key(i) for i in range(KEYS)]
    random.Random(1).shuffle(keys)
    for i, key in enumerate(keys):
        backend.current_key = key
        state.update(make_value(i))

    started = time.perf_counter()
    writer = backend.snapshot(CheckpointId(1))
    full_sync = time.perf_counter() - started
    snapshot = _write(storage, CheckpointId(1), writer)
    full = time.perf_counter() - started
    backend.notify_checkpoint_complete(CheckpointId(1))

    for i in range(0, KEYS, KEYS // CHANGED):
        backend.current_key = keys[i]
        state.update(make_value(i + 1))
    del writer  # freeing it is not part of the next snapshot
    started = time.perf_counter()
    writer = backend.snapshot(CheckpointId(2))
    increment_sync = time.perf_counter() - started
    _write(storage, CheckpointId(2), writer)

    restored = _new_backend()
    started = time.perf_counter()
    restored.restore([snapshot], storage.source())
    restore = time.perf_counter() - started
    count = sum(1 for _ in restored.keys("v"))
    if count != KEYS:
        raise RuntimeError(f"{count} keys were restored instead of {KEYS}")
    return {"full_sync": full_sync, "full": full, "increment_sync": increment_sync, "restore": restore}


def _new_backend() -> HeapKeyedStateBackend:
    return HeapKeyedStateBackend("bench", (0, 128), 128)


def _write(storage: FileSystemStorage, checkpoint_id: CheckpointId, writer: KeyedSnapshotWriter) -> KeyedSnapshot:
    task = storage.worker_storage().task_writer(checkpoint_id, AttemptNumber(0), VertexId(0), SubtaskIndex(0))
    snapshot = writer.write(task.shared)
    task.close()
    return snapshot


def state_access() -> dict[str, Any]:
    """A read and a write of a ValueState, for the record."""
    backend = _new_backend()
    state = backend.get_state(ValueStateDescriptor("v"))
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for key in range(KEYS // 10):
            backend.current_key = key
            state.update((state.value() or 0) + 1)
        seconds.append(time.perf_counter() - started)
    return {
        "state": "value() + update()",
        "keys": KEYS // 10,
        "access_per_s": round(KEYS / 10 / statistics.median(seconds)),
    }


def main() -> None:
    for row in run():
        print(
            "  ".join(f"{name}={value:,}" if isinstance(value, int | float) else value for name, value in row.items())
        )


if __name__ == "__main__":
    main()
