"""What the writer of a sink is given at once: little, when it works record by record, so that it is not asked for much
once its records have become slow; much, when a call costs something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_jobs import MemorySink, environment, ticks

from tidegate.common.job_status import JobStatus
from tidegate.datastream.connectors.base import SinkContext, SinkWriter
from tidegate.taskmanager.operators.pieces import Pieces
from tidegate.taskmanager.slot import SlotRuntime
from tidegate.taskmanager.time_limit import TimeLimit
from tidegate.testing.in_process_job import InProcessJob

COUNT = 4_000
SLOW_FROM = 3_500

Stream = Callable[[Any], Any]
STREAMS: dict[str, Stream] = {
    "behind a map": lambda s: s.map(lambda v: v),
    "behind what makes many": lambda s: s.flat_map(lambda v: range(COUNT) if v == 0 else ()),
    "in a task of its own": lambda s: s.rebalance(),
}


class World:
    job: InProcessJob
    calls = 0  # slow ones, since the slot has last looked up
    most = 0


class OneByOne(MemorySink):
    """A hundredth of a millisecond for each record, and 50 ms for each from SLOW_FROM on."""

    def create_writer(self, context: SinkContext) -> SinkWriter[Any, int]:
        writer = super().create_writer(context)
        write = writer.write_batch

        def write_batch(values: list[Any], timestamps: list[int] | None) -> None:
            for value in values:
                World.job.clock.now += 0.01 if value < SLOW_FROM else 50.0
                if value >= SLOW_FROM:
                    World.calls += 1
                    World.most = max(World.most, World.calls)
                    for slot in World.job.slots:
                        if slot.runtime is not None:
                            slot.runtime.limit.look(World.job.clock.now)
            write(values, timestamps)

        writer.write_batch = write_batch  # type: ignore[method-assign]
        return writer


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    World.calls = World.most = 0
    monkeypatch.setattr(MemorySink, "committed", [])
    step, begin = SlotRuntime.step, TimeLimit.begin

    def noted_begin(limit: TimeLimit, now_ms: float) -> None:
        World.calls = 0
        begin(limit, now_ms)

    def watched_step(runtime: SlotRuntime) -> bool:
        runtime.limit.watched = True
        return step(runtime)

    monkeypatch.setattr(TimeLimit, "begin", noted_begin)
    monkeypatch.setattr(SlotRuntime, "step", watched_step)


@pytest.mark.parametrize("kills", [0, 2])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_writer_that_becomes_slow_is_not_asked_for_much_more(looks: None, stream: str, kills: int) -> None:
    env = environment({"execution.checkpointing.interval": "300 ms", "execution.checkpointing.min-pause": "0 ms"})
    STREAMS[stream](ticks(env, count=COUNT, burst=COUNT)).sink_to(OneByOne())
    with InProcessJob(env) as job:
        World.job = job
        for _ in range(kills):
            for _ in range(300):
                job.advance(1)
                if World.most and job.completed:
                    break
            job.kill_worker()
        assert job.run_to_end(1_000_000) is JobStatus.FINISHED
    assert MemorySink.committed == list(range(COUNT))
    assert 0 < World.most <= 30


def given(fixed_ms: float, each_ms: float, batch: int = 1024) -> list[int]:
    """Records per call of a writer with such costs, from the first slices on."""
    pieces, sizes = Pieces(), []
    slices = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] + [batch] * 20
    for count in slices:
        while count:
            size = min(count, pieces.size)
            sizes.append(size)
            pieces.note(size, fixed_ms + size * each_ms)
            count -= size
    return sizes


@pytest.mark.parametrize("each_ms", [0.0003, 0.001, 0.005, 0.1, 3.0, 20.0])
def test_a_writer_that_works_record_by_record_gets_as_few_as_cost_little(each_ms: float) -> None:
    largest = max(given(0.0, each_ms))
    assert largest <= 26 or largest * each_ms <= 0.026
    assert largest * each_ms >= min(0.02, each_ms * 0.99)


@pytest.mark.parametrize("fixed_ms", [0.001, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("each_ms", [0.0, 0.0005, 0.002, 0.02])
def test_the_calls_of_a_writer_with_a_cost_per_call_cost_little_more(fixed_ms: float, each_ms: float) -> None:
    sizes = given(fixed_ms, each_ms)[11:]
    whole = 20 * fixed_ms + sum(sizes) * each_ms
    assert len(sizes) * fixed_ms + sum(sizes) * each_ms <= 1.06 * whole


def test_a_call_that_took_long_is_followed_by_a_small_one_and_no_more() -> None:
    pieces = Pieces()
    pieces.note(1, 0.001)
    pieces.note(1000, 0.02)
    assert pieces.size >= 1000
    pieces.note(1000, 300.0)
    assert pieces.size == 1
    pieces.note(1, 0.001)
    assert pieces.size >= 20


def test_everything_is_given_at_once_to_a_writer_whose_calls_take_no_time() -> None:
    assert given(0.0, 0.0) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] + [1024] * 20
