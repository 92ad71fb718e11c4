"""AsyncDataStream: order, capacity, timeouts, retries, end of input and recovery, on a clock of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Time, WatermarkStrategy
from tidegate.common.job_status import JobStatus
from tidegate.datastream import AsyncDataStream, AsyncFunction, ProcessFunction
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.functions import AsyncRetryStrategy
from tidegate.protocol.messages import FailureInfo, TaskFailed
from tidegate.testing.coroutines import Pause
from tidegate.testing.in_process_job import InProcessJob

SECOND = Time.seconds(1)


class Slow(AsyncFunction[int, Any]):
    """Value v takes as long as `delays` says, and gives v * 10."""

    calls: list[int] = []

    def __init__(self, delays: dict[int, float] | None = None, default: float = 10) -> None:
        self.delays = delays or {}
        self.default = default
        type(self).calls = []

    async def async_invoke(self, value: int) -> list[Any]:
        Slow.calls.append(value)
        await Pause(self.delays.get(value, self.default))
        return [value * 10]


class Unsure(Slow):
    def timeout(self, value: int) -> list[Any]:
        return [("too late", value)]


def run(build: Any, values: Any, parallelism: int = 1, keys: dict[str, Any] | None = None) -> InProcessJob:
    env = environment(keys, parallelism)
    build(env.from_collection(list(values))).sink_to(CollectSink()).name("out")
    with InProcessJob(env) as job:
        job.run_to_end()
    return job


@pytest.mark.parametrize("chaining", [True, False])
def test_ordered_results_keep_the_order_of_the_records(chaining: bool) -> None:
    function = Slow({0: 500, 1: 30, 2: 100})
    keys = {"pipeline.operator-chaining.enabled": chaining}
    job = run(lambda s: AsyncDataStream.ordered_wait(s, function, SECOND), range(5), keys=keys)
    assert job.results == [0, 10, 20, 30, 40]


def test_unordered_results_come_as_the_calls_finish() -> None:
    job = run(lambda s: AsyncDataStream.unordered_wait(s, Slow({0: 500, 1: 30, 2: 100}), SECOND), range(4))
    assert job.results == [30, 10, 20, 0]


class Watermarks(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value, ctx.timestamp(), ctx.timer_service().current_watermark()


class EveryRecord:
    """Punctuated: a watermark behind every third record."""

    def on_event(self, event: int, event_timestamp: int, output: Any) -> None:
        if event % 3 == 2:
            output.emit_watermark(event_timestamp)

    def on_periodic_emit(self, output: Any) -> None: ...


@pytest.mark.parametrize("ordered", [True, False])
def test_no_result_crosses_a_watermark(ordered: bool) -> None:
    strategy = WatermarkStrategy.for_generator(EveryRecord).with_timestamp_assigner(lambda v, _: v)  # type: ignore[arg-type]
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    function = Slow({0: 300, 1: 200, 2: 100, 3: 90, 4: 50, 5: 60})

    def build(stream: Any) -> Any:
        return wait(stream.assign_timestamps_and_watermarks(strategy), function, SECOND).process(Watermarks())

    results = run(build, range(6)).results
    before, after = results[:3], results[3:]
    lowest = -(2**63)
    assert sorted(before) == [(0, 0, lowest), (10, 1, lowest), (20, 2, lowest)]
    assert sorted(after) == [(30, 3, 2), (40, 4, 2), (50, 5, 2)]
    assert [v for v, _, _ in results] == ([0, 10, 20, 30, 40, 50] if ordered else [20, 10, 0, 40, 50, 30])


def test_no_more_calls_are_under_way_than_the_capacity() -> None:
    env = environment()
    stream = env.from_collection(list(range(50)))
    AsyncDataStream.ordered_wait(stream, Slow(), SECOND, capacity=4).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        assert Slow.calls == [0, 1, 2, 3]
        job.run_to_end()
        assert job.slots[0].coroutines.most == 4
    assert job.results == [v * 10 for v in range(50)]


def test_every_subtask_has_calls_of_its_own() -> None:
    job = run(lambda s: AsyncDataStream.unordered_wait(s.rebalance(), Slow(), SECOND), range(40), parallelism=2)
    assert sorted(job.results) == [v * 10 for v in range(40)]
    assert all(slot.coroutines.most > 0 for slot in job.slots)


def test_a_call_that_takes_too_long_gives_what_timeout_says_and_its_late_result_is_dropped() -> None:
    job = run(lambda s: AsyncDataStream.ordered_wait(s, Unsure({1: 5000}), SECOND), range(3))
    assert job.results == [0, ("too late", 1), 20]


def test_a_timeout_fails_the_job_unless_it_is_overridden() -> None:
    job = run(lambda s: AsyncDataStream.ordered_wait(s, Slow({1: 5000}), SECOND), range(3))
    assert job.ended is not None
    assert job.ended.status is JobStatus.FAILED
    assert "'Async Ordered Wait' (subtask 0) failed in timeout() on record 1: TimeoutError" in job.failure


def test_no_timeout_waits_as_long_as_it_takes() -> None:
    job = run(lambda s: AsyncDataStream.ordered_wait(s, Slow({0: 50_000}), Time.seconds(0)), range(2))
    assert job.results == [0, 10]


class Flaky(AsyncFunction[int, Any]):
    tries: dict[int, int] = {}

    def __init__(self, failures: int, empty: bool = False) -> None:
        self.failures = failures
        self.empty = empty
        type(self).tries = {}

    async def async_invoke(self, value: int) -> list[Any]:
        Flaky.tries[value] = Flaky.tries.get(value, 0) + 1
        await Pause(1)
        if Flaky.tries[value] <= self.failures and value == 1:
            if self.empty:
                return []
            raise OSError("the outside is away")
        return [value]


def test_a_failed_call_is_tried_again_as_the_strategy_says() -> None:
    retry = AsyncRetryStrategy.fixed_delay(3, 100, exception_predicate=lambda e: isinstance(e, OSError))
    job = run(lambda s: AsyncDataStream.ordered_wait_with_retry(s, Flaky(3), SECOND, retry), range(3))
    assert job.results == [0, 1, 2]
    assert Flaky.tries == {0: 1, 1: 4, 2: 1}
    assert job.clock.now - 1_000_000 >= 300


def test_an_unwanted_result_is_tried_again_and_kept_when_the_tries_are_used_up() -> None:
    retry = AsyncRetryStrategy.exponential_backoff(2, 10, 1000, 2.0, result_predicate=lambda r: r == [])
    job = run(lambda s: AsyncDataStream.unordered_wait_with_retry(s, Flaky(9, empty=True), SECOND, retry), range(3))
    assert sorted(job.results) == [0, 2]
    assert Flaky.tries[1] == 3


def test_the_timeout_is_for_all_tries_together() -> None:
    retry = AsyncRetryStrategy.fixed_delay(100, 300, exception_predicate=lambda e: True)
    job = run(lambda s: AsyncDataStream.ordered_wait_with_retry(s, Flaky(99), SECOND, retry), [1])
    assert "failed in timeout() on record 1" in job.failure
    assert Flaky.tries[1] == 4


def test_a_failed_call_names_the_operator_and_the_record() -> None:
    def build(stream: Any) -> Any:
        return AsyncDataStream.unordered_wait(stream, Flaky(1), SECOND).name("lookup")

    assert "operator 'lookup' (subtask 0) failed in async_invoke() on record 1: OSError" in run(build, range(3)).failure


class NoList(AsyncFunction[int, Any]):
    async def async_invoke(self, value: int) -> Any:
        return "text"


def test_a_result_that_is_no_list_is_refused() -> None:
    job = run(lambda s: AsyncDataStream.unordered_wait(s, NoList(), SECOND), range(1))
    assert "async_invoke has to return a list of results ([] for none), got str: 'text'" in job.failure


class NotAsync(AsyncFunction[int, Any]):
    def async_invoke(self, value: int) -> Any:  # type: ignore[override]
        return [value]


def test_bad_arguments_are_refused_at_the_call() -> None:
    stream = environment().from_collection([1])
    with pytest.raises(TypeError, match=r"NotAsync\.async_invoke is not a coroutine function; define it"):
        AsyncDataStream.ordered_wait(stream, NotAsync(), SECOND)
    with pytest.raises(TypeError, match="got the class Slow itself"):
        AsyncDataStream.ordered_wait(stream, Slow, SECOND)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes an AsyncFunction, got function"):
        AsyncDataStream.unordered_wait(stream, lambda v: v, SECOND)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the capacity has to be at least 1"):
        AsyncDataStream.ordered_wait(stream, Slow(), SECOND, capacity=0)
    with pytest.raises(TypeError, match="async_retry_strategy has to be an AsyncRetryStrategy"):
        AsyncDataStream.ordered_wait_with_retry(stream, Slow(), SECOND, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="use AsyncDataStream"):
        stream.map(Slow())  # type: ignore[arg-type]


@pytest.mark.parametrize("ordered", [True, False])
def test_pending_calls_are_in_the_snapshot_and_are_made_again_once(ordered: bool, tmp_path: Path) -> None:
    wait = AsyncDataStream.ordered_wait if ordered else AsyncDataStream.unordered_wait
    env = environment(
        {
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": tmp_path.as_uri(),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.delay": "10 ms",
        }
    )
    wait(env.from_collection(list(range(20))), Slow({3: 400, 4: 200}), SECOND, capacity=5).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(150)
        assert job.completed
        before = list(Slow.calls)
        slot = job.slots[0]
        slot.working = False
        slot.send_to_master(TaskFailed(attempt=slot.attempt, slot=slot.slot, failure=FailureInfo(summary="killed")))
        job.run_to_end()
    assert 3 in before
    assert Slow.calls.count(3) == 2
    assert sorted(job.results) == [v * 10 for v in range(20)]
    if ordered:
        assert job.results == [v * 10 for v in range(20)]


def test_pending_calls_are_dealt_out_anew_when_the_job_is_rescaled(tmp_path: Path) -> None:
    keys = {"execution.checkpointing.interval": "100 ms", "execution.checkpointing.dir": tmp_path.as_uri()}
    keys["execution.checkpointing.externalized-checkpoint-retention"] = "RETAIN_ON_CANCELLATION"

    def build(parallelism: int, more: dict[str, Any], default: float) -> Any:
        env = environment({**keys, **more}, parallelism)
        numbers = env.from_collection(list(range(30))).uid("numbers")
        slow = Slow(default=default)
        waiting = AsyncDataStream.ordered_wait(numbers.rebalance(), slow, Time.minutes(1), capacity=100)
        waiting.uid("wait").sink_to(CollectSink()).uid("out")
        return env

    with InProcessJob(build(3, {}, 10_000)) as first:
        first.advance(150)
        assert first.completed
        assert first.results == []
        n = first.completed[-1]
        first.cancel()
        root = tmp_path / first.graph.job_id / f"chk-{n}"
    with InProcessJob(build(2, {"execution.state-recovery.path": root.as_uri()}, 10)) as second:
        second.run_to_end()
    assert sorted(second.results) == [v * 10 for v in range(30)]
