"""History in BATCH, then live data in STREAMING from the savepoint that the batch run ended with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Time, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, OutputTag, ProcessWindowFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeEnv = Callable[..., StreamExecutionEnvironment]
EVENTS = [(f"k{i % 5}", i) for i in range(0, 450, 3)]
BORDER = 250  # inside the window from 200 to 300
COUNTS = OutputTag("counts")


class Number(KeyedProcessFunction):
    """Numbers the events of a key; the numbers go to a side output."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield COUNTS, ("count", ctx.get_current_key(), self.count.value())
        yield value


class Contents(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Iterator[Any]:
        yield "window", key, context.window().start, sorted(time for _, time in elements)


def program(env: StreamExecutionEnvironment, events: list[Any], source: str) -> Any:
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda e, _: e[1])
    stream = env.from_collection(events).uid(source).assign_timestamps_and_watermarks(times).uid("times")
    numbered = stream.key_by(lambda e: e[0], Types.STRING()).process(Number()).uid("numbers")
    windows = numbered.key_by(lambda e: e[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(100)))
    ones = stream.map(lambda e: ("total", e[0], 1)).key_by(lambda t: t[1])
    totals = ones.reduce(lambda a, b: ("total", a[1], a[2] + b[2])).uid("totals")
    return windows.process(Contents()).uid("windows").union(numbered.get_side_output(COUNTS), totals)


def run(stream: Any) -> tuple[list[str], list[int]]:
    """What comes once in every mode, and the totals of k0: in BATCH mode only the last one is emitted."""
    results = list(stream.execute_and_collect())
    totals = sorted(r[2] for r in results if r[:2] == ("total", "k0"))
    return [repr(r) for r in results if r[0] != "total"], totals


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_streaming_goes_on_where_the_batch_run_ended(backend: str, make_env: MakeEnv, tmp_path: Path) -> None:
    path = str(tmp_path / "savepoint")
    state = {"state.backend.type": backend}
    batch = {"execution.runtime-mode": "BATCH", "execution.batch.savepoint-path": path, **state}
    history = [e for e in EVENTS if e[1] < BORDER]
    live = [e for e in EVENTS if e[1] >= BORDER]
    first, totals = run(program(make_env(2, batch), history, "history"))
    assert not any("'window'" in r and ", 200, " in r for r in first)  # open at the border
    assert any("'window'" in r and ", 100, " in r for r in first)  # complete by then
    resumed = {
        "execution.state-recovery.path": path,
        "execution.state-recovery.ignore-unclaimed-state": "true",  # of the source of the history
        **state,
    }
    second, later = run(program(make_env(2, resumed), live, "live"))
    whole, everything = run(program(make_env(2), EVENTS, "all"))
    assert Counter(first + second) == Counter(whole)
    assert totals == [len([e for e in history if e[0] == "k0"])]
    assert totals + later == everything[totals[0] - 1 :]
