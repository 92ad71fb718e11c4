"""HybridSource, and functions as sources."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import Ticks, environment
from tidegate.common import Duration, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import CheckpointedFunction, ProcessFunction, RuntimeContext, SourceFunction
from tidegate.datastream.connectors import CollectionSource, CollectSink, HybridSource, NumberSequenceSource
from tidegate.datastream.connectors.base import Boundedness, SourceContext
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat
from tidegate.testing.in_process_job import InProcessJob

NO_TIME = WatermarkStrategy.no_watermarks()


class Endless(NumberSequenceSource):
    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED


# ---------------------------------------------------------------- hybrid


@pytest.mark.parametrize("parallelism", [1, 3])
def test_sources_are_read_one_after_the_other(parallelism: int) -> None:
    env = environment(parallelism=parallelism)
    source = HybridSource.builder(NumberSequenceSource(0, 99)).add_source(NumberSequenceSource(1000, 1099)).build()
    env.from_source(source, NO_TIME, "both").map(lambda v: v).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
    assert sorted(job.results) == [*range(100), *range(1000, 1100)]
    if parallelism == 1:
        assert job.results == sorted(job.results)


def test_a_hybrid_source_goes_on_where_it_was(tmp_path: Path) -> None:
    env = environment(
        {
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": tmp_path.as_uri(),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "1 ms",
        }
    )
    stages = HybridSource.builder(Ticks(30)).add_source(CollectionSource(["between"])).add_source(Ticks(30)).build()
    env.from_source(stages, NO_TIME, "three").map(_FailOnce()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        assert len(job.master.failures) == 1
    assert job.results == [*range(30), "between", *range(30)]


class _FailOnce:
    seen = 0
    failed = False

    def __init__(self) -> None:
        _FailOnce.seen, _FailOnce.failed = 0, False

    def __call__(self, value: Any) -> Any:
        _FailOnce.seen += 1
        if _FailOnce.seen == 45 and not _FailOnce.failed:
            _FailOnce.failed = True
            raise RuntimeError("once")
        return value


def test_offsets_hold_finished_and_open_inner_splits() -> None:
    source = HybridSource.builder(CollectionSource([1, 2, 3])).add_source(CollectionSource([4, 5])).build()
    (lane,) = source.create_splits(1)

    class Clock:
        def now_ms(self) -> float:
            return 0.0

    where = SourceContext("x", 0, 1, Clock())
    for stop in range(6):
        reader = source.create_reader(lane, None, where)
        first = [v for _ in range(stop) for v in (reader.poll(1) or [])]
        rest: list[Any] = []
        again = source.create_reader(lane, reader.offset(), where)
        while (polled := again.poll(1)) is not None:
            rest += polled if isinstance(polled, list) else polled.values
        assert [*first, *rest] == [1, 2, 3, 4, 5]


def test_only_the_last_source_may_have_no_end() -> None:
    assert HybridSource.builder(NumberSequenceSource(0, 1)).add_source(Endless(0, 1)).build().boundedness is (
        Boundedness.CONTINUOUS_UNBOUNDED
    )
    with pytest.raises(ConfigurationError, match=r"source 1 of 2 \(Endless\) has no end"):
        HybridSource.builder(Endless(0, 1)).add_source(NumberSequenceSource(0, 1)).build()
    with pytest.raises(TypeError, match="takes a Source"):
        HybridSource.builder([1])  # type: ignore[arg-type]


def test_what_turns_up_for_the_last_source_is_read_after_the_first(tmp_path: Path) -> None:
    """Also when it was there from the beginning, and with a crash in between."""
    (tmp_path / "a").write_text("100\n")
    watched = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path))
    last = watched.monitor_continuously(Duration.of_seconds(1)).build()
    env = environment({"execution.checkpointing.interval": "100 ms", "restart-strategy.type": "fixed-delay"})
    source = HybridSource.builder(Ticks(20)).add_source(last).build()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "hybrid")
    with InProcessJob.collecting(stream) as job:
        job.advance(150)
        assert job.results == list(range(len(job.results)))
        assert len(job.results) < 20
        job.kill_worker()
        job.advance(5000)
        assert job.results == [*range(20), "100"]
        (tmp_path / "b").write_text("101\n")
        job.advance(1500)
        assert job.results == [*range(20), "100", "101"]
        job.cancel()


# ---------------------------------------------------------------- functions as sources


class Push(SourceFunction):
    closed: list[str] = []

    def __init__(self, count: int | None, stamped: bool = False, fail: bool = False) -> None:
        self.count = count
        self.stamped = stamped
        self.fail = fail
        self.running = True
        Push.closed = []

    def open(self, runtime_context: RuntimeContext) -> None:
        self.name = runtime_context.get_task_name()

    def run(self, ctx: SourceFunction.SourceContext) -> None:
        i = 0
        while self.running and i != self.count:
            if self.stamped and i % 3:
                ctx.collect_with_timestamp(i, i * 10)
            else:
                ctx.collect(i)
            i += 1
        if self.fail:
            raise OSError("the line is dead")

    def cancel(self) -> None:
        self.running = False
        Push.closed.append("cancelled")

    def close(self) -> None:
        Push.closed.append("closed")


class Stamps(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp()


def run_in_real_time(job: InProcessJob) -> None:
    """The function has a thread of its own."""
    for _ in range(500):
        job.advance(10)
        if job.ended is not None:
            return
        time.sleep(0.002)
    raise AssertionError("the job has not ended")


def test_what_a_function_pushes_is_a_stream() -> None:
    env = environment(parallelism=2)
    env.add_source(Push(5000), "pushed", Types.LONG()).map(lambda v: v).sink_to(CollectSink())
    with InProcessJob(env) as job:
        run_in_real_time(job)
    assert sorted(job.results) == list(range(5000))
    assert Push.closed == ["closed"]


def test_records_with_and_without_timestamps_keep_their_order() -> None:
    env = environment()
    env.add_source(Push(10, stamped=True)).process(Stamps()).sink_to(CollectSink())
    with InProcessJob(env) as job:
        run_in_real_time(job)
    assert job.results == [(i, i * 10 if i % 3 else None) for i in range(10)]


def test_a_function_that_fails_fails_the_job_behind_its_last_record() -> None:
    env = environment()
    env.add_source(Push(3, fail=True)).sink_to(CollectSink())
    with InProcessJob(env) as job:
        run_in_real_time(job)
        assert (
            "'Source: Custom Source' (subtask 0) failed in reading split '0': OSError: the line is dead" in job.failure
        )
    assert job.results == [0, 1, 2]


def test_a_function_without_end_is_cancelled_with_the_job() -> None:
    env = environment()
    env.add_source(Push(None)).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(50)
        job.cancel()
    assert Push.closed == ["cancelled", "closed"]


class Remembering(Push, CheckpointedFunction):
    def snapshot_state(self, context: Any) -> None: ...

    def initialize_state(self, context: Any) -> None: ...


def test_what_cannot_be_a_source_is_refused() -> None:
    env = environment()
    with pytest.raises(TypeError, match="Remembering is a CheckpointedFunction"):
        env.add_source(Remembering(1))
    with pytest.raises(TypeError, match="add_source: takes a SourceFunction"):
        env.add_source(lambda ctx: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="create_input: takes a Source"):
        env.create_input("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"use env\.add_source"):
        env.from_collection([1]).map(Push(1))  # type: ignore[arg-type]


def test_a_source_can_be_given_to_the_old_methods_too() -> None:
    env = environment()
    env.add_source(NumberSequenceSource(1, 2)).union(env.create_input(CollectionSource([3]))).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
    assert sorted(job.results) == [1, 2, 3]
