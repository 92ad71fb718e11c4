"""Records that become slow in the middle of a slice: the slot looks up after each of them, and nothing is out of order,
lost or doubled by it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from small_jobs import environment, ticks

from tidegate.common import Duration, WatermarkStrategy
from tidegate.common.job_status import JobStatus
from tidegate.datastream import KeyedProcessFunction, ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import CollectSink, DataGeneratorSource
from tidegate.taskmanager.slot import SlotRuntime
from tidegate.taskmanager.task import Task
from tidegate.taskmanager.time_limit import TimeLimit
from tidegate.testing.in_process_job import InProcessJob

SLOW_FROM = 2_500
COUNT = 2_700


# ---------------------------------------------------------------- the cut


@pytest.mark.parametrize("position", [0, 1, 2, 5, 9, 10])
def test_a_loop_ends_behind_the_record_that_is_being_processed(position: int) -> None:
    limit = TimeLimit()
    limit.watched = True
    values = list(range(10))
    own, rest = limit.take(values)
    taken = [next(rest) for _ in range(position)]
    limit.expire()
    taken += list(rest)
    assert taken == own == values[: max(1, position)]
    assert values == list(range(10))


def test_a_cut_from_another_thread_is_exact() -> None:
    limit = TimeLimit()
    limit.watched = True
    ended = threading.Event()

    def expire() -> None:
        while not ended.wait(0.0001):
            limit.expire()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=expire)
    thread.start()
    cut = 0
    try:
        for _ in range(20_000):
            own, rest = limit.take(list(range(300)))
            taken = [v for v in rest]  # noqa: C416 (a loop in Python code is what is cut)
            assert taken == own
            cut += len(own) < 300
            if cut > 100:
                break
    finally:
        sys.setswitchinterval(before)
        ended.set()
        thread.join()
    assert cut > 0


def test_nothing_is_cut_when_nobody_looks() -> None:
    limit = TimeLimit()
    values = [1, 2, 3]
    own, rest = limit.take(values)
    assert own is values
    next(rest)
    limit.begin(0.0)
    limit.look(1_000.0)
    assert list(rest) == [2, 3]
    assert not limit.expired


# ---------------------------------------------------------------- jobs


class World:
    """Where the slow functions let time pass; somebody looks at the clock meanwhile."""

    job: ClassVar[InProcessJob]
    calls: ClassVar[int] = 0  # slow ones, since the slot has last looked up

    @classmethod
    def slow(cls, value: int) -> None:
        if value >= SLOW_FROM:
            cls.calls += 1
            cls.job.clock.now += 50.0
            for slot in cls.job.slots:
                if slot.runtime is not None:
                    slot.runtime.limit.look(cls.job.clock.now)


class Stamps(ProcessFunction):
    """The records' timestamps, if they are still those that they were given."""

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        assert ctx.timestamp() == value
        yield value


def slowly(value: int) -> int:
    World.slow(value)
    return value


class Slowly(KeyedProcessFunction):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        World.slow(value)
        yield value


class SlowTimers(KeyedProcessFunction):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        World.slow(timestamp)
        yield timestamp


def with_time(stream: Any) -> Any:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0))
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(lambda v, _: v))


def slow_reduce(a: int, b: int) -> int:
    World.slow(b)
    return b


KINDS: dict[str, Callable[[Any], Any]] = {
    "map behind a source": lambda s: s.map(slowly),
    "filter behind a map": lambda s: s.map(lambda v: v).filter(lambda v: slowly(v) >= 0),
    "flat_map behind a filter": lambda s: s.filter(lambda v: True).flat_map(lambda v: [slowly(v)]),
    "map behind what makes many": lambda s: s.flat_map(lambda v: range(COUNT) if v == 0 else ()).map(slowly),
    "two slow ones": lambda s: s.map(slowly).map(slowly),
    "process with keys": lambda s: s.key_by(lambda v: v % 7).process(Slowly()),
    "map with keys": lambda s: s.key_by(lambda v: v % 7).map(slowly),
    "behind an operator with keys": lambda s: s.key_by(lambda v: 0).process(Slowly()).map(lambda v: v).map(slowly),
    "reduce": lambda s: s.key_by(lambda v: 0).reduce(slow_reduce),
    "timers": lambda s: with_time(s).key_by(lambda v: v % 7).process(SlowTimers()),
    "timestamps": lambda s: with_time(s.map(slowly)).map(slowly),
}

SOURCES: dict[str, Callable[[StreamExecutionEnvironment], Any]] = {
    "a generator": lambda env: generated(env, slowly, WatermarkStrategy.no_watermarks()),
    "timestamps of a source": lambda env: generated(env, lambda i: i, slow_timestamps()).process(Stamps()),
    "timestamps of a source of slow records": lambda env: generated(env, slowly, slow_timestamps()),
    "timestamps in the chain of a source": lambda env: generated(env, lambda i: i, slow_timestamps()).map(slowly),
}


