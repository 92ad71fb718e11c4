"""What it costs that a slice of work can be cut short when its time is up (`taskmanager/time_limit.py`): W1 in a slot,
with the thread that looks at the clock and without, in turns in one process. CPU time of all threads."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.report import Figure
from benchmarks.slots import run_to_end, started
from benchmarks.workloads import RunningCount, first, numbers, to_pair
from tidegate.connectors.discard import DiscardingSink
from tidegate.spark.garbage import rare_collections
from tidegate.spark.streaming.time_keeper import TimeKeeper
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.deployment import RuntimeSettings


def _w1(count: int) -> Any:
    def build(env: Any) -> None:
        numbers(env, count).map(to_pair).key_by(first).process(RunningCount()).sink_to(DiscardingSink())

    return build


def _seconds(count: int, watched: bool) -> float:
    with started(_w1(count), RuntimeSettings()) as slot:
        keeper = TimeKeeper(slot.limit, SystemClock())
        if watched:
            keeper.start()
        try:
            return run_to_end(slot)
        finally:
            keeper.stop()


def run(quick: bool) -> list[Figure]:
    count, rounds = (300_000, 5) if quick else (1_000_000, 15)
    ratios = []
    with rare_collections():
        _seconds(count, True)
        for turn in range(rounds):
            order = (True, False) if turn % 2 else (False, True)
            took = {watched: _seconds(count, watched) for watched in order}
            ratios.append(took[True] / took[False])
    cost = statistics.median(ratios) - 1
    middle = f"half of the rounds within {_spread(ratios):.1%}"
    return [Figure("W1: cost of the time cut, CPU time", f"{cost:.1%} ({middle})", "< 2 %", cost < 0.02)]


def _spread(ratios: list[float]) -> float:
    low, _, high = statistics.quantiles(ratios, n=4)
    return high - low
