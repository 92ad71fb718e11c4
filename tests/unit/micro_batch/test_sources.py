"""Sources in micro-batches: their readers are made anew for every batch, which must not hold anything back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.micro_batch.engine import Engine
from tidegate.common import WatermarkStrategy
from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.testing.clock import ManualClock


class Endless(Source[Any]):
    """Splits without end. `connects_after`: polls of a reader before there is anything."""

    boundedness = Boundedness.CONTINUOUS_UNBOUNDED

    def __init__(self, splits: int, connects_after: int = 0) -> None:
        self.splits = splits
        self.connects_after = connects_after

    def create_splits(self, parallelism: int) -> list[SourceSplit]:
        return [SourceSplit(f"split-{i}") for i in range(self.splits)]

    def create_reader(self, split: SourceSplit, offset: Any, context: SourceContext) -> SplitReader[Any]:
        return _EndlessReader(split.split_id, offset or 0, self.connects_after)


class _EndlessReader(SplitReader[Any]):
    def __init__(self, name: str, position: int, connects_after: int) -> None:
        self.name, self.position, self.left = name, position, connects_after

    def poll(self, max_records: int) -> list[Any]:
        self.left -= 1
        if self.left >= 0:
            return []
        start, self.position = self.position, self.position + max_records
        return [(self.name, n) for n in range(start, self.position)]

    def offset(self) -> int:
        return self.position

    @property
    def settling(self) -> bool:
        return self.left > 0


def engine(source: Source[Any], max_records: int) -> Engine:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "Endless")
    return Engine.collecting(stream.map(lambda record: record), max_records=max_records)


def test_every_split_has_its_turn_when_one_fills_a_batch() -> None:
    running = engine(Endless(splits=3), max_records=1)
    for _ in range(6):
        running.run_batch()
    assert sorted(running.results) == [(f"split-{i}", n) for i in range(3) for n in range(2)]


def test_a_batch_waits_for_a_connection() -> None:
    """Longer than for the first record: all readers of all batches would be closed before they are connected."""
    running = engine(Endless(splits=2, connects_after=15), max_records=4)  # polled every 10 ms
    assert running.run_batch().records_read == 4


@pytest.mark.parametrize(("max_bytes", "records"), [(50_000, (45, 55)), (8_000, (7, 9)), (1 << 40, (900, 900))])
def test_a_batch_is_full_when_its_bytes_are(max_bytes: int, records: tuple[int, int]) -> None:
    """Also where only numbers are sent on."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    texts = env.from_collection(["x" * 950] * 900)
    running = Engine.collecting(texts.map(len), max_records=900, max_bytes=max_bytes)
    assert records[0] <= running.run_batch().records_read <= records[1]
    running.run()
    assert running.results == [950] * 900


@pytest.mark.parametrize("rate", [100.0, 0.5])
def test_a_rate_goes_on_from_reader_to_reader(rate: float) -> None:
    """As if it were one reader: what has become due in between is there at once, and nothing before its time."""
    source, clock = DataGeneratorSource(lambda i: i, records_per_second=rate), ManualClock()
    (split,) = source.create_splits(1)
    context = SourceContext("Numbers", 0, 1, clock)
    offset, read = None, []
    for _ in range(50):
        reader = source.create_reader(split, offset, context)
        read += reader.poll(1000) or []
        offset = reader.offset()
        context.memos = {split.split_id: reader.memo()}
        clock.now += 1000
    assert read == list(range(int(49 * rate) + 1))
