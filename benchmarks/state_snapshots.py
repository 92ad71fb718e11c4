"""Snapshots and restore of the heap backend on local disk.

    python -m benchmarks [--quick] state_snapshots

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

from benchmarks.report import Figure
from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.state.backend import KeyedSnapshotWriter
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import KeyedSnapshot

CHANGED = 100  # one key of so many, for the increment

MakeValue = Callable[[int], Any]
KINDS: dict[str, tuple[MakeValue, MakeValue]] = {
    "int -> int": (lambda i: i, lambda i: i + 1),
    "str -> (int, float)": (lambda i: f"user-{i}", lambda i: (i, i / 2)),
    "int -> [int]": (lambda i: i, lambda i: [i]),
}


def run(quick: bool) -> list[Figure]:
    keys, repeats = (100_000, 2) if quick else (1_000_000, 5)
    figures = [figure for kind, makers in KINDS.items() for figure in measure(kind, *makers, keys, repeats)]
    return [*figures, state_access(keys // 10, repeats)]


def measure(kind: str, make_key: MakeValue, make_value: MakeValue, keys: int, repeats: int) -> list[Figure]:
    directory = tempfile.mkdtemp(prefix="tidegate-bench-")
    try:
        storage = FileSystemStorage(directory, "bench")
        storage.open(0.0)
        runs = [_one_run(storage, make_key, make_value, keys) for _ in range(repeats)]
    finally:
        shutil.rmtree(directory)
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    name = f"{kind}, {keys:,} keys:"
    return [
        Figure(f"{name} synchronous part, {keys // CHANGED:,} changed", f"{median['increment_sync'] * 1e3:.2f} ms"),
        Figure(f"{name} synchronous part, full", f"{median['full_sync'] * 1e3:.1f} ms"),
        Figure(f"{name} full snapshot", f"{keys / median['full']:,.0f} keys/s"),
        Figure(f"{name} restore", f"{keys / median['restore']:,.0f} keys/s"),
    ]


def _one_run(storage: FileSystemStorage, make_key: MakeValue, make_value: MakeValue, count: int) -> dict[str, float]:
    backend = _new_backend()
    state = backend.get_state(ValueStateDescriptor("v"))
    keys = [make_key(i) for i in range(count)]
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

    for i in range(0, count, CHANGED):
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
    found = sum(1 for _ in restored.keys("v"))
    if found != count:
        raise RuntimeError(f"{found} keys were restored instead of {count}")
    return {"full_sync": full_sync, "full": full, "increment_sync": increment_sync, "restore": restore}


def _new_backend() -> HeapKeyedStateBackend:
    return HeapKeyedStateBackend("bench", (0, 128), 128)


def _write(storage: FileSystemStorage, checkpoint_id: CheckpointId, writer: KeyedSnapshotWriter) -> KeyedSnapshot:
    task = storage.worker_storage().task_writer(checkpoint_id, AttemptNumber(0), VertexId(0), SubtaskIndex(0))
    snapshot = writer.write(task.shared)
    task.close()
    return snapshot


def state_access(keys: int, repeats: int) -> Figure:
    """A read and a write of a ValueState, for the record."""
    backend = _new_backend()
    state = backend.get_state(ValueStateDescriptor("v"))
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        for key in range(keys):
            backend.current_key = key
            state.update((state.value() or 0) + 1)
        seconds.append(time.perf_counter() - started)
    return Figure("value() and update()", f"{keys / statistics.median(seconds):,.0f} /s")