def generated(env: StreamExecutionEnvironment, function: Callable[[int], int], strategy: WatermarkStrategy) -> Any:
    return env.from_source(DataGeneratorSource(function, COUNT), strategy, "numbers")


def slow_timestamps() -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0))
    return strategy.with_timestamp_assigner(lambda v, _: slowly(v))


@pytest.fixture(params=[*KINDS, *SOURCES])
def env(request: Any) -> StreamExecutionEnvironment:
    env = environment({"execution.checkpointing.interval": "300 ms", "execution.checkpointing.min-pause": "0 ms"})
    kind = request.param
    stream = SOURCES[kind](env) if kind in SOURCES else KINDS[kind](ticks(env, count=COUNT, burst=COUNT))
    stream.sink_to(CollectSink())
    return env


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slow calls were made between two moments at which the slot looked up."""
    found: list[int] = []
    step, begin = SlotRuntime.step, TimeLimit.begin

    def watched_begin(limit: TimeLimit, now_ms: float) -> None:
        limit.watched = True
        found.append(World.calls)
        World.calls = 0
        begin(limit, now_ms)

    def counted_step(runtime: SlotRuntime) -> bool:
        runtime.limit.watched = True
        return step(runtime)

    monkeypatch.setattr(TimeLimit, "begin", watched_begin)
    monkeypatch.setattr(SlotRuntime, "step", counted_step)
    return found


@pytest.mark.parametrize("alignment", ["aligned", "unaligned"])
@pytest.mark.parametrize("kills", [0, 3])
def test_a_slot_looks_up_after_every_slow_record(
    env: StreamExecutionEnvironment, calls: list[int], kills: int, alignment: str
) -> None:
    if alignment == "unaligned":
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    with InProcessJob(env) as job:
        World.job = job
        for _ in range(kills):
            for _ in range(300):
                job.advance(1)
                if max(calls, default=0) and job.completed:
                    break
            job.kill_worker()
        assert job.run_to_end(1_000_000) is JobStatus.FINISHED
        assert sorted(job.results) == list(range(COUNT))
        assert job.results == sorted(job.results)
        assert max(calls) <= 2
        assert sum(calls) >= COUNT - SLOW_FROM


KINDS_BEHIND = ["map behind a source", "two slow ones", "behind an operator with keys", "timestamps of a source"]


@pytest.mark.parametrize("env", KINDS_BEHIND, indirect=True)
@pytest.mark.parametrize("alignment", ["aligned", "unaligned"])
def test_a_snapshot_loses_no_records_that_were_left_in_the_chain(
    env: StreamExecutionEnvironment, calls: list[int], alignment: str
) -> None:
    """Neither the source's offsets nor a channel has them: they are through, or a part of it."""
    if alignment == "unaligned":
        env.get_checkpoint_config().enable_unaligned_checkpoints()
    with InProcessJob(env) as job:
        World.job = job

        def tasks_behind() -> bool:
            return any(task.chain.behind for slot in job.slots if slot.runtime for task in slot.runtime.tasks)

        while not tasks_behind():
            job.step()
            if not job.slots:
                job.advance(0)
        before = len(job.completed)
        job.do(lambda now: job.master.on_checkpoint_request(-1, False, now))
        while len(job.completed) == before:
            job.step()
        job.kill_worker()
        assert job.run_to_end(1_000_000) is JobStatus.FINISHED
        assert sorted(job.results) == list(range(COUNT))
        assert max(calls) <= 2


def test_the_first_slice_of_an_attempt_is_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known yet of what the records cost, also after a recovery."""
    env = environment({"execution.checkpointing.interval": "1 h"})
    ticks(env, count=2000, burst=2000).map(lambda v: v).sink_to(CollectSink())
    sizes: dict[Task, list[int]] = {}
    adapt = Task._adapt_slice

    def noted(task: Task, size: int, took_ms: float) -> None:
        sizes.setdefault(task, []).append(size)
        adapt(task, size, took_ms)

    monkeypatch.setattr(Task, "_adapt_slice", noted)
    with InProcessJob(env) as job:
        while sum(map(sum, sizes.values())) < 100:
            job.step()
        job.do(lambda now: job.master.on_checkpoint_request(-1, False, now))
        while not job.completed:
            job.step()
        assert job.kill_worker().run_to_end() is JobStatus.FINISHED
        assert sorted(job.results) == list(range(2000))
    assert len(sizes) == 2
    assert all(slices[0] == 1 and max(slices) > 50 for slices in sizes.values())
