"""RocksDB state: the keyed running count (W1) against the heap backend, and what incremental checkpoints cost.

W1 runs in this process, in a real slot without Spark around it: source, map, key_by (a local channel), keyed process,
discard. Rates are those after every key has been touched once. The keys come round and round in the same order, the
worst one for a cache: with more keys than it holds, every record misses it. "All misses" has a fraction of the memory.
"""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.report import Figure
from benchmarks.slots import run_to_end, started
from benchmarks.workloads import RunningCount, first, numbers
from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.state.rocksdb.backend import RocksDBKeyedStateBackend
from tidegate.state.rocksdb.resources import SlotResources
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.taskmanager.deployment import RuntimeSettings

MB = 1 << 20


def run(quick: bool) -> list[Figure]:
    figures = w1(100_000, 300_000 if quick else 700_000, wanted=0.3)
    figures += w1(100_000, 300_000, wanted=0.25, memory=8 * MB, title="all misses")
    if not quick:
        figures += w1(1_000_000, 1_000_000, wanted=None)
        figures += w1(10_000_000, 1_000_000, wanted=0.25)
    return figures + incremental_checkpoints(500_000 if quick else 5_000_000)


# ---------------------------------------------------------------- W1


def _w1(keys: int, count: int) -> Callable[[Any], None]:
    def build(env: Any) -> None:
        pairs = numbers(env, count).map(lambda i: (i * 7_919 % keys, i))
        pairs.key_by(first).process(RunningCount()).sink_to(DiscardingSink())

    return build


def _run_w1(backend: str, keys: int, measured: int, memory: int | None = None) -> float:
    """Records per second once every key has been seen."""
    rocksdb = RocksDBSettings() if memory is None else RocksDBSettings(memory_per_slot=memory)
    settings = RuntimeSettings(state_backend=backend, rocksdb=rocksdb)
    with started(_w1(keys, measured), settings) as slot:
        counting = slot.tasks[-1]
        _touch_all(counting, keys)
        gc.collect()
        while counting.records_in < min(keys, measured) // 10:  # to warm up
            slot.step()
        started_at, done = time.perf_counter(), counting.records_in
        run_to_end(slot)
        return (counting.records_in - done) / (time.perf_counter() - started_at)


def _touch_all(task: Any, keys: int) -> None:
    """Give every key its count, in the order in which the job will ask for them, without the job's cost."""
    (backend,) = [o.context.keyed for o in task.chain.operators if o.context.keyed is not None]
    state = backend.get_state(ValueStateDescriptor("count"))
    for i in range(1, keys + 1):
        backend.current_key = i * 7_919 % keys
        state.update(1)
        if i % 1000 == 0:
            backend.end_of_batch()


def w1(keys: int, measured: int, wanted: float | None, memory: int | None = None, title: str = "") -> list[Figure]:
    repeats = 3 if keys <= 100_000 else 1
    heap = max(_run_w1("hashmap", keys, measured) for _ in range(repeats))
    rocks = max(_run_w1("rocksdb", keys, measured, memory) for _ in range(repeats))
    ratio = rocks / heap
    comment = f", {title}" if title else ""
    return [
        Figure(f"W1 on the heap, {keys:,} keys", f"{heap:,.0f} records/s"),
        Figure(f"W1 on RocksDB, {keys:,} keys{comment}", f"{rocks:,.0f} records/s"),
        Figure(
            f"ratio to the heap, {keys:,} keys{comment}",
            f"{ratio:.2f}",
            "" if wanted is None else f">= {wanted}",
            None if wanted is None else ratio >= wanted,
        ),
    ]


# ---------------------------------------------------------------- incremental checkpoints


def incremental_checkpoints(keys: int) -> list[Figure]:
    """Bytes and time of checkpoints after some of the keys have changed; each share several times, since now and then
    one also uploads what compaction wrote anew. The mean counts; of the synchronous parts the longest."""
    directory = tempfile.mkdtemp(prefix="tidegate-bench-")
    resources = SlotResources(replace(RocksDBSettings(), local_directories=(directory,)))
    backend = RocksDBKeyedStateBackend("bench", (0, 128), 128, resources)
    storage = FileSystemStorage(directory, "bench")
    storage.open(0.0)
    try:
        return _increments(backend, storage, keys)
    finally:
        backend.dispose()
        shutil.rmtree(directory)


def _increments(backend: RocksDBKeyedStateBackend, storage: FileSystemStorage, keys: int) -> list[Figure]:
    state = backend.get_state(ValueStateDescriptor("v"))
    source = random.Random(1)
    order = list(range(keys))
    source.shuffle(order)

    def change(changed: list[int]) -> None:
        for number, key in enumerate(changed):
            backend.current_key = key
            state.update(source.random())
            if number % 1000 == 0:
                backend.end_of_batch()

    change(order)
    sync_ms, cpu_ms, total_ms, full_bytes = _checkpoint(backend, storage, 1)
    figures = [
        Figure(f"first checkpoint of {keys:,} keys", f"{full_bytes / MB:,.1f} MB in {total_ms:,.0f} ms"),
        Figure("  of it synchronous", f"{sync_ms:,.0f} ms ({cpu_ms:,.0f} ms of CPU)"),
    ]
    number, shares = 1, {}
    for share, times in ((0.01, 5), (0.1, 5), (1.0, 2)):
        measured = []
        for _ in range(times):
            number += 1
            change(source.sample(order, int(keys * share)))
            measured.append(_checkpoint(backend, storage, number))
        sync_ms, cpu_ms = (max(m[i] for m in measured) for i in range(2))
        total_ms, mean_bytes = (sum(m[i] for m in measured) / times for i in (2, 3))
        least = min(m[3] for m in measured)
        shares[share] = mean_bytes / full_bytes
        figures.append(
            Figure(
                f"incremental checkpoint, {share:.0%} of the keys changed",
                f"{mean_bytes / MB:,.1f} MB (least {least / MB:,.1f}) in {total_ms:,.0f} ms, "
                f"at most {sync_ms:,.0f} ms sync ({cpu_ms:,.0f} ms of CPU)",
            )
        )
    figures += [
        Figure(
            f"bytes at {share:.0%}, share of a full one",
            f"{shares[share]:.3f}",
            f"<= {most:.2f}",
            shares[share] <= most,
        )
        for share, most in ((0.01, 0.03), (0.1, 0.3), (1.0, 1.3))
    ]
    return figures


def _checkpoint(
    backend: RocksDBKeyedStateBackend, storage: FileSystemStorage, number: int
) -> tuple[float, float, float, int]:
    """(ms of the synchronous part, of its CPU time, ms in all, bytes written). On a busy machine the synchronous part
    takes several times its CPU time."""
    checkpoint_id = CheckpointId(number)
    started, started_cpu = time.perf_counter(), time.thread_time()
    writer = backend.snapshot(checkpoint_id)
    sync, cpu = time.perf_counter() - started, time.thread_time() - started_cpu
    task = storage.worker_storage().task_writer(checkpoint_id, AttemptNumber(0), VertexId(0), SubtaskIndex(0))
    writer.write(task.shared)
    task.close()
    total = time.perf_counter() - started
    backend.notify_checkpoint_complete(checkpoint_id)
    return sync * 1e3, cpu * 1e3, total * 1e3, task.bytes_written
