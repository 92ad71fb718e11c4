"""The jobs that are measured, and the bare Python loops they are measured against."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidegate.common import Configuration, WatermarkStrategy
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.functions import KeyedProcessFunction
from tidegate.datastream.state import ValueStateDescriptor

KEYS = 100_000


class RunningCount(KeyedProcessFunction):
    """W1's function: one ValueState, one record out per record in."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield value[0], n


def to_pair(i: int) -> tuple[int, int]:
    return i % KEYS, i


def first(pair: tuple[int, int]) -> int:
    return pair[0]


def add_one(i: int) -> int:
    return i + 1


def is_even(i: int) -> bool:
    return i % 2 == 0


def environment(parallelism: int, settings: dict[str, str] | None = None) -> StreamExecutionEnvironment:
    configuration = Configuration()
    for key, value in (settings or {}).items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(parallelism)
    return env


def numbers(env: StreamExecutionEnvironment, count: int) -> Any:
    return env.from_source(NumberSequenceSource(1, count), WatermarkStrategy.no_watermarks(), "numbers")


def run_w1(count: int, parallelism: int, settings: dict[str, str] | None = None) -> float:
    """Seconds for the keyed running count."""
    env = environment(parallelism, settings)
    numbers(env, count).map(to_pair).key_by(first).process(RunningCount()).sink_to(DiscardingSink())
    started = time.perf_counter()
    env.execute("W1")
    return time.perf_counter() - started


def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0], a[1] + b[1]


def run_rolling(count: int, method: str) -> float:
    """Seconds for `reduce` with a function of the user's, or for `sum`, `min`, `max`, `min_by` or `max_by`."""
    env = environment(1)
    keyed = numbers(env, count).map(to_pair).key_by(first)
    stream = keyed.reduce(add) if method == "reduce" else getattr(keyed, method)(1)
    stream.sink_to(DiscardingSink())
    started = time.perf_counter()
    env.execute(method)
    return time.perf_counter() - started


def run_chain(count: int) -> float:
    """Seconds for map -> filter -> discard in one chain."""
    env = environment(1)
    numbers(env, count).map(add_one).filter(is_even).sink_to(DiscardingSink())
    started = time.perf_counter()
    env.execute("chain")
    return time.perf_counter() - started


class _BareState:
    """What a state object costs without an engine."""

    def __init__(self) -> None:
        self.table: dict[int, int] = {}
        self.key = 0

    def value(self) -> int | None:
        return self.table.get(self.key)

    def update(self, value: int) -> None:
        self.table[self.key] = value


def bare_w1(count: int) -> float:
    state = _BareState()

    def process(value: tuple[int, int]) -> Any:
        n = (state.value() or 0) + 1
        state.update(n)
        yield value[0], n

    started = time.perf_counter()
    for i in range(1, count + 1):
        pair = to_pair(i)
        state.key = first(pair)
        for _ in process(pair):
            pass
    return time.perf_counter() - started


def bare_chain(count: int) -> float:
    started = time.perf_counter()
    for i in range(1, count + 1):
        if is_even(add_one(i)):
            pass
    return time.perf_counter() - started


def slope(run: Callable[[int], float], small: int, large: int) -> float:
    """Records per second between two sizes: start-up is left out."""
    return (large - small) / max(1e-9, run(large) - run(small))


def best_slope(run: Callable[[int], float], small: int, large: int, repeats: int) -> float:
    """The best of a few: other work on the machine only ever makes it worse."""
    return max(slope(run, small, large) for _ in range(repeats))
