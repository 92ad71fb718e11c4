"""Operators that take no more for now, while records wait before them inside their chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from held_records import FEW, Stream, World, checkpoint, step_until, tasks, watched
from small_jobs import Ticks, environment

from tidegate.common import Time, WatermarkStrategy
from tidegate.common.job_status import JobStatus
from tidegate.datastream import AsyncDataStream, AsyncFunction, ProcessFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.testing.coroutines import Pause
from tidegate.testing.in_process_job import InProcessJob

COUNT = 300
CAPACITY = 2
SLOW_FROM = 100
NEVER = 1e12


class Ask(AsyncFunction[int, int]):
    def __init__(self, takes_ms: float) -> None:
        self._takes_ms = takes_ms

    async def async_invoke(self, value: int) -> list[int]:
        await Pause(self._takes_ms)
        return [value]


def ask(stream: Stream, takes_ms: float = 10) -> Stream:
    return AsyncDataStream.ordered_wait(stream, Ask(takes_ms), Time.seconds(0), CAPACITY)


def slowly(value: int) -> int:
    if value >= SLOW_FROM:
        World.take_time()
    return value


def job(build: Callable[[Stream], Stream], keys: dict[str, Any] | None = None, count: int = COUNT) -> Any:
    env = environment({"execution.checkpointing.interval": "1 h", **(keys or {})})
    source = env.from_source(Ticks(count, count), WatermarkStrategy.no_watermarks(), "ticks")
    build(source.set_parallelism(1)).sink_to(CollectSink())
    return env


def until(running: InProcessJob, there: Callable[[], bool]) -> None:
    """Time goes on: calls come back."""
    for _ in range(10_000):
        if there():
            return
        running.advance(10)
    raise AssertionError("it never came to that")


def waits_before_a_full_one(running: InProcessJob) -> bool:
    return any(task.chain.behind and not task.chain.available for task in tasks(running))


@pytest.fixture(autouse=True)
def watching() -> Iterator[None]:
    with watched():
        yield


JOBS: dict[str, Callable[[Stream], Stream]] = {
    "slow before": lambda s: ask(s.map(slowly)),
    "slow before, in another task": lambda s: ask(s.rebalance().map(lambda v: v).map(slowly)),
    "slow before and behind": lambda s: ask(s.map(slowly)).map(slowly),
    "two in a row": lambda s: ask(ask(s.map(slowly))),
    "slow between two": lambda s: ask(ask(s).map(slowly)),
    "batches between two": lambda s: ask(ask(s.map(slowly)).map_batches(lambda values: values, 7, 20)),
}


@pytest.mark.parametrize("kind", JOBS)
def test_what_waits_before_an_operator_that_is_full_does_not_keep_it_from_emitting(kind: str) -> None:
    with InProcessJob(job(JOBS[kind])) as running:
        World.job = running
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED, running.failure
        assert World.calls
        assert running.results == list(range(COUNT))


@pytest.mark.parametrize("drain", [False, True])
def test_a_job_can_be_stopped_while_records_wait_before_an_operator_that_is_full(drain: bool, tmp_path: Path) -> None:
    with InProcessJob(job(JOBS["two in a row"])) as running:
        World.job = running
        until(running, lambda: waits_before_a_full_one(running))
        running.stop(tmp_path / "savepoint", drain)
        until(running, lambda: running.ended is not None)
        answer = running.answer()
        assert answer is not None
        assert answer.error is None, answer.error
        first = list(running.results)
        assert len(first) < COUNT
    World.slow = False
    with InProcessJob(job(JOBS["two in a row"], {"execution.state-recovery.path": answer.target})) as resumed:
        assert resumed.run_to_end(1_000_000) is JobStatus.FINISHED, resumed.failure
        assert resumed.results == list(
            range(COUNT)
        )  # what belongs to the savepoint is sent to each who goes on from it
    assert first == list(range(len(first)))
    assert World.calls == COUNT - SLOW_FROM


class Times(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timer_service().current_watermark()


class EveryRecord:
    def on_event(self, event: int, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(event_timestamp)

    def on_periodic_emit(self, output: Any) -> None: ...


def test_time_does_not_go_back_when_records_before_an_operator_that_is_full_are_restored(tmp_path: Path) -> None:
    """The watermark that is restored with them is no older than those that were under way between the calls."""
    strategy = WatermarkStrategy.for_generator(EveryRecord).with_timestamp_assigner(lambda v, _: v)  # type: ignore[arg-type]
    build = lambda s: ask(s.assign_timestamps_and_watermarks(strategy).map(slowly)).process(Times())  # noqa: E731
    with InProcessJob(job(build, {"execution.checkpointing.dir": str(tmp_path)})) as running:
        World.job = running
        until(running, lambda: waits_before_a_full_one(running))
        checkpoint(running)
        seen = len(running.results)
        running.kill_worker()
        assert running.run_to_end(1_000_000) is JobStatus.FINISHED, running.failure
        assert [value for value, _ in running.results] == list(range(COUNT))
        times = [time for _, time in running.results[seen:]]
        assert times == sorted(times)


def test_a_barrier_does_not_wait_for_the_calls_of_an_operator_that_is_full() -> None:
    """Aligned. It came before the chain fell behind, and stands in front of the channel: what waits is held."""
    build = lambda s: ask(s.rebalance().flat_map(lambda _: range(COUNT)).map(slowly), NEVER)  # noqa: E731
    with InProcessJob(job(build, count=1)) as running:
        World.job = running
        step_until(running, lambda: any(channel.queue for task in tasks(running) for channel in task.inputs))
        running.do(lambda now: running.master.on_checkpoint_request(-1, False, now))
        step_until(running, lambda: bool(running.completed))
        assert waits_before_a_full_one(running)
        assert World.calls <= FEW


def test_a_map_of_batches_is_not_due_while_what_is_behind_it_takes_nothing() -> None:
    """The slot would look at it again and again."""
    build = lambda s: ask(s.map_batches(lambda values: values, 7, 20), NEVER)  # noqa: E731
    with InProcessJob(job(build, count=10)) as running:
        running.advance(100)
        assert any(not task.chain.available for task in tasks(running))
        assert all(task.chain.next_deadline(task.can_send) is None for task in tasks(running))
