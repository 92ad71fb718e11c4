"""Whole jobs in one process: scripts, planned failures, killed workers, the comparison with an undisturbed run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.common import JobStatus, Types
from tidegate.common.time import Time
from tidegate.datastream import DataStream, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.testing import (
    FailAt,
    Fault,
    InProcessJob,
    KillWorker,
    PlannedFailure,
    Record,
    Wait,
    Watermark,
    assert_same_under_faults,
    scripted,
)


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()


class CountInAttribute(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.counts: dict[int, int] = {}

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        key = ctx.get_current_key()
        self.counts[key] = self.counts.get(key, 0) + 1
        yield key, self.counts[key]


def environment(parallelism: int = 1) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.enable_checkpointing(20)
    return env


def counted(function: Callable[[], KeyedProcessFunction] = Count, parallelism: int = 1) -> DataStream:
    env = environment(parallelism)
    steps: list[Any] = []
    for i in range(60):
        steps += [Record(i % 3), Wait(5)]
    return scripted(env, steps).key_by(lambda v: v).process(function()).name("count").uid("count-uid")


EXPECTED = sorted((key, n) for key in range(3) for n in range(1, 21))


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(
    "faults",
    [
        [FailAt("count", 30)],
        [FailAt("count-uid", 1), FailAt("count", 45)],
        [KillWorker(after_ms=120)],
        [KillWorker(after_ms=50), KillWorker(after_ms=200), FailAt("script", 40)],
    ],
    ids=str,
)
def test_the_results_are_those_of_an_undisturbed_run(faults: list[Fault], parallelism: int) -> None:
    assert sorted(assert_same_under_faults(lambda: counted(parallelism=parallelism), faults)) == EXPECTED


def test_the_faults_really_happen() -> None:
    with InProcessJob.collecting(counted(), [FailAt("count", 30), KillWorker(after_ms=250)]) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 2
        assert isinstance(job.error, PlannedFailure)
        assert "killed by the fault plan" in job.failure
        assert sorted(job.results) == EXPECTED


def test_the_comparison_finds_state_in_attributes() -> None:
    with pytest.raises(
        AssertionError, match=r"records are lost, \d+ are there too often, \d+ are in no undisturbed run"
    ):
        assert_same_under_faults(lambda: counted(CountInAttribute), [KillWorker(after_ms=150)])


def test_windows_fire_by_the_watermarks_of_the_script() -> None:
    env = environment()
    stream = scripted(env, [Record(1, 100), Record(2, 900), Watermark(999), Record(5, 1_500), Watermark(2_500)])
    sums = stream.key_by(lambda v: 0).window(TumblingEventTimeWindows.of(Time.seconds(1))).reduce(lambda a, b: a + b)
    with InProcessJob.collecting(sums) as job:
        job.run_to_end()
        assert job.results == [3, 5]


def test_a_worker_is_killed_by_hand_between_two_checkpoints() -> None:
    with InProcessJob.collecting(counted()) as job:
        job.advance(100)
        job.checkpoint()
        job.advance(13)
        job.kill_worker()
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 1
        assert sorted(job.results) == EXPECTED


def test_a_job_that_cannot_restart_ends_with_the_planned_error() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = scripted(env, [Record(1), Record(2)]).map(lambda v: v).name("work")
    with InProcessJob.collecting(stream, [FailAt("work", 2, ValueError("bad record"))]) as job:
        assert job.run_to_end() is JobStatus.FAILED
        assert isinstance(job.error, ValueError)
        assert "operator 'work'" in job.failure or "bad record" in job.failure


def test_mistakes_in_scripts_and_plans() -> None:
    env = environment()
    with pytest.raises(TypeError, match="a step is a Record, a Watermark or a Wait, got 5"):
        scripted(env, [5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="either all records of an input have timestamps, or none has"):
        scripted(env, [Record(1), Record(2, 5)])
    with pytest.raises(TypeError, match=r"a fault is one of FailAt, KillWorker, .*, got .kill."):
        InProcessJob.collecting(env.from_collection([1]), ["kill"])  # type: ignore[list-item]
