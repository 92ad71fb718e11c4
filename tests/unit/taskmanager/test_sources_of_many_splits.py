"""A subtask with several splits: those that have nothing to read do not hold up the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from small_jobs import environment

from tests.unit.micro_batch.engine import Engine
from tidegate.common import WatermarkStrategy
from tidegate.datastream import DataStream
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader
from tidegate.testing.in_process_job import InProcessJob

COUNT = 5_000


class OneHasAll(Source[int]):
    """Of `splits`, the one with number `full` has COUNT numbers; the others wait for the next hour, and so does it when
    it has given them."""

    def __init__(self, splits: int, full: int) -> None:
        self.splits = splits
        self.full = full

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit(str(number)) for number in range(self.splits)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[int]:
        return _Reader(COUNT if split.split_id == str(self.full) else 0, offset or 0, context.clock)


class _Reader(SplitReader[int]):
    def __init__(self, count: int, position: int, clock: Any) -> None:
        self._count = count
        self._position = position
        self._clock = clock

    def poll(self, max_records: int) -> list[int]:
        polled = list(range(self._position, min(self._count, self._position + max_records)))
        self._position += len(polled)
        return polled

    def offset(self) -> int:
        return self._position

    def wake_at_ms(self) -> float:
        return float(self._clock.now_ms() + 3_600_000)


def stream_of(splits: int, full: int) -> DataStream:
    return environment().from_source(OneHasAll(splits, full), WatermarkStrategy.no_watermarks(), "Numbers")


@pytest.mark.parametrize("full", [0, 1, 2])
def test_a_split_with_records_is_read_on_beside_empty_ones(full: int) -> None:
    with InProcessJob.collecting(stream_of(3, full)) as job:
        job.advance(1_000)
        assert job.results == list(range(COUNT))


@pytest.mark.parametrize("full", [0, 1, 2])
def test_a_micro_batch_reads_as_much_of_it_as_it_may(full: int) -> None:
    engine = Engine.collecting(stream_of(3, full), max_records=2_000)
    assert [engine.run_batch().records_read for _ in range(3)] == [2_000, 2_000, 1_000]
    assert engine.results == list(range(COUNT))
