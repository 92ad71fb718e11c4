"""MICRO_BATCH mode: W1 (a running count per key, ten records for each) in batches of a million records over the same
in STREAMING and BATCH mode and in PySpark's own stateful operator with a group per key; what an empty batch costs; how
long a record takes; what a batch costs that touches few keys of many, by the number of buckets.

The rate of a micro-batch job is that of its batches after the first two, in which workers and the JVM's compiler warm
up. PySpark's operator does the same work per record: a state of Spark's for each key, which is read and written.

Nothing is waited for without a bound, and what has not begun within `_BUDGET_S` is left out, and said so. So that
nothing is, run the parts one after the other: `python -m benchmarks.micro_batch [--quick] [part ...]`, with a part of
`PARTS`; the figures are printed as they come.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Figure, print_table
from benchmarks.workloads import RunningCount, environment, first, run_w1, slope, to_pair
from tidegate.common import WatermarkStrategy
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.state.key_groups import key_group

PARALLELISM = 2
_WARM = 2  # batches that do not count
_RATE = 200  # records per second, where latency is measured
_PER_KEY = 10  # records, as in W1
_BUDGET_S = 400.0  # after which no part is begun
_PATIENCE_S = 75.0  # for one part
_KEY_GROUPS = 128  # of jobs with as few subtasks
BUCKETS = (128, 512, 2048)


@dataclass(frozen=True)
class Sizes:
    per_batch: int = 1_000_000
    batches: int = 5
    small: int = 1_000_000  # the slope of the other modes is between these
    large: int = 4_000_000
    per_key: int = 10_000  # records of a batch of PySpark's operator
    latency_s: int = 15
    keys: int = 1_000_000
    few_batches: int = 3


QUICK = Sizes(300_000, 4, 300_000, 1_200_000, 2_000, 5, 200_000, 3)
TINY = Sizes(20_000, 2, 10_000, 40_000, 100, 2, 2_000, 2)  # whether it works at all


class _LateError(Exception):
    """Something has not come within its time."""


def run(quick: bool) -> list[Figure]:
    return measure(QUICK if quick else Sizes())


PARTS = ("w1", "empty", "latency", "recovery", "few")


def measure(
    sizes: Sizes, parts: Sequence[str] = PARTS, tell: Callable[[list[Figure]], None] = lambda _: None
) -> list[Figure]:
    """`tell` gets the figures as they come."""
    began, figures = time.monotonic(), list[Figure]()

    def add(found: list[Figure]) -> None:
        figures.extend(found)
        if found:
            tell(found)

    def part(name: str, figures_of: Callable[[], list[Figure]]) -> None:
        if time.monotonic() > began + _BUDGET_S:
            add([Figure(name, f"left out: {_BUDGET_S:.0f} s are over")])
            return
        try:
            add(figures_of())
        except _LateError as error:
            add([Figure(name, f"left out: {error}")])

    if "w1" in parts:
        part("W1", lambda: _rates(sizes))
    if "empty" in parts:
        part("empty batch", _empty)
    if "latency" in parts:
        for mode, interval in (("MICRO_BATCH", 0), ("MICRO_BATCH", 1000), ("STREAMING", 0)):
            part(f"latency {mode}", functools.partial(_latency, mode, interval, sizes))
    if "recovery" in parts:
        part("recovery", lambda: [Figure("from a killed worker to the next batch", f"{_recovery():.0f} ms")])
    if "few" in parts:
        part("few of many", lambda: _few_of_many(sizes, part))
    return figures


def _rates(sizes: Sizes) -> list[Figure]:
    times = _batch_times(_job(None, to_pair, first, sizes.per_batch), sizes.batches)
    micro = sizes.per_batch / (statistics.median(times) / 1000)
    figures = [Figure("W1 MICRO_BATCH", f"{micro / 1e6:.2f} M/s")]
    for mode in ("STREAMING", "BATCH"):
        settings = {"execution.runtime-mode": mode}
        run_w1(sizes.small, PARALLELISM, settings)
        rate = slope(functools.partial(run_w1, parallelism=PARALLELISM, settings=settings), sizes.small, sizes.large)
        figures.append(Figure(f"W1 {mode}", f"{rate / 1e6:.2f} M/s"))
        figures.append(Figure(f"W1 MICRO_BATCH / {mode}", f"{micro / rate:.2f}"))
    per_key = _per_key_rate(sizes.per_key)
    reached = micro >= 20 * per_key
    figures.append(Figure("W1 transformWithState per key", f"{per_key:,.0f} /s"))
    figures.append(Figure("W1 MICRO_BATCH / transformWithState per key", f"{micro / per_key:.0f}", "≥ 20", reached))
    return figures


def _empty() -> list[Figure]:
    return [Figure("empty batch", f"{min(_batch_times(_job(0.0001, to_pair, first), 6)):.0f} ms")]


def _latency(mode: str, interval: int, sizes: Sizes) -> list[Figure]:
    waits = latencies(interval, sizes.latency_s, mode)
    p50, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
    at = f" at interval {interval} ms" if mode == "MICRO_BATCH" else ""
    return [Figure(f"latency {mode}{at}, p50 / p99", f"{p50:.0f} / {p99:.0f} ms")]


def _until(met: Callable[[], bool], client: Any, what: str) -> None:
    """Raises when the job ends before, and after `_PATIENCE_S`."""
    end = time.monotonic() + _PATIENCE_S
    while not met():
        if client.get_job_execution_result().done() and not met():
            client.get_job_execution_result().result()
            raise RuntimeError(f"the job has ended before there was {what}")
        if time.monotonic() > end:
            raise _LateError(f"no {what} within {_PATIENCE_S:.0f} s")
        time.sleep(0.02)


def _job(rate: float | None, make: Any, key: Any, per_batch: int = 1_000_000, function: Any = None, **more: str) -> Any:
    """The client of a running job."""
    settings = {
        "execution.runtime-mode": "MICRO_BATCH",
        "tidegate.micro-batch.max-records": str(per_batch),
        **{name.replace("__", "-").replace("_", "."): value for name, value in more.items()},
    }
    env = environment(PARALLELISM, settings)
    source: Any = DataGeneratorSource(make, records_per_second=rate)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    stream.key_by(key).process(function or RunningCount()).sink_to(DiscardingSink())
    return env.execute_async("micro-batches")


def _batch_times(client: Any, batches: int) -> list[float]:
    """Milliseconds from the start of each batch to that of the next, without the first ones."""
    needed = batches + _WARM + 1
    try:
        _until(lambda: len(client.checkpoint_history()) >= needed, client, f"{needed} batches")
        began = [batch.triggered_ms for batch in client.checkpoint_history()]
    finally:
        client.cancel().result(60)
    return [later - earlier for earlier, later in zip(began[_WARM:], began[_WARM + 1 :], strict=False)]


def latencies(interval: int, seconds: int, mode: str = "MICRO_BATCH") -> list[float]:
    """Milliseconds from when a record is due to its arrival at the client, in order of size. Not from when it is made:
    the source makes what has become due between two batches when the next one begins."""
    settings = {"execution.runtime-mode": mode, "tidegate.micro-batch.interval": f"{interval} ms"}
    env = environment(1, settings)
    source: Any = DataGeneratorSource(_now, records_per_second=_RATE)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "times").key_by(first).map(_rest)
    found: list[float] = []
    records: Any = stream.execute_and_collect("latency")
    too_late = threading.Timer(_PATIENCE_S + seconds, records.close)
    too_late.daemon = True
    too_late.start()
    with records as results:
        began = 0.0
        for number, made in results:
            now = time.time()
            began = began or made
            if now > began + 3:  # the first batches warm up
                found.append((now - began - number / _RATE) * 1000)
            if now > began + 3 + seconds:
                break
    too_late.cancel()
    if not found:
        raise _LateError("no results")
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
        _until(lambda: any(batch.attempt == 1 for batch in client.checkpoint_history()), client, "batch of a restart")
        again = next(batch for batch in client.checkpoint_history() if batch.attempt == 1)
        with open(marker, encoding="utf-8") as file:
            return float(again.ended_ms - float(file.read()))
    finally:
        client.cancel().result(60)
        shutil.rmtree(folder, ignore_errors=True)


def _few_of_many(sizes: Sizes, part: Callable[[str, Callable[[], list[Figure]]], None]) -> list[Figure]:
    """Milliseconds of a batch with a record for each of 1 % of the keys, when all have state: keys at random, which are
    in all buckets, and those that lie together in a few key groups."""
    few = sizes.keys // 100
    folder = tempfile.mkdtemp(prefix="tidegate-bench-")
    try:
        client = _job(None, lambda i: (i % sizes.keys, i), first, per_batch=sizes.keys)
        try:
            _until(lambda: len(client.checkpoint_history()) >= 1, client, "batch")
            savepoint = client.stop_with_savepoint(False, folder).result(_PATIENCE_S)
        finally:
            client.cancel().result(60)
        chosen = {
            "at random": [i * 100 for i in range(few)],
            "together": sorted(range(sizes.keys), key=lambda key: key_group(key, _KEY_GROUPS))[:few],
        }
        for buckets in BUCKETS:
            for how, keys in chosen.items():
                name = f"batch that touches 1 % of {sizes.keys:,} keys, {how}, {buckets} buckets"
                part(name, functools.partial(_few, name, keys, buckets, savepoint, sizes.few_batches))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return []


def _few(name: str, keys: list[int], buckets: int, savepoint: str, batches: int) -> list[Figure]:
    def make(i: int) -> tuple[int, int]:
        return keys[i % len(keys)], i

    client = _job(
        None,
        make,
        first,
        per_batch=len(keys),
        tidegate_micro__batch_buckets=str(buckets),
        execution_state__recovery_path=savepoint,
    )
    return [Figure(name, f"{statistics.median(_batch_times(client, batches)):.0f} ms")]


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
    pairs = source.selectExpr(f"value % {max(1, records // _PER_KEY)} AS key")
    counted = pairs.groupBy("key").transformWithState(Count(), "key long, n long", "append", "None")
    folder = tempfile.mkdtemp(prefix="tidegate-bench-")
    query = counted.writeStream.format("noop").option("checkpointLocation", folder).start()
    try:
        end = time.monotonic() + _PATIENCE_S
        while (query.lastProgress or {"batchId": -1})["batchId"] < 4 and time.monotonic() < end:
            if (error := query.exception()) is not None:
                raise error
            time.sleep(0.05)
        if len(query.recentProgress) < 3:
            raise _LateError(f"no three batches of PySpark's operator within {_PATIENCE_S:.0f} s")
        took = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[2:]]
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return records / (float(min(took)) / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.micro_batch")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which ones; all when none is named")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    arguments = parser.parse_args()
    measure(QUICK if arguments.quick else Sizes(), arguments.parts or PARTS, print_table)


if __name__ == "__main__":
    main()
