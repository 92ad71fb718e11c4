"""What looking at live state costs: W1 with 1,000 live gets a second over without, and how long a get takes.

One endless W1 job; turns of two seconds, asked and left alone, alternate. What else runs on the machine so disturbs
both alike. Beside records per second of time there are records per second of the worker's processor time, which other
work hardly touches: what the gets themselves cost the job. Those who ask are threads of the driver, which on a small
machine take time from the job too, as they do not when the driver is elsewhere.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from typing import Any

import psutil

from benchmarks.report import Figure
from benchmarks.workloads import KEYS, RunningCount, environment, first, numbers, run_w1, to_pair
from tidegate.common.errors import StateNotReadableError
from tidegate.common.metric_values import NUM_RECORDS_IN, CounterValue
from tidegate.connectors.discard import DiscardingSink

GETS_PER_S = 1_000
THREADS = 10
TURN_S = 2.0


class Askers:
    """Threads that ask for random keys, together so many times a second, while `asking` is set."""

    def __init__(self, handle: Any, level: str) -> None:
        self.asking = threading.Event()
        self.over = False
        self.took: list[float] = []  # seconds
        self.late = 0
        self._handle, self._level = handle, level
        self._threads = [threading.Thread(target=self._ask, args=(i,), daemon=True) for i in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, seed: int) -> None:
        rng = random.Random(seed)
        pause = THREADS / GETS_PER_S
        due = time.perf_counter()
        while not self.over:
            if not self.asking.wait(0.1):
                due = time.perf_counter()
                continue
            due += pause
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            try:
                self._handle.get(rng.randrange(KEYS), level=self._level)
                self.took.append(time.perf_counter() - began)
            except StateNotReadableError:
                self.late += 1

    def end(self) -> None:
        self.over = True
        for thread in self._threads:
            thread.join()


def _records(client: Any) -> int:
    """By the task that counts, as of the latest heartbeat."""
    metrics = [m for m in client.view().metrics if m.name == NUM_RECORDS_IN and not m.operator]
    return sum(m.value.count for m in metrics if isinstance(m.value, CounterValue) and m.vertex == 1)


def _turn(client: Any, worker: psutil.Process) -> tuple[float, float]:
    """(records per second, records per second of the worker's processor time)."""
    time.sleep(0.3)  # heartbeats are 100 ms apart
    records, cpu, began = _records(client), sum(worker.cpu_times()[:2]), time.perf_counter()
    time.sleep(TURN_S)
    done = _records(client) - records
    return done / (time.perf_counter() - began), done / (sum(worker.cpu_times()[:2]) - cpu)


def run(quick: bool) -> list[Figure]:
    pairs = 8 if quick else 20
    run_w1(1000, 1)  # start Spark and its workers
    env = environment(1, {"heartbeat.interval": "100 ms"})
    stream = numbers(env, 10**12).map(to_pair)
    stream.key_by(first).process(RunningCount()).uid("count").sink_to(DiscardingSink())
    client: Any = env.execute_async("W1")
    try:
        while len(client.workers()) < 1 or not _records(client):
            time.sleep(0.1)
        worker = psutil.Process(client.workers()[0].pid)
        askers = Askers(client.get_state("count", "count"), "live")
        alone, asked = [], []
        seconds = 0.0
        for turn in range(2 * pairs):
            if turn % 4 in (1, 2):  # alone, asked, asked, alone
                began = time.perf_counter()
                askers.asking.set()
                asked.append(_turn(client, worker))
                askers.asking.clear()
                seconds += time.perf_counter() - began
            else:
                alone.append(_turn(client, worker))
        askers.end()
    finally:
        client.cancel().result()
    by_time = statistics.median(r for r, _ in asked) / statistics.median(r for r, _ in alone)
    by_cpu = statistics.median(r for _, r in asked) / statistics.median(r for _, r in alone)
    took = sorted(askers.took)
    return [
        Figure("W1, nobody asks", f"{statistics.median(r for r, _ in alone) / 1e6:.2f} M/s"),
        Figure("live gets", f"{len(took) / seconds:.0f} /s", f"{GETS_PER_S} /s"),
        Figure("W1 asked / alone, of the worker's processor time", f"{by_cpu:.3f}", ">= 0.97", by_cpu >= 0.97),
        Figure("W1 asked / alone, of time (askers on the same machine)", f"{by_time:.3f}"),
        Figure("live get p50", f"{took[len(took) // 2] * 1e3:.1f} ms"),
        Figure("live get p99", f"{took[len(took) * 99 // 100] * 1e3:.1f} ms"),
        Figure("not answered in time", str(askers.late)),
    ]
