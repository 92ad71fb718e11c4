"""`map_batches`: how many records a call gets, when it is made, and that no failure changes the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate.common import Duration, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError
from tidegate.common.time import Time
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.functions import MapBatchesFunction, RuntimeContext
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.testing import (
    FailAt,
    Harness,
    InProcessJob,
    KillWorker,
    Record,
    Wait,
    Watermark,
    assert_same_under_faults,
    scripted,
)


def environment(parallelism: int = 1, interval_ms: int | None = None) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    if interval_ms is not None:
        env.enable_checkpointing(interval_ms)
    return env


def sizes(values: list[Any]) -> list[tuple[Any, int]]:
    """Each value with the number of records in its call."""
    return [(value, len(values)) for value in values]


def test_a_full_list_is_handed_over_at_once_and_the_tail_at_the_end() -> None:
    with Harness(lambda s: s.map_batches(sizes, size=3, max_wait=1000)) as harness:
        harness.process_all(*"abcdefgh")
        assert harness.output() == [(c, 3) for c in "abcdef"]
        harness.end_of_input()
        assert harness.output() == [("g", 2), ("h", 2)]


@pytest.mark.parametrize(("pause", "in_a_call"), [(40, 2), (60, 1)])
def test_a_list_that_is_not_full_waits_no_longer_than_it_was_told(pause: int, in_a_call: int) -> None:
    steps = [Record("a"), Wait(pause), Record("b"), Wait(200)]
    stream = scripted(environment(), steps).map_batches(sizes, size=10, max_wait=Time.milliseconds(50))
    with InProcessJob.collecting(stream) as job:
        job.advance(pause + 60)
        assert job.results == [("a", in_a_call), ("b", in_a_call)]


def test_nothing_is_held_back_over_a_checkpoint() -> None:
    with Harness(lambda s: s.map_batches(sizes, size=10, max_wait=1000)) as harness:
        harness.process_all(*"abc")
        harness.snapshot()
        assert harness.output() == [("a", 3), ("b", 3), ("c", 3)]
        harness.restart()
        assert harness.output() == []
        harness.end_of_input()
        assert harness.output() == []


def test_results_keep_their_timestamps_and_watermarks_stay_behind_them() -> None:
    """A window that would close before its records came is the proof."""
    env = environment()
    steps: list[Any] = [Record(1, 1_000), Watermark(1_500), Record(2, 2_000), Watermark(20_000), Record(3, 21_000)]
    stream = (
        scripted(env, steps)
        .map_batches(lambda values: [10 * v for v in values], size=4, max_wait=1000)
        .window_all(TumblingEventTimeWindows.of(Time.seconds(10)))
        .reduce(lambda a, b: a + b)
    )
    with InProcessJob.collecting(stream) as job:
        job.run_to_end()
        assert job.results == [30, 30]


def test_a_stream_that_falls_idle_keeps_nothing_back() -> None:
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0))
        .with_timestamp_assigner(lambda value, _: value)
        .with_idleness(Duration.of_millis(300))
    )
    stream = scripted(environment(), [Record(5), Wait(10_000)]).assign_timestamps_and_watermarks(strategy)
    with InProcessJob.collecting(stream.map_batches(sizes, size=10, max_wait=60_000)) as job:
        assert job.advance(250).results == []
        assert job.advance(750).results == [(5, 1)]


class Model(MapBatchesFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.factor = 2

    def map_batches(self, values: list[int]) -> list[int]:
        return [self.factor * v for v in values]


def test_a_function_with_a_life_cycle_on_a_keyed_stream() -> None:
    env = environment(parallelism=2)
    stream = env.from_collection(list(range(50))).key_by(lambda v: v % 5).map_batches(Model(), 8, 100, Types.LONG())
    assert stream.get_type() == Types.LONG()
    with InProcessJob.collecting(stream) as job:
        job.run_to_end()
        assert sorted(job.results) == [2 * v for v in range(50)]


def numbered(parallelism: int) -> Callable[[], DataStream]:
    def make() -> DataStream:
        env = environment(parallelism, interval_ms=20)
        steps: list[Any] = []
        for i in range(60):
            steps += [Record(i), Wait(3)]
        return (
            scripted(env, steps)
            .rebalance()
            .map_batches(lambda values: [v + 1000 for v in values], size=7, max_wait=11)
            .name("model")
        )

    return make


@pytest.mark.parametrize("parallelism", [1, 2])
def test_exact_over_failures(parallelism: int) -> None:
    assert_same_under_faults(
        numbered(parallelism), [FailAt("model", record=11), KillWorker(after_ms=70), FailAt("model", record=40)]
    )


def test_as_many_results_as_records() -> None:
    wrong = "returned 1 results for 2 records; it has to return one for each"
    with (
        Harness(lambda s: s.map_batches(lambda values: values[:1], size=2)) as harness,
        pytest.raises(ValueError, match=wrong),
    ):
        harness.process_all(1, 2)


def test_wrong_arguments() -> None:
    stream = environment().from_collection([1])
    with pytest.raises(ConfigurationError, match="map_batches: the size"):
        stream.map_batches(lambda v: v, size=0)
    with pytest.raises(ConfigurationError, match="max_wait"):
        stream.map_batches(lambda v: v, size=1, max_wait=-1)
    with pytest.raises(TypeError, match="use map_batches"):
        stream.map(Model())


def test_the_job_names_the_operator() -> None:
    def broken(values: list[Any]) -> list[Any]:
        raise OSError("no such model")

    env = environment()
    with InProcessJob.collecting(env.from_collection([1]).map_batches(broken, 1).name("model")) as job:
        job.run_to_end()
        assert "model" in job.failure
        assert "map_batches()" in job.failure
