"""W1 (a running count per key) in BATCH mode, over the same in STREAMING mode and in PySpark's own ways.

All on the same session with two slots, each as the slope between two sizes, so that starting costs do not count. The
PySpark ways do the same work: a Python function for every record makes the pair, the records are brought together by
key, and a Python function for every record makes the running count. (A grouped-map function gets the records of a key
at once, so there the function is called per key; it gets as many records per key, and fewer keys, since it takes about
a millisecond for each.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.report import Figure
from benchmarks.workloads import KEYS, environment, first, numbers, run_w1, slope, to_pair
from tidegate.connectors.discard import DiscardingSink

PARALLELISM = 2


def run(quick: bool) -> list[Figure]:
    small, large, repeats = (500_000, 2_000_000, 2) if quick else (1_000_000, 4_000_000, 4)
    ways: list[tuple[Callable[[int], float], int, int]] = [
        (lambda n: run_w1(n, PARALLELISM, {"execution.runtime-mode": "BATCH"}), small, large),
        (lambda n: run_w1(n, PARALLELISM), small, large),
        (run_rdd, small, large),
        (run_reduced, small, large),
        (run_reduced_rdd, small, large),
        (lambda n: run_pandas(n, n * KEYS // large), large // 100, large // 25),
    ]
    for way, few, _ in ways:  # Spark, its workers and the JVM's compiler warm up
        way(few)
    rates = [0.0] * len(ways)
    for _ in range(repeats):  # in turn: other work on the machine hits all of them
        rates = [max(rate, slope(*way)) for rate, way in zip(rates, ways, strict=True)]
    batch, streaming, rdd, reduced, reduced_rdd, pandas = rates
    return [
        Figure("W1 BATCH", f"{batch / 1e6:.2f} M/s"),
        Figure("W1 BATCH / STREAMING", f"{batch / streaming:.2f}"),
        Figure("W1 BATCH / RDD groupByKey", f"{batch / rdd:.2f}", "> 1", batch > rdd),
        Figure("totals BATCH / RDD reduceByKey", f"{reduced / reduced_rdd:.2f}", "> 1", reduced > reduced_rdd),
        Figure("W1 BATCH / applyInPandas", f"{batch / pandas:.2f}", "> 1", batch > pandas),
    ]


def _session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


class Count:
    """W1's function with a state of its own."""

    def __init__(self) -> None:
        self.count: int | None = None

    def process(self, value: tuple[int, int]) -> Iterator[tuple[int, int]]:
        self.count = (self.count or 0) + 1
        yield value[0], self.count


def running_counts(group: tuple[int, Iterable[int]]) -> Iterator[tuple[int, int]]:
    key, values = group
    state = Count()
    for value in values:
        yield from state.process((key, value))


def run_rdd(count: int) -> float:
    """Seconds for the running count as RDDs."""
    sc = _session().sparkContext
    started = time.perf_counter()
    pairs = sc.parallelize(range(1, count + 1), PARALLELISM).map(to_pair)
    pairs.groupByKey(PARALLELISM).flatMap(running_counts).foreachPartition(_drop)
    return time.perf_counter() - started


def add_values(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0], a[1] + b[1]


def run_reduced(count: int) -> float:
    """Seconds for the totals alone."""
    env = environment(PARALLELISM, {"execution.runtime-mode": "BATCH"})
    numbers(env, count).map(to_pair).key_by(first).reduce(add_values).sink_to(DiscardingSink())
    started = time.perf_counter()
    env.execute("totals")
    return time.perf_counter() - started


def run_reduced_rdd(count: int) -> float:
    """The same as RDDs; both combine before the shuffle."""
    sc = _session().sparkContext
    started = time.perf_counter()
    sc.parallelize(range(1, count + 1), PARALLELISM).map(to_pair).reduceByKey(
        lambda a, b: a + b, PARALLELISM
    ).foreachPartition(_drop)
    return time.perf_counter() - started


def run_pandas(count: int, keys: int) -> float:
    """Seconds for the running count as a grouped-map pandas UDF."""
    import pandas as pd

    def counts(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"key": group["key"], "n": range(1, len(group) + 1)})

    spark = _session()
    started = time.perf_counter()
    frame = spark.range(1, count + 1, 1, PARALLELISM).selectExpr(f"id % {keys} as key", "id")
    frame.groupBy("key").applyInPandas(counts, "key long, n long").write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def _drop(records: Iterable[Any]) -> None:
    for _ in records:
        pass
