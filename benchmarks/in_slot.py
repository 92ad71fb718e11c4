"""One slot in this process, without Spark: the keyed count (W1), sliding windows, timers and rolling aggregations, in
nanoseconds of CPU time per record and as ratios.

All are run in turns, so that what else the machine does touches each alike, and the best round of each counts: other
work only ever makes it worse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.report import Figure
from benchmarks.slots import Build, run_to_end, started
from benchmarks.throughput import AGGREGATIONS
from benchmarks.windows import OUT_OF_ORDER_MS, OneTimerPerRecord, event_time, minute
from benchmarks.workloads import RunningCount, add, first, numbers, to_pair
from tidegate.common import Duration, WatermarkStrategy
from tidegate.connectors.discard import DiscardingSink
from tidegate.spark.garbage import rare_collections
from tidegate.taskmanager.deployment import RuntimeSettings


def _job(work: Callable[[Any], Any], count: int) -> Build:
    def build(env: Any) -> None:
        work(numbers(env, count).map(to_pair)).sink_to(DiscardingSink())

    return build


def _w1(pairs: Any) -> Any:
    return pairs.key_by(first).process(RunningCount())


def _sliding(pairs: Any) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(OUT_OF_ORDER_MS))
    pairs = pairs.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(event_time))
    return pairs.key_by(first).window(minute(10)).reduce(add)


def _timers(pairs: Any) -> Any:
    return pairs.key_by(first).process(OneTimerPerRecord())


def _reduce(pairs: Any) -> Any:
    return pairs.key_by(first).reduce(add)


def _rolling(method: str) -> Callable[[Any], Any]:
    return lambda pairs: getattr(pairs.key_by(first), method)(1)


JOBS: dict[str, Callable[[Any], Any]] = {
    "W1": _w1,
    "sliding": _sliding,
    "timers": _timers,
    "reduce": _reduce,
    **{method: _rolling(method) for method in AGGREGATIONS},
}
_LONGER = {"sliding": 5}  # its windows have to come and go: ten times, of five minutes of event time


def nanoseconds(names: list[str], count: int, rounds: int) -> dict[str, float]:
    """Per record, the best round of each."""
    best = dict.fromkeys(names, float("inf"))
    with rare_collections():
        for _ in range(rounds):
            for name in names:
                records = count * _LONGER.get(name, 1)
                with started(_job(JOBS[name], records), RuntimeSettings()) as slot:
                    best[name] = min(best[name], run_to_end(slot) / records * 1e9)
    return best


def run(quick: bool) -> list[Figure]:
    ns = nanoseconds(list(JOBS), 600_000 if quick else 1_000_000, 3 if quick else 5)
    figures = [Figure(f"{name}, one slot", f"{took:,.0f} ns of CPU time per record") for name, took in ns.items()]
    sliding, timers = ns["W1"] / ns["sliding"], 1e3 / ns["timers"]
    figures += [
        Figure("sliding 60 s / 10 s over W1", f"{sliding:.2f}", ">= 0.35", sliding >= 0.35),
        Figure("timers registered and fired", f"{timers:.2f} M/s", ">= 0.6 M/s", timers >= 0.6),
    ]
    for method in AGGREGATIONS:
        ratio = ns["reduce"] / ns[method]
        figures.append(Figure(f"{method} over reduce", f"{ratio:.2f}", ">= 1.0", ratio >= 1.0))
    return figures
