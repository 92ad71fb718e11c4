"""Event-time windows and timers, as ratios to W1: the same source, the same keys, the same number of records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.report import Figure
from benchmarks.workloads import add, best_slope, environment, first, numbers, run_w1, to_pair
from tidegate.common import Duration, Time, WatermarkStrategy
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows, WindowAssigner

RECORDS_PER_MS = 50
"""Of event time: with 100,000 keys a window of a minute holds 30 records of each key."""
OUT_OF_ORDER_MS = 5000
FEW_KEYS = 1000


def event_time(pair: tuple[int, int], _: int) -> int:
    """Moves on steadily, out of order by up to 5 s."""
    i = pair[1]
    return i // RECORDS_PER_MS - i * 7919 % OUT_OF_ORDER_MS


def few_keys(i: int) -> tuple[int, int]:
    return i % FEW_KEYS, i


def run_windows(
    count: int, assigner: WindowAssigner[Any, Any], pair: Callable[[int], tuple[int, int]] = to_pair
) -> float:
    """Seconds for the sum per key and window."""
    env = environment(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(OUT_OF_ORDER_MS))
    stream = numbers(env, count).map(pair)
    stream = stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(event_time))
    stream.key_by(first).window(assigner).reduce(add).sink_to(DiscardingSink())
    started = time.perf_counter()
    env.execute("windows")
    return time.perf_counter() - started


class OneTimerPerRecord(KeyedProcessFunction):
    """Sets a timer for each record; all fire at the end of the input."""

    def process_element(self, value: tuple[int, int], ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[int]:
        yield timestamp


def run_timers(count: int) -> float:
    env = environment(1)
    numbers(env, count).map(to_pair).key_by(first).process(OneTimerPerRecord()).sink_to(DiscardingSink())
    started = time.perf_counter()
    env.execute("timers")
    return time.perf_counter() - started


def minute(slide_s: int) -> WindowAssigner[Any, Any]:
    return SlidingEventTimeWindows.of(Time.minutes(1), Time.seconds(slide_s))


def run(quick: bool) -> list[Figure]:
    small, large, repeats = (1_000_000, 3_000_000, 1) if quick else (2_000_000, 8_000_000, 3)
    run_w1(1000, 1)  # start Spark and its workers

    def rate(assigner: WindowAssigner[Any, Any], pair: Callable[[int], tuple[int, int]] = to_pair) -> float:
        return best_slope(lambda n: run_windows(n, assigner, pair), small, large, repeats)

    w1 = best_slope(lambda n: run_w1(n, 1), small, large, repeats)
    tumbling = rate(TumblingEventTimeWindows.of(Time.minutes(1)))
    sliding = rate(minute(10))
    once, sixfold, sixtyfold = (rate(minute(slide), few_keys) for slide in (60, 10, 1))
    timers = best_slope(run_timers, 100_000, 1_100_000, repeats)
    return [
        Figure("W1", f"{w1 / 1e6:.2f} M/s"),
        Figure("tumbling 60 s, 100,000 keys / W1", f"{tumbling / w1:.2f}", ">= 0.5", tumbling / w1 >= 0.5),
        Figure("sliding 60 s / 10 s, 100,000 keys / W1", f"{sliding / w1:.2f}", ">= 0.35", sliding / w1 >= 0.35),
        Figure(
            "cost of sliding 60 s / 10 s to 60 s / 60 s, 1,000 keys", f"{once / sixfold:.1f}", "< 6", once / sixfold < 6
        ),
        Figure(
            "cost of sliding 60 s / 1 s to 60 s / 60 s, 1,000 keys",
            f"{once / sixtyfold:.1f}",
            "< 60",
            once / sixtyfold < 60,
        ),
        Figure("1,000,000 timers registered and fired", f"{timers / 1e6:.2f} M/s", ">= 0.6 M/s", timers >= 0.6e6),
    ]
