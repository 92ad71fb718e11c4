"""Memory of a fast source into a slow sink: back-pressure has to keep it flat."""

from __future__ import annotations

import time
from typing import Any

import psutil

from benchmarks.report import Figure
from benchmarks.workloads import environment, first, numbers, to_pair


def slow(pair: Any) -> None:
    time.sleep(0.001)


def run(quick: bool) -> list[Figure]:
    seconds = 12 if quick else 60
    env = environment(2)
    numbers(env, 10**10).map(to_pair).key_by(first).add_sink(slow)
    client = env.execute_async("memory")
    samples = []
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        time.sleep(0.5)
        samples.append(_workers_mb())
    client.cancel()
    client.get_job_execution_result().exception()
    early, late = max(samples[len(samples) // 4 : len(samples) // 2]), max(samples[-len(samples) // 4 :])
    grown = late - early
    return [
        Figure(f"memory of the workers after {seconds} s", f"{late:.0f} MB"),
        Figure("growth in the second half", f"{grown:.1f} MB", "flat (< 10 MB)", grown < 10),
    ]


def _workers_mb() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "python" in process.name():
                total += process.memory_info().rss / 1e6
        except psutil.NoSuchProcess:
            pass
    return total
