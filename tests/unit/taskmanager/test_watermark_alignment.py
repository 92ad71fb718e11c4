"""Watermark alignment: the decision, and its effect on the sources of a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import Time, WatermarkStrategy
from tidegate.common.ids import SlotIndex
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader
from tidegate.jobmanager.watermark_alignment import WatermarkAlignment
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.protocol.messages import WatermarkLimits
from tidegate.testing.in_process_job import InProcessJob, graph_of


class Steady(Source[Any]):
    """Ten records per second of its clock, whose event time goes `speed` times as fast; so many seconds of them."""

    def __init__(self, name: str, speed: int, seconds: int = 3600) -> None:
        self.name = name
        self.speed = speed
        self.seconds = seconds

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit(self.name)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _SteadyReader(self, offset or 0, context.clock)


class _SteadyReader(SplitReader[Any]):
    def __init__(self, source: Steady, position: int, clock: Any) -> None:
        self._source = source
        self._position = position
        self._clock = clock
        self._began = clock.now_ms()

    def poll(self, max_records: int) -> list[Any] | None:
        if self._position == 10 * self._source.seconds:
            return None
        if self._clock.now_ms() < self._began + 100 * self._position:
            return []
        self._position += 1
        return [(self._source.name, self._position * 100 * self._source.speed)]

    def offset(self) -> int:
        return self._position

    def wake_at_ms(self) -> float:
        return float(self._began + 100 * self._position)


def strategy(group: str | None, drift: int = 2000) -> WatermarkStrategy:
    plain = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
    return plain if group is None else plain.with_watermark_alignment(group, Time.milliseconds(drift), 500)


def two_sources(group: str | None, slow_seconds: int = 3600, parallelism: int = 1) -> Any:
    env = environment(parallelism=parallelism)
    slow = env.from_source(Steady("slow", 1, slow_seconds), strategy(group), "slow")
    fast = env.from_source(Steady("fast", 20), strategy(group), "fast")
    slow.union(fast).sink_to(CollectSink())
    return env


def highest(job: InProcessJob, name: str) -> int:
    return max(t for n, t in job.results if n == name)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_source_waits_when_it_is_further_ahead_than_the_drift(parallelism: int) -> None:
    with InProcessJob(two_sources("group", parallelism=parallelism)) as job:
        job.advance(10_000)
        # The drift, one record more, and what the slow one reads until its watermark is made, reported and answered.
        assert highest(job, "fast") <= highest(job, "slow") + 2000 + 2000
        assert highest(job, "fast") >= highest(job, "slow") + 1000


def test_without_alignment_it_does_not() -> None:
    with InProcessJob(two_sources(None)) as job:
        job.advance(10_000)
        assert highest(job, "fast") > 190_000
        assert not job.told(WatermarkLimits)


def test_a_source_that_is_at_its_end_holds_nobody_back() -> None:
    with InProcessJob(two_sources("group", slow_seconds=2)) as job:
        job.advance(10_000)
        assert highest(job, "slow") == 2000
        assert highest(job, "fast") > 50_000  # by the drift per update


def decision(parallelism: int = 2) -> WatermarkAlignment:
    return WatermarkAlignment(graph_of(two_sources("g", parallelism=parallelism)))


def test_nobody_is_held_back_before_all_have_reported() -> None:
    alignment = decision()
    assert alignment.on_report(SlotIndex(0), {"g": 100}) == {}
    assert alignment.on_report(SlotIndex(1), {"g": 700}) == {"g": 2100}


def test_the_limit_follows_the_lowest_and_is_told_when_it_changes() -> None:
    alignment = decision()
    alignment.on_report(SlotIndex(0), {"g": 100})
    alignment.on_report(SlotIndex(1), {"g": 700})
    assert alignment.on_report(SlotIndex(1), {"g": 800}) == {}
    assert alignment.on_report(SlotIndex(0), {"g": 600}) == {"g": 2600}
    assert alignment.on_report(SlotIndex(0), {"g": MAX_WATERMARK}) == {"g": 2800}
    assert alignment.on_report(SlotIndex(1), {"g": MAX_WATERMARK}) == {"g": MAX_WATERMARK}


def test_a_source_without_a_watermark_yet_counts_as_the_lowest() -> None:
    alignment = decision()
    alignment.on_report(SlotIndex(0), {"g": MIN_WATERMARK})
    assert alignment.on_report(SlotIndex(1), {"g": 5}) == {"g": MIN_WATERMARK + 2000}


def test_groups_that_nobody_declared_are_ignored() -> None:
    assert decision(1).on_report(SlotIndex(0), {"other": 5}) == {}
