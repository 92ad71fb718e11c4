"""Savepoints: how fast they are written and restored, from and into both backends, also at another parallelism.

    python -m benchmarks savepoints [--quick]

One subtask, on one core and the local disk: str keys in random order to ints, declared as such. A savepoint is timed
from the frozen view to the last file on disk. The restore at another parallelism is one of two new subtasks, each of
which reads what two old ones wrote.
"""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Figure
from tidegate.common import Types
from tidegate.common.ids import CheckpointId
from tidegate.common.type_schema import schema_of
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.state.factory import KeyedBackends
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.files import LocalFiles
from tidegate.storage.handles import KeyedSnapshot
from tidegate.storage.reader import FileStateSource

GROUPS = 128
STATE = ValueStateDescriptor("count", Types.LONG())


def run(quick: bool) -> list[Figure]:
    import pyarrow.parquet  # noqa: F401 (takes half a second, which is not the savepoint's)

    figures: list[Figure] = []
    for keys in (100_000,) if quick else (1_000_000, 5_000_000):
        for backend in ("hashmap", "rocksdb"):
            figures += _measure(backend, keys)
    return figures


def _measure(kind: str, keys: int) -> list[Figure]:
    root = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    title = f"{keys / 1e6:g} M keys, {kind}"
    try:
        halves = [(0, GROUPS // 2), (GROUPS // 2, GROUPS)]
        backend = _filled(kind, (0, GROUPS), keys)
        snapshot, seconds = _write(backend, root / "one", 0)
        backend.dispose()
        size = sum(p.stat().st_size for p in root.rglob("*.parquet"))
        figures = [Figure(f"savepoint write, {title}", f"{_rate(keys, seconds)}, {size / keys:.0f} bytes/key")]
        restored, seconds = _restore(kind, [snapshot], root / "one", (0, GROUPS))
        _check(restored, keys)
        figures.append(Figure(f"savepoint restore, {title}", _rate(keys, seconds)))
        snapshots = []
        for subtask, groups in enumerate(halves):
            backend = _filled(kind, groups, keys)
            snapshots.append(_write(backend, root / "two", subtask)[0])
            backend.dispose()
        middle = GROUPS // 4, GROUPS * 3 // 4
        restored, seconds = _restore(kind, snapshots, root / "two", middle)
        own = _check(restored, None)
        figures.append(Figure(f"restore of half from 2 subtasks, {title}", _rate(own, seconds)))
    finally:
        shutil.rmtree(root)
    return figures


def _rate(keys: int, seconds: float) -> str:
    return f"{keys / seconds / 1000:,.0f} k keys/s ({seconds:.1f} s)"


def _make(kind: str, groups: tuple[int, int]) -> Any:
    return KeyedBackends(kind, RocksDBSettings(), 10, lambda: 0.0).make("bench", groups, GROUPS)


def _filled(kind: str, groups: tuple[int, int], keys: int) -> Any:
    backend = _make(kind, groups)
    state = backend.get_state(STATE)
    numbers = list(range(keys))
    random.Random(1).shuffle(numbers)
    for i in numbers:
        key = f"user-{i}"
        if groups == (0, GROUPS) or backend._owns(key):
            backend.current_key = key
            state.update(i)
    return backend


def _write(backend: Any, root: Path, subtask: int) -> tuple[KeyedSnapshot, float]:
    gc.collect()
    writer = SavepointWriter(LocalFiles(str(root)), subtask, GROUPS, CheckpointId(1))
    started = time.perf_counter()
    frozen = backend.snapshot(CheckpointId(1), full=True)
    snapshot = writer.keyed("bench", "bench", schema_of(Types.STRING()), frozen)
    return snapshot, time.perf_counter() - started


def _restore(kind: str, snapshots: list[KeyedSnapshot], root: Path, groups: tuple[int, int]) -> tuple[Any, float]:
    gc.collect()
    restored = _make(kind, groups)
    started = time.perf_counter()
    restored.restore(snapshots, FileStateSource(LocalFiles(str(root))))
    return restored, time.perf_counter() - started


def _check(restored: Any, expected: int | None) -> int:
    found = sum(1 for _ in restored.keys(STATE.name))
    restored.dispose()
    if expected is not None and found != expected:
        raise RuntimeError(f"{found} keys were restored instead of {expected}")
    return found


if __name__ == "__main__":
    from benchmarks.report import print_table

    print_table(run(quick=True))
