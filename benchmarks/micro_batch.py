"""MICRO_BATCH mode: W1 (a running count per key) in batches of a million records over the same in STREAMING mode and in
PySpark's own stateful operator with a group per key; what an empty batch costs; how long a record takes; what a batch
costs that touches few keys of many.

The rate of a micro-batch job is that of its batches after the first two, in which workers and the JVM's compiler warm
up. PySpark's operator does the same work per record: a state of Spark's for each key, which is read and written.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.report import Figure
from benchmarks.workloads import KEYS, RunningCount, environment, first, run_w1, slope, to_pair
from tidegate.common import WatermarkStrategy
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream.connectors import DataGeneratorSource

PARALLELISM = 2
_WARM = 2  # batches that do not count
_RATE = 200  # records per second, where latency is measured


def run(quick: bool) -> list[Figure]:
    per_batch, batches = (300_000, 4) if quick else (1_000_000, 5)
    figures = _rates(per_batch, batches, quick)
    empty = _batch_times(_job(0.0001, to_pair, first), 6)
    figures.append(Figure("empty batch", f"{min(empty):.0f} ms"))
    for interval in (0, 1000):
        waits = latencies(interval, 5 if quick else 20)
        p50, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
        figures.append(Figure(f"latency at interval {interval} ms, p50 / p99", f"{p50:.0f} / {p99:.0f} ms"))
    figures.append(Figure("from a killed worker to the next batch", f"{_recovery():.0f} ms"))
    keys = 200_000 if quick else 1_000_000
    figures.append(Figure(f"batch that touches 1 % of {keys:,} keys", f"{_few_of_many(keys):.0f} ms"))
    return figures


def _rates(per_batch: int, batches: int, quick: bool) -> list[Figure]:
    times = _batch_times(_job(None, to_pair, first, per_batch), batches)
    micro = per_batch / (statistics.median(times) / 1000)
    small, large = (300_000, 1_200_000) if quick else (1_000_000, 4_000_000)
    run_w1(small, PARALLELISM)
    streaming = slope(lambda n: run_w1(n, PARALLELISM), small, large)
    per_key = _per_key_rate(2_000 if quick else 10_000)
    return [
        Figure("W1 MICRO_BATCH", f"{micro / 1e6:.2f} M/s"),
        Figure("W1 MICRO_BATCH / STREAMING", f"{micro / streaming:.2f}"),
        Figure("W1 MICRO_BATCH / transformWithState per key", f"{micro / per_key:.0f}", "≥ 20", micro >= 20 * per_key),
    ]


def _job(rate: float | None, make: Any, key: Any, per_batch: int = 1_000_000, function: Any = None) -> Any:
    """The client of a running job."""
    settings = {
        "execution.runtime-mode": "MICRO_BATCH",
        "tidegate.micro-batch.max-records": str(per_batch),
    }
    env = environment(PARALLELISM, settings)
    source: Any = DataGeneratorSource(make, records_per_second=rate)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    stream.key_by(key).process(function or RunningCount()).sink_to(DiscardingSink())
    return env.execute_async("micro-batches")


def _batch_times(client: Any, batches: int) -> list[float]:
    """Milliseconds from the start of each batch to that of the next, without the first ones."""
    try:
        while len(client.checkpoint_history()) < batches + _WARM + 1:
            client.get_job_execution_result().done() and client.get_job_execution_result().result()
            time.sleep(0.05)
        began = [batch.triggered_ms for batch in client.checkpoint_history()]
    finally:
        client.cancel().result()
    return [later - earlier for earlier, later in zip(began[_WARM:], began[_WARM + 1 :], strict=False)]


def latencies(interval: int, seconds: int) -> list[float]:
    """Milliseconds from when a record is due to its arrival at the client, in order of size. Not from when it is made:
    the source makes what has become due between two batches when the next one begins."""
    settings = {"execution.runtime-mode": "MICRO_BATCH", "tidegate.micro-batch.interval": f"{interval} ms"}
    env = environment(1, settings)
    source: Any = DataGeneratorSource(_now, records_per_second=_RATE)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "times").key_by(first).map(_rest)
    found: list[float] = []
    records: Any = stream.execute_and_collect("latency")
    with records as results:
        began = 0.0
        for number, made in results:
            now = time.time()
            began = began or made
            if now > began + 3:  # the first batches warm up
                found.append((now - began - number / _RATE) * 1000)
            if now > began + 3 + seconds:
                break
    return sorted(found)


def _now(i: int) -> tuple[int, int, float]:
    return i % 100, i, time.time()


def _rest(record: tuple[int, int, float]) -> tuple[int, float]:
    return record[1:]


class _DiesOnce(RunningCount):
    """Kills its process at a record, if `marker` is not there yet."""

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value[1] == 50_000 and not os.path.exists(self._marker):
            with open(self._marker, "w", encoding="utf-8") as file:
                file.write(str(time.time() * 1000))
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().process_element(value, ctx)


def _recovery() -> float:
    """Milliseconds from the death of a worker in the middle of a batch until that batch is committed."""
    folder = tempfile.mkdtemp(prefix="tidegate-bench-")
    marker = os.path.join(folder, "killed")
    client = _job(None, to_pair, first, per_batch=10_000, function=_DiesOnce(marker))
    try:
        while not client.failures() or client.checkpoint_history()[-1].attempt == 0:
            time.sleep(0.02)
        again = next(batch for batch in client.checkpoint_history() if batch.attempt == 1)
        with open(marker, encoding="utf-8") as file:
            return float(again.ended_ms - float(file.read()))
    finally:
        client.cancel().result()
        shutil.rmtree(folder, ignore_errors=True)


def _few_of_many(keys: int) -> float:
    """Milliseconds of a batch with a record for each hundredth key, when all have state."""
    few = keys // 100

    def make(i: int) -> tuple[int, int]:
        return (i if i < keys else (i * 100) % keys), i

    client = _job(None, make, first, per_batch=keys)
    try:
        while len(client.checkpoint_history()) < 1:
            time.sleep(0.05)
        savepoint = client.stop_with_savepoint(False, tempfile.mkdtemp(prefix="tidegate-bench-")).result()
    finally:
        client.cancel().result()
    settings = {
        "execution.runtime-mode": "MICRO_BATCH",
        "tidegate.micro-batch.max-records": str(few),
        "tidegate.micro-batch.buckets": "2048",
        "execution.state-recovery.path": savepoint,
    }
    env = environment(PARALLELISM, settings)
    source: Any = DataGeneratorSource(make)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    stream.key_by(first).process(RunningCount()).sink_to(DiscardingSink())
    try:
        return statistics.median(_batch_times(env.execute_async("few of many"), 4))
    finally:
        shutil.rmtree(savepoint, ignore_errors=True)


def _per_key_rate(records: int) -> float:
    """Records per second of PySpark's `transformWithState` with a group and a state of Spark's for each key."""
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timers: Any) -> Iterator[Any]:
            for _ in rows:
                before = self.count.get()
                count = 1 if before is None else before[0] + 1
                self.count.update((count,))
                yield Row(key=key[0], n=count)

    session = SparkSession.builder.getOrCreate().newSession()
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    session.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    session.conf.set("spark.sql.shuffle.partitions", str(PARALLELISM))
    source = session.readStream.format("rate-micro-batch").option("rowsPerBatch", records).load()
    pairs = source.selectExpr(f"value % {min(KEYS, records)} AS key")
    counted = pairs.groupBy("key").transformWithState(Count(), "key long, n long", "append", "None")
    folder = tempfile.mkdtemp(prefix="tidegate-bench-")
    query = counted.writeStream.format("noop").option("checkpointLocation", folder).start()
    try:
        while (query.lastProgress or {"batchId": -1})["batchId"] < 4:
            time.sleep(0.05)
        took = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[2:]]
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return records / (float(min(took)) / 1000)
