"""One endless W1 job that is disturbed in turns: what a disturbance costs.

Blocks of four turns, alone, disturbed, disturbed, alone, so that what drifts or runs beside it touches both alike; the
ratio is the median over the blocks. Beside records per second of time there are records per second of the worker's
processor time, which other work on the machine hardly touches: what the disturbance costs the job itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.workloads import RunningCount, environment, first, numbers, run_w1, to_pair
from tidegate.common.metric_values import NUM_RECORDS_IN, CounterValue
from tidegate.connectors.discard import DiscardingSink

_SETTLE_S = 0.3  # heartbeats, which bring the counts, are 100 ms apart


@dataclass(frozen=True)
class Cost:
    alone: float  # records per second
    by_time: float  # disturbed over alone; 1.0: it costs nothing
    by_cpu: float
    disturbed_s: float  # how long it was disturbed in all


@contextmanager
def endless_w1(settings: Mapping[str, Any] | None = None) -> Iterator[Any]:
    """The client of the job, which runs. Its operator is `count`, its state too."""
    run_w1(1000, 1)  # start Spark and its workers
    env = environment(1, {"heartbeat.interval": "100 ms", **(settings or {})})
    stream = numbers(env, 10**12).map(to_pair)
    stream.key_by(first).process(RunningCount()).uid("count").sink_to(DiscardingSink())
    client: Any = env.execute_async("W1")
    try:
        while len(client.workers()) < 1 or not _records(client):
            time.sleep(0.1)
        yield client
    finally:
        client.cancel().result()


def cost_of(client: Any, disturb: Callable[[bool], None], blocks: int, turn_s: float) -> Cost:
    """`disturb(True)` begins it, `disturb(False)` ends it."""
    worker = psutil.Process(client.workers()[0].pid)
    alone, by_time, by_cpu, disturbed_s = [], [], [], 0.0
    for _ in range(blocks):
        turns = {False: [0.0, 0.0, 0.0], True: [0.0, 0.0, 0.0]}  # records, seconds, seconds of the processor
        for disturbed in (False, True, True, False):
            began = time.perf_counter()
            if disturbed:
                disturb(True)
            for i, figure in enumerate(_turn(client, worker, turn_s)):
                turns[disturbed][i] += figure
            if disturbed:
                disturb(False)
                disturbed_s += time.perf_counter() - began
        (records, seconds, cpu), (records2, seconds2, cpu2) = turns[False], turns[True]
        alone.append(records / seconds)
        by_time.append(records2 / seconds2 / (records / seconds))
        by_cpu.append(records2 / cpu2 / (records / cpu))
    return Cost(statistics.median(alone), statistics.median(by_time), statistics.median(by_cpu), disturbed_s)


def _turn(client: Any, worker: psutil.Process, turn_s: float) -> tuple[float, float, float]:
    time.sleep(_SETTLE_S)
    records, cpu, began = _records(client), sum(worker.cpu_times()[:2]), time.perf_counter()
    time.sleep(turn_s)
    done = _records(client) - records
    return done, time.perf_counter() - began, sum(worker.cpu_times()[:2]) - cpu


def _records(client: Any) -> int:
    """By the task that counts, as of the latest heartbeat."""
    metrics = [m for m in client.view().metrics if m.name == NUM_RECORDS_IN and not m.operator]
    return sum(m.value.count for m in metrics if isinstance(m.value, CounterValue) and m.vertex == 1)
