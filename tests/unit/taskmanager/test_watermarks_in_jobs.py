"""Where event time stands in each subtask of a job, exactly: over unions, connected streams and edges between different
parallelisms, with idle inputs, after a recovery; and that nothing fires when all input is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tests.unit.windows.script_job import Mark, MarkGenerator, Record, Script, Step, Wait, _ScriptReader
from tidegate.common import Duration, JobStatus, WatermarkStrategy
from tidegate.common.watermark_strategy import WatermarkOutput
from tidegate.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream.functions import CoMapFunction
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.testing.in_process_job import InProcessJob

NONE = MIN_WATERMARK
START = 1_000_000.0  # the clock when a job starts
CHECKPOINTS = {
    "execution.checkpointing.interval": "1 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.fixed-delay.delay": "0",
}


class Scripts(Source[Any]):
    """A split for each script."""

    def __init__(self, *scripts: Sequence[Step]) -> None:
        self.scripts = [Script(steps) for steps in scripts]

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit(str(i)) for i in range(len(self.scripts))]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _ScriptReader(self.scripts[int(split.split_id)], offset or 0, context.clock)


MARKS = WatermarkStrategy.for_generator(MarkGenerator)


def env_with(keys: dict[str, Any] | None = None, interval: str = "1 h") -> StreamExecutionEnvironment:
    env = environment({"pipeline.auto-watermark-interval": interval, **(keys or {})}, 1)
    env.disable_operator_chaining()
    return env


def source(env: StreamExecutionEnvironment, *scripts: Sequence[Step], strategy: Any = MARKS) -> DataStream:
    return env.from_source(Scripts(*scripts), strategy, "source").set_parallelism(len(scripts))


def same(value: Any) -> Any:
    return value


def where(job: InProcessJob, name: str) -> list[int]:
    """The watermark of each subtask of an operator."""
    tasks = [t for slot in job.slots if slot.runtime is not None for t in slot.runtime.tasks if t.vertex.name == name]
    return [t.chain.head.current_watermark for t in sorted(tasks, key=lambda t: t.subtask)]


class Both(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


A = [Mark(10), Wait(4), Mark(30), Wait(4), Mark(50), Wait(50)]
B = [Wait(2), Mark(5), Wait(4), Mark(40), Wait(50)]


def union(a: DataStream, b: DataStream) -> DataStream:
    return a.union(b).map(same)


def connect(a: DataStream, b: DataStream) -> DataStream:
    return a.connect(b).map(Both())


@pytest.mark.parametrize("together", [union, connect])
@pytest.mark.parametrize("exchange", ["rebalance", "rescale", "broadcast", "shuffle"])
def test_the_minimum_of_both_inputs_reaches_every_subtask(
    together: Callable[[DataStream, DataStream], DataStream], exchange: str
) -> None:
    env = env_with()
    a, b = source(env, A), source(env, B)
    both = together(getattr(a, exchange)(), getattr(b, exchange)()).set_parallelism(2).name("both")
    both.rescale().map(same).set_parallelism(1).name("one").sink_to(CollectSink())
    with InProcessJob(env) as job:
        for at, watermark in [(1, NONE), (3, 5), (5, 5), (7, 30), (9, 40), (70, MAX_WATERMARK)]:
            until(job, at)
            assert where(job, "both") == [watermark] * 2, f"at {at}"
            assert where(job, "one") == [watermark], f"at {at}"
        assert job.run_to_end() is JobStatus.FINISHED


def until(job: InProcessJob, at: float) -> None:
    job.advance(START + at - job.clock.now)


def test_a_rescaled_edge_carries_the_time_of_its_own_senders() -> None:
    env = env_with()
    two = source(env, A, B)
    two.rescale().map(same).set_parallelism(4).name("four").rescale().map(same).set_parallelism(2).name(
        "two"
    ).rebalance().map(same).set_parallelism(3).name("three").sink_to(CollectSink()).set_parallelism(1)
    with InProcessJob(env) as job:
        until(job, 1)
        assert where(job, "four") == [10, 10, NONE, NONE]
        assert where(job, "two") == [10, NONE]
        assert where(job, "three") == [NONE] * 3
        until(job, 5)
        assert where(job, "four") == [30, 30, 5, 5]
        assert where(job, "two") == [30, 5]
        assert where(job, "three") == [5] * 3


IDLE = MARKS.with_idleness(Duration.of_millis(20))


def test_an_idle_input_is_left_out_and_counts_again_once_it_has_caught_up() -> None:
    env = env_with(interval="1 ms")
    a = source(env, [Mark(10), *[s for n in range(11, 100) for s in (Wait(1), Mark(n))]], strategy=IDLE)
    b = source(env, [Mark(5), Wait(50), Mark(20), Wait(10), Mark(70), Wait(10), Mark(75), Wait(500)], strategy=IDLE)
    a.union(b).rebalance().map(same).set_parallelism(2).name("both").sink_to(CollectSink()).set_parallelism(1)
    with InProcessJob(env) as job:
        until(job, 10.5)
        assert where(job, "both") == [5, 5]
        until(job, 40.5)
        assert where(job, "both") == [50, 50], "the second is idle"
        until(job, 55.5)
        assert where(job, "both") == [65, 65], "it is back, but behind: left out"
        until(job, 66.5)
        assert where(job, "both") == [70, 70], "it has caught up, and holds back"
        until(job, 72.5)
        assert where(job, "both") == [75, 75]
        until(job, 150.5)
        assert where(job, "both") == [MAX_WATERMARK - 1] * 2, "the first is at its end, the second idle: not the end"
        assert job.run_to_end() is JobStatus.FINISHED


class FailsAt:
    """Fails, once in the process, at a record of this value."""

    left: set[int] = set()

    def __init__(self, value: int) -> None:
        self.value = value
        FailsAt.left.add(value)

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Record) and value.value == self.value and self.value in FailsAt.left:
            FailsAt.left.discard(self.value)
            raise RuntimeError("planned failure")
        return value


@pytest.mark.parametrize("unaligned", [False, True])
def test_after_a_recovery_every_subtask_has_its_own_time(unaligned: bool) -> None:
    """Also one that had none yet while another had: it must not take over the other's."""
    env = env_with({**CHECKPOINTS, "execution.checkpointing.unaligned.enabled": unaligned})
    ahead = [Mark(50), Wait(10), Record("a", 1, 60), Wait(50)]
    behind = [Record("b", 2, 3), Wait(30), Mark(8), Wait(50)]
    two = source(env, ahead, behind).map(FailsAt(1)).set_parallelism(2).name("two")
    two.rebalance().map(same).set_parallelism(2).name("after").sink_to(CollectSink()).set_parallelism(1)
    with InProcessJob(env) as job:
        until(job, 5.5)
        assert (where(job, "two"), where(job, "after")) == ([50, NONE], [NONE, NONE])
        until(job, 20.5)
        assert job.master.attempt == 1
        assert (where(job, "Source: source"), where(job, "two")) == ([50, NONE], [50, NONE])
        assert where(job, "after") == [NONE, NONE]
        until(job, 35.5)
        assert (where(job, "two"), where(job, "after")) == ([50, 8], [8, 8])


