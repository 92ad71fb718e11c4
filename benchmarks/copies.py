"""What it costs that records are copied where a change in place would reach somebody else: streams that several
operators read (`taskmanager/copying.py`), and results that a function goes on changing (`taskmanager/own_results.py`).

Each job runs in one slot without Spark, as it is and with `enable_object_reuse()`, which copies nothing, in turns in
one process. CPU time; the ratio is the middle of the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Figure
from benchmarks.slots import Build, run_to_end, started
from benchmarks.workloads import RunningCount, first, numbers, to_pair
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream import KeyedProcessFunction
from tidegate.spark.garbage import rare_collections
from tidegate.taskmanager.deployment import RuntimeSettings

KEYS = 1000


@dataclass
class Order:
    number: int
    lines: list[int]


def to_dict(i: int) -> dict[str, int]:
    return {"key": i % KEYS, "number": i, "price": 7}


def to_nested(i: int) -> dict[str, Any]:
    return {"key": i % KEYS, "number": i, "lines": [i, 7]}


def to_order(i: int) -> Order:
    return Order(i, [7])


class Yields(KeyedProcessFunction):
    """The total of a key: a new object each time, or the same one, changed."""

    def __init__(self, same: bool) -> None:
        self._same = same
        self._totals: dict[int, dict[str, int]] = {}

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[dict[str, int]]:
        key, number = value
        if self._same:
            total = self._totals.setdefault(key, {"key": key, "number": 0, "count": 0})
            total["number"] = number
            total["count"] += 1
            yield total
        else:
            yield {"key": key, "number": number, "count": 1}


def add_in_place(total: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    total["price"] += more["price"]
    return total


def w1(count: int) -> Build:
    def build(env: Any) -> None:
        numbers(env, count).map(to_pair).key_by(first).process(RunningCount()).sink_to(DiscardingSink())

    return build


def read_by(readers: int, make: Callable[[int], Any]) -> Callable[[int], Build]:
    def of(count: int) -> Build:
        def build(env: Any) -> None:
            stream = numbers(env, count).map(make)
            for _ in range(readers):
                stream.filter(bool).sink_to(DiscardingSink())

        return build

    return of


def totals(same: bool) -> Callable[[int], Build]:
    def of(count: int) -> Build:
        def build(env: Any) -> None:
            numbers(env, count).map(to_pair).key_by(first).process(Yields(same)).sink_to(DiscardingSink())

        return build

    return of


def reduced(count: int) -> Build:
    def build(env: Any) -> None:
        numbers(env, count).map(to_dict).key_by(lambda d: d["key"]).reduce(add_in_place).sink_to(DiscardingSink())

    return build


JOBS: dict[str, Callable[[int], Build]] = {
    "W1: one reader, plain values": w1,
    "two readers: numbers": read_by(2, abs),
    "two readers: tuples of numbers": read_by(2, to_pair),
    "two readers: dicts of three fields": read_by(2, to_dict),
    "two readers: dicts with a list": read_by(2, to_nested),
    "two readers: a dataclass with a list": read_by(2, to_order),
    "four readers: dicts of three fields": read_by(4, to_dict),
    "one reader, a new dict is yielded each time": totals(same=False),
    "one reader, the same dict is changed and yielded": totals(same=True),
    "reduce that changes its accumulator in place": reduced,
}


def seconds(job: Build, object_reuse: bool) -> float:
    with started(job, RuntimeSettings(object_reuse=object_reuse)) as slot:
        return run_to_end(slot)


def measure(job: Callable[[int], Build], count: int, rounds: int) -> tuple[float, float]:
    """The ratio to the job with object reuse, and the nanoseconds per record between the two."""
    built, took = job(count), {True: list[float](), False: list[float]()}
    for turn in range(rounds):
        for reuse in (True, False) if turn % 2 else (False, True):
            took[reuse].append(seconds(built, reuse))
    ratios = [copied / reused for copied, reused in zip(took[False], took[True], strict=True)]
    between = [copied - reused for copied, reused in zip(took[False], took[True], strict=True)]
    return statistics.median(ratios), statistics.median(between) / count * 1e9


def run(quick: bool) -> list[Figure]:
    count, rounds = (60_000, 3) if quick else (300_000, 9)
    figures = []
    with rare_collections():
        for name, job in JOBS.items():
            seconds(job(count // 3), False)  # to warm up
            ratio, each_ns = measure(job, count, rounds)
            figures.append(Figure(name, f"{ratio:.2f} ({each_ns:+,.0f} ns per record)"))
    return figures
