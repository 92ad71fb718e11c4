"""What looking at live state costs: W1 with 1,000 live gets a second over without, and how long a get takes.

Turns as in `turns.py`. Those who ask are threads of the driver, which on a small machine take time from the job too, as
they do not when the driver is elsewhere.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from benchmarks.report import Figure
from benchmarks.turns import cost_of, endless_w1
from benchmarks.workloads import KEYS
from tidegate.common.errors import StateNotReadableError

GETS_PER_S = 1_000
THREADS = 50  # each waits for its answer before it asks again
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


def run(quick: bool) -> list[Figure]:
    with endless_w1() as client:
        askers = Askers(client.get_state("count", "count"), "live")

        def disturb(on: bool) -> None:
            if on:
                askers.asking.set()
            else:
                askers.asking.clear()

        cost = cost_of(client, disturb, 4 if quick else 12, TURN_S)
        askers.end()
    took = sorted(askers.took)
    return [
        Figure("W1, nobody asks", f"{cost.alone / 1e6:.2f} M/s"),
        Figure("live gets", f"{len(took) / cost.disturbed_s:.0f} /s", f"{GETS_PER_S} /s"),
        Figure(
            "W1 asked / alone, of the worker's processor time", f"{cost.by_cpu:.3f}", ">= 0.97", cost.by_cpu >= 0.97
        ),
        Figure("W1 asked / alone, of time (askers on the same machine)", f"{cost.by_time:.3f}"),
        Figure("live get p50", f"{took[len(took) // 2] * 1e3:.1f} ms"),
        Figure("live get p99", f"{took[len(took) * 99 // 100] * 1e3:.1f} ms"),
        Figure("not answered in time", str(askers.late)),
    ]
