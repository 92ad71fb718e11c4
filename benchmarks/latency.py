"""How long a record takes, and how long a job takes to start."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.report import Figure
from benchmarks.workloads import environment
from tidegate.common import WatermarkStrategy
from tidegate.datastream.connectors.datagen import DataGeneratorSource


def stamped(i: int) -> tuple[int, float]:
    return i % 100, time.time()


def age(pair: tuple[int, float]) -> float:
    return time.time() - pair[1]


def first(pair: Any) -> Any:
    return pair[0]


def run(quick: bool) -> list[Figure]:
    seconds = 3 if quick else 10
    env = environment(2)
    env.set_buffer_timeout(5)
    source: DataGeneratorSource = DataGeneratorSource(stamped, 1000 * seconds, 1000.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "one per ms")
    ages = sorted(stream.key_by(first).map(age).execute_and_collect("latency"))
    p50, p99 = ages[len(ages) // 2] * 1000, ages[len(ages) * 99 // 100] * 1000
    return [
        Figure("latency through a keyed exchange, p50", f"{p50:.1f} ms"),
        Figure("latency through a keyed exchange, p99", f"{p99:.1f} ms", "< 20 ms", p99 < 20),
        _start_up(3 if quick else 7),
    ]


def _start_up(repeats: int) -> Figure:
    times = []
    for _ in range(repeats):
        env = environment(2)
        source: DataGeneratorSource = DataGeneratorSource(stamped, 2, None)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "two records")
        started = time.time()
        times.append(min(t for _, t in stream.execute_and_collect("start-up")) - started)
    median = sorted(times)[len(times) // 2]
    return Figure("execute() to the first record, warm session", f"{median * 1000:.0f} ms", "< 1000 ms", median < 1)
