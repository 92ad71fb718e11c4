"""What a savepoint has beside plain state, between barriers and micro-batches: state that expires meanwhile, timers in
processing time, windows that gather lists and that aggregate, broadcast state, and union lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.micro_batch.engine import Engine
from tests.unit.micro_batch.test_savepoints import EVENTS, Longest
from tidegate.common import Configuration, Duration, Time, Types, WatermarkStrategy
from tidegate.datastream import (
    CheckpointedFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.snapshots import read_state
from tidegate.testing.clock import ManualClock
from tidegate.testing.in_process_job import InProcessJob

HOUR = 3_600_000
MODES = ("STREAMING", "MICRO_BATCH")
_SHARE = 1_000_000  # in a share: the subtask times this, and how many it has seen
SHARES = ListStateDescriptor("shares", Types.LONG())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.INT())


class Short(KeyedProcessFunction):
    """Counts in state that lives for an hour, and sets a timer half an hour ahead with each record."""

    def open(self, ctx: Any) -> None:
        count = ValueStateDescriptor("count", Types.INT())
        count.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.count = ctx.get_state(count)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        count = self.count.value() or 0
        self.count.update(count + 1)
        due = ctx.timer_service().current_processing_time() + HOUR // 2
        ctx.timer_service().register_processing_time_timer(due)
        yield ("short", value[0], count, due)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ("fired", ctx.get_current_key(), timestamp)


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ("rules", *sorted(dict(ctx.get_broadcast_state(RULES).items()).items()))

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(*value)
        return iter(())


class Shares(MapFunction, CheckpointedFunction):
    """Counts records; after a restart the subtasks share all counts among themselves, by a union list."""

    def open(self, ctx: Any) -> None:
        self.index, self.all = ctx.get_index_of_this_subtask(), ctx.get_number_of_parallel_subtasks()

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_union_list_state(
            ListStateDescriptor("shares", Types.LONG())
        )
        self.before = list(self.state.get())
        self.seen = 0

    def map(self, value: Any) -> Any:
        self.seen += 1
        return value

    def snapshot_state(self, context: Any) -> None:
        mine = [share % _SHARE for share in self.before if share // _SHARE % self.all == self.index]
        self.before = [self.index * _SHARE + self.seen + sum(mine)]
        self.seen = 0
        self.state.update(self.before)


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield ("listed", key, *sorted(number for _, number in elements))


def job(parallelism: int, savepoint: str | None) -> DataStream:
    config = {"tidegate.network.batch-size": "4"}
    if savepoint is not None:
        config["execution.state-recovery.path"] = savepoint
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config))
    times = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(5))
    stamped = times.with_timestamp_assigner(lambda event, _: event[1])
    source = env.set_parallelism(parallelism).from_collection(EVENTS)
    events = source.assign_timestamps_and_watermarks(stamped).uid("times").set_parallelism(1)
    rules = env.from_collection([("a", 1), ("b", 2)]).uid("some rules").broadcast(RULES)
    keyed = events.key_by(lambda event: event[0], Types.STRING())
    windows = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(30)))
    listed = windows.process(Listed()).uid("listed")
    longest = windows.aggregate(_LongestNumber()).uid("longest").map(lambda n: ("longest", n)).uid("named")
    short = keyed.process(Short()).uid("short")
    ruled = keyed.connect(rules).process(Ruled()).uid("ruled")
    return short.union(ruled, listed, longest).map(Shares()).uid("shares")


class _LongestNumber(Longest):
    def add(self, value: Any, accumulator: int) -> int:
        return max(value[1], accumulator)


def run(
    mode: str, parallelism: int, clock_ms: float, savepoint: str | None, target: Path | None, batches: int = 4
) -> list[Any]:
    """Up to `target`, or to the end; the clock shows `clock_ms` more than at the beginning of all."""
    if mode == "MICRO_BATCH":
        clock = ManualClock()
        clock.now += clock_ms
        engine = Engine.collecting(job(parallelism, savepoint), max_records=12, kills=1, clock=clock)
        if target is None:
            return engine.run().results
        for _ in range(batches):
            assert not engine.run_batch().ended
        engine.savepoint(target)
        return engine.results
    with InProcessJob.collecting(job(parallelism, savepoint)) as running:
        running.clock.now += clock_ms
        if target is not None:
            running.step(7 * batches)
            running.stop(target)
        running.run_to_end()
        return running.results


@pytest.mark.parametrize("before", MODES)
@pytest.mark.parametrize("after", MODES)
@pytest.mark.parametrize("expired", [False, True])
def test_a_savepoint_has_all_of_it(before: str, after: str, expired: bool, tmp_path: Path) -> None:
    first = run(before, 2, 0.0, None, tmp_path / "savepoint")
    rest = run(after, 3, (1.5 if expired else 0.7) * HOUR, str(tmp_path / "savepoint"), None)
    seen = Counter(r[1] for r in first if r[0] == "short")
    assert 0 < seen.total() < len(EVENTS)
    counts: dict[str, list[int]] = {}
    for kind, key, *more in rest:
        if kind == "short":
            counts.setdefault(key, []).append(more[0])
    for key, found in counts.items():
        start = 0 if expired else seen[key]
        assert sorted(found) == list(range(start, start + len(found)))
    assert sum(map(len, counts.values())) == len(EVENTS) - seen.total()
    waiting = {(r[1], r[3]) for r in first if r[0] == "short"}
    fired = Counter((r[1], r[2]) for r in rest if r[0] == "fired")
    assert waiting <= fired.keys()
    assert set(fired.values()) == {1}
    assert {r for r in rest if r[0] == "rules"} == {("rules", ("a", 1), ("b", 2))}
    panes: dict[tuple[str, int], list[int]] = {}
    for key, number in EVENTS:
        panes.setdefault((key, number // 30), []).append(number)
    listed = sorted(r for r in first + rest if r[0] == "listed")
    assert listed == sorted(("listed", key, *numbers) for (key, _), numbers in panes.items())
    longest = sorted(r for r in first + rest if r[0] == "longest")
    assert longest == sorted(("longest", max(numbers)) for numbers in panes.values())


@pytest.mark.parametrize("before", MODES)
@pytest.mark.parametrize("after", MODES)
def test_union_lists_are_shared_among_other_subtasks(before: str, after: str, tmp_path: Path) -> None:
    first = run(before, 2, 0.0, None, tmp_path / "first", batches=3)
    rest = run(after, 3, 0.0, str(tmp_path / "first"), tmp_path / "second", batches=1)
    shares = read_state(str(tmp_path / "second"), "shares", "shares").column("value").to_pylist()
    assert sorted(share // _SHARE for share in shares) == [0, 1, 2]
    assert sum(share % _SHARE for share in shares) == len(first) + len(rest)