@pytest.mark.parametrize("behind_the_source", [False, True])
def test_a_source_that_was_idle_in_the_checkpoint_is_heard_after_the_recovery(behind_the_source: bool) -> None:
    """Who reads it remembers it as idle, and would not listen to its watermarks."""
    env = env_with(CHECKPOINTS, interval="1 ms")
    quiet = [Mark(5), Wait(53), Mark(30), Wait(60)]
    loud = [Mark(10), Wait(50), Record("a", 7, 11), Wait(5), Mark(40), Wait(60)]

    def reading(script: list[Step]) -> DataStream:
        if not behind_the_source:
            return source(env, script, strategy=IDLE)
        return source(env, script, strategy=WatermarkStrategy.no_watermarks()).assign_timestamps_and_watermarks(IDLE)

    both = reading(quiet).union(reading(loud)).map(FailsAt(7)).name("both")
    both.key_by(lambda _: 0).process(Sleeper()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        until(job, 45.5)
        assert where(job, "both") == [10]
        until(job, 52.5)
        assert job.master.attempt == 1
        until(job, 61.5)
        assert where(job, "both") == [30], "the quiet one is active and counts"
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.results == ["woken by 1000"], "time comes to its end"


class Sleeper(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(1000)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield f"woken by {timestamp}"


class CountsCalls(MarkGenerator):
    calls = 0

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        CountsCalls.calls += 1


class Alarm(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        for later in (5, 50):
            timers.register_processing_time_timer(timers.current_processing_time() + later)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield timestamp - START


def test_nothing_fires_when_all_input_is_over() -> None:
    """Neither timers of processing time nor periodic watermarks, while the rest of the job goes on."""
    env = env_with(interval="1 ms")
    short = source(env, [Record("a", 1, 1), Wait(10)], strategy=WatermarkStrategy.for_generator(CountsCalls))
    short.key_by(lambda r: r.key).process(Alarm()).name("alarm").sink_to(CollectSink())
    source(env, [Wait(200), Record("b", 1, 1)]).map(same).name("rest").sink_to(CollectSink())
    with InProcessJob(env) as job:
        until(job, 9.5)
        assert CountsCalls.calls > 5
        until(job, 20)
        calls = CountsCalls.calls
        until(job, 150)
        assert calls == CountsCalls.calls
        assert job.run_to_end() is JobStatus.FINISHED
        assert [r for r in job.results if isinstance(r, float)] == [5.0]


@pytest.mark.parametrize(("interval", "reached"), [("0", NONE), ("10 ms", 6)])
def test_the_interval_decides_how_often_time_is_told(interval: str, reached: int) -> None:
    env = env_with(interval=interval)
    stamps = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: 7)
    stream = source(env, [Record("k", 7, 7), Wait(50)], strategy=stamps)
    stream.map(same).name("reader").sink_to(CollectSink())
    with InProcessJob(env) as job:
        until(job, 30)
        assert where(job, "reader") == [reached]
