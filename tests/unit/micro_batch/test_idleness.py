"""Splits that fall silent: `with_idleness` takes effect over batches, and the pauses between them make nobody idle
whose records have only not been looked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.micro_batch.engine import Engine
from tests.unit.micro_batch.test_sources import Endless
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.contracts.connectors import SourceContext, SourceSplit, SplitReader
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.testing.clock import ManualClock

IDLE_MS, PER_BATCH, PAUSE_MS = 300, 50, 100


class Uneven(Endless):
    """Split 0 has `PER_BATCH` records for each reader, the others have `others`, in each of the first `until` ones."""

    def __init__(self, splits: int, others: int = 0, until: int = 1 << 60) -> None:
        super().__init__(splits)
        self.others, self.until = others, until

    def create_reader(self, split: SourceSplit, offset: Any, context: SourceContext) -> SplitReader[Any]:
        number = context.memos.get(split.split_id, 0)
        there = PER_BATCH if split.split_id == "split-0" else self.others if number < self.until else 0
        return _UnevenReader(split.split_id, offset or 0, there, number)


class _UnevenReader(SplitReader[Any]):
    def __init__(self, name: str, position: int, there: int, number: int) -> None:
        self.name, self.position, self.end, self.number = name, position, position + there, number

    def poll(self, max_records: int) -> list[Any]:
        start, self.position = self.position, min(self.end, self.position + max_records)
        return [(self.name, n) for n in range(start, self.position)]

    def offset(self) -> int:
        return self.position

    def memo(self) -> int:
        return self.number + 1


def times() -> WatermarkStrategy:
    stamped = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record, _: record[1])
    return stamped.with_idleness(Duration.of_millis(IDLE_MS))


def running(source: Uneven, clock: ManualClock, assigned: bool, parallelism: int = 1) -> Engine:
    """Counts the records of each window."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    if assigned:
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "E").assign_timestamps_and_watermarks(
            times()
        )
    else:
        stream = env.from_source(source, times(), "E")
    windows = (
        stream.map(lambda record: (record[1] // 10, 1))
        .key_by(lambda record: 0)
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    )
    return Engine.collecting(windows.reduce(lambda a, b: (a[0], a[1] + b[1])), max_records=1000, clock=clock)


@pytest.mark.parametrize("assigned", [False, True])
@pytest.mark.parametrize("until", [0, 2])
def test_a_silent_split_holds_nobody_back(assigned: bool, until: int) -> None:
    """It may have had records before."""
    clock = ManualClock()
    engine = running(Uneven(2, others=1, until=until), clock, assigned, parallelism=2)
    for _ in range(12):
        engine.run_batch()
        clock.now += PAUSE_MS
    fired = {window for window, _ in engine.results}
    assert fired == set(range(max(fired) + 1))
    assert len(fired) >= 11 * PER_BATCH / 10


@pytest.mark.parametrize("assigned", [False, True])
def test_a_pause_between_batches_makes_nobody_idle(assigned: bool) -> None:
    """It is far longer than the time of idleness, and each batch has records of both splits, the slow one's last: none
    of them is late."""
    clock = ManualClock()
    engine = running(Uneven(2, others=10), clock, assigned, parallelism=2)
    batches = 5
    for _ in range(batches):
        engine.run_batch()
        clock.now += 60_000
    assert engine.results == [(window, 20) for window in range(batches - 1)]


class Once(Uneven):
    """Split 1 has one record, in the first batch."""

    def create_reader(self, split: SourceSplit, offset: Any, context: SourceContext) -> SplitReader[Any]:
        number = context.memos.get(split.split_id, 0)
        there = int(not number and split.split_id == "split-1")
        return _UnevenReader(split.split_id, offset or 0, there, number)


class Alarm(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value[1])
        return []

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield timestamp


def test_timers_fire_in_the_batch_whose_silence_makes_them_due() -> None:
    """No watermark comes then: from now on only a channel counts that came to its end before. Their keys have no
    records."""
    clock = ManualClock()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    ended = env.from_collection([("split-0", n) for n in range(PER_BATCH)]).assign_timestamps_and_watermarks(times())
    silent = env.from_source(Once(2), times(), "Once")
    keyed = ended.union(silent).key_by(lambda record: record, Types.PICKLED_BYTE_ARRAY())
    engine = Engine.collecting(keyed.process(Alarm()), max_records=1000, clock=clock)
    for _ in range(2 + IDLE_MS // PAUSE_MS):
        engine.run_batch()
        clock.now += PAUSE_MS
    assert sorted(engine.results) == [0, *range(PER_BATCH)]
