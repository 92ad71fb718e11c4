"""Windows on real Spark, at several parallelisms, and over a killed attempt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Duration, Time, WatermarkStrategy
from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput
from tidegate.datastream import (
    AggregateFunction,
    AllWindowFunction,
    MapFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    WindowFunction,
)
from tidegate.datastream.connectors import NumberSequenceSource
from tidegate.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]

SECOND = 1000
EVENTS = [("abc"[i % 3], i, i * 100 - i * 7 % 5 * 60) for i in range(100)]  # (key, value, time), out of order
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(300)).with_timestamp_assigner(
    lambda event, _: event[2]
)


def events(env: StreamExecutionEnvironment) -> Any:
    return env.from_collection(EVENTS).assign_timestamps_and_watermarks(STRATEGY)


def keyed(env: StreamExecutionEnvironment) -> Any:
    return events(env).key_by(lambda event: event[0])


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return sorted(results)


def add(a: Any, b: Any) -> Any:
    return a[0], a[1] + b[1], max(a[2], b[2])


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Span(ProcessWindowFunction[Any, Any, str, Any]):
    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield key, context.window().start, sorted(e[1] if isinstance(e, tuple) else e for e in elements)


class Applied(WindowFunction[Any, Any, str, Any]):
    def apply(self, key: str, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        yield key, window.start, sorted(e[1] if isinstance(e, tuple) else e for e in inputs)


class AllSpan(ProcessAllWindowFunction[Any, Any, Any]):
    def process(self, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield context.window().start, sorted(e[1] for e in elements)


class AllApplied(AllWindowFunction[Any, Any, Any]):
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any]:
        yield window.start, sorted(e[1] for e in inputs)


def by_window(size: int, slide: int, keys: bool = True) -> list[Any]:
    found: dict[Any, list[int]] = {}
    for key, value, stamp in EVENTS:
        for start in range(stamp // slide * slide, stamp - size, -slide):
            found.setdefault((key, start) if keys else (start,), []).append(value)
    return sorted((*where, sorted(values)) for where, values in found.items())


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_the_four_ways_to_evaluate_a_window_agree(parallelism: int, make_env: MakeEnv) -> None:
    expected = by_window(SECOND, SECOND)
    tumbling = TumblingEventTimeWindows.of(Time.seconds(1))
    assert collected(keyed(make_env(parallelism)).window(tumbling).process(Span())) == expected
    assert collected(keyed(make_env(parallelism)).window(tumbling).apply(Applied())) == expected
    sums = collected(keyed(make_env(parallelism)).window(tumbling).reduce(add, Span()))
    assert sums == [(k, s, [sum(v)]) for k, s, v in expected]
    means = collected(keyed(make_env(parallelism)).window(tumbling).aggregate(Mean(), Applied()))
    assert means == [(k, s, [sum(v) / len(v)]) for k, s, v in expected]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_sliding_windows(parallelism: int, make_env: MakeEnv) -> None:
    sliding = SlidingEventTimeWindows.of(Time.seconds(2), Time.milliseconds(500))
    stream = keyed(make_env(parallelism)).window(sliding).reduce(add, Span())
    assert collected(stream) == [(k, s, [sum(v)]) for k, s, v in by_window(2 * SECOND, 500)]


def test_sessions_and_late_records(make_env: MakeEnv) -> None:
    late = OutputTag("late")
    data = [("a", 1, 0), ("a", 2, 900), ("a", 3, 5000), ("a", 4, 100), ("a", 5, 6000)]
    strategy = WatermarkStrategy.for_generator(AtEveryEvent).with_timestamp_assigner(lambda e, _: e[2])
    stream = make_env(2).from_collection(data).assign_timestamps_and_watermarks(strategy).set_parallelism(1)
    windowed = stream.key_by(lambda e: e[0]).window(EventTimeSessionWindows.with_gap(Time.seconds(1)))
    results = windowed.side_output_late_data(late).process(Span())
    lost = results.get_side_output(late).map(lambda e: ("late", 0, [e[1]]))
    assert collected(results.union(lost)) == [("a", 0, [1, 2]), ("a", 5000, [3, 5]), ("late", 0, [4])]


class AtEveryEvent(WatermarkGenerator):
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event_timestamp - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


class Slowly(MapFunction):
    def map(self, value: Any) -> Any:
        time.sleep(0.1)
        return value


@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_of_the_whole_stream(parallelism: int, make_env: MakeEnv) -> None:
    expected = by_window(SECOND, SECOND, keys=False)
    tumbling = TumblingEventTimeWindows.of(Time.seconds(1))
    assert collected(events(make_env(parallelism)).window_all(tumbling).process(AllSpan())) == expected
    assert collected(events(make_env(parallelism)).window_all(tumbling).apply(AllApplied())) == expected
    reduced = collected(events(make_env(parallelism)).window_all(tumbling).reduce(add).map(lambda e: e[1]))
    assert reduced == sorted(sum(v) for _, v in expected)
    mean = collected(events(make_env(parallelism)).window_all(tumbling).aggregate(Mean()))
    assert mean == sorted(sum(v) / len(v) for _, v in expected)


def test_count_windows_and_triggers(make_env: MakeEnv) -> None:
    stream = make_env(2).from_collection([("a", i) for i in range(10)]).key_by(lambda e: e[0])
    total = stream.count_window(4).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert collected(total) == [("a", 6), ("a", 22)]
    stream = make_env(2).from_collection([("a", i) for i in range(10)]).key_by(lambda e: e[0])
    total = stream.count_window(4, 2).reduce(lambda a, b: (a[0], a[1] + b[1]))
    assert collected(total) == [("a", 6), ("a", 14), ("a", 22), ("a", 30)]
    stream = make_env(2).from_collection([("a", i) for i in range(10)]).key_by(lambda e: e[0])
    windowed = stream.window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(5)))
    assert collected(windowed.reduce(lambda a, b: (a[0], a[1] + b[1]))) == [("a", 10), ("a", 35)]


def test_processing_time_windows_lose_nothing_but_the_last(make_env: MakeEnv) -> None:
    stream = make_env(2).from_collection(list(range(30))).map(Slowly()).set_parallelism(1).key_by(lambda i: 0)
    windowed = stream.window(TumblingProcessingTimeWindows.of(Time.milliseconds(200)))
    sums = collected(windowed.trigger(ProcessingTimeTrigger.create()).reduce(lambda a, b: a + b))
    assert len(sums) > 5
    assert 0 < sum(sums) <= sum(range(30))


class KillOnce(MapFunction):
    """Ends the worker's process in the middle of the data, once."""

    def __init__(self, marker: str, at: int) -> None:
        self.marker, self.at = marker, at

    def open(self, runtime_context: RuntimeContext) -> None:
        self.armed = not Path(self.marker).exists()

    def map(self, value: int) -> Any:
        if value == self.at and self.armed:
            Path(self.marker).touch()
            os.kill(os.getpid(), 9)
        return value % 50, value


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_windows_survive_a_killed_worker(backend: str, make_env: MakeEnv, tmp_path: Path) -> None:
    config = {
        "execution.checkpointing.interval": "50 ms",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 5,
        "restart-strategy.fixed-delay.delay": "0",
        "state.backend.type": backend,
    }
    count, size = 200_000, 30_000
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(100))
    stream = make_env(2, config).from_source(NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "n")
    marker = tmp_path / "killed"
    pairs = stream.set_parallelism(1).map(KillOnce(str(marker), count * 3 // 4)).set_parallelism(1)
    pairs = pairs.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda e, _: e[1])).set_parallelism(
        1
    )
    windowed = pairs.key_by(lambda e: e[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(size)))
    results = collected(windowed.reduce(lambda a, b: (a[0], a[1] + b[1]), Span()))
    assert marker.exists()
    expected: dict[Any, int] = {}
    for i in range(count):
        expected[i % 50, i // size * size] = expected.get((i % 50, i // size * size), 0) + i
    assert results == sorted((key, start, [total]) for (key, start), total in expected.items())
