"""How far an unbounded source is read under chaos: shares of its splits, short splits, what turns up later."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chaos.kit import run_in_process
from tidegate.chaos import sources
from tidegate.chaos.recording import recorded
from tidegate.chaos.rounds import Run
from tidegate.chaos.sources import LimitedSource, measured_limits
from tidegate.common import Duration, WatermarkStrategy
from tidegate.contracts.collect_sink import CollectSink
from tidegate.contracts.connectors import (
    Boundedness,
    Discovery,
    Source,
    SourceContext,
    SourceSplit,
    SplitEnumerator,
    SplitReader,
)
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat


class PartitionReader(SplitReader[Any]):
    """Of a topic that nothing more is written to: it never ends."""

    def __init__(self, split: str, count: int, place: int, wakes_late: bool) -> None:
        self._split, self._count, self._place, self._wakes_late = split, count, place, wakes_late

    def poll(self, max_records: int) -> list[Any]:
        began, self._place = self._place, min(self._count, self._place + max_records)
        return [(self._split, n) for n in range(began, self._place)]

    def offset(self) -> int:
        return self._place

    def wake_at_ms(self) -> float | None:
        return 1e18 if self._wakes_late else None


@dataclasses.dataclass
class Topic(Source[Any]):
    """Partition -> how many records it has. `later`: partitions that only an enumerator knows of."""

    records: dict[str, int]
    later: frozenset[str] = frozenset()
    wakes_late: bool = False

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit(name) for name in self.records if name not in self.later]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return PartitionReader(split.split_id, self.records[split.split_id], offset or 0, self.wakes_late)

    @property
    def discovery_interval_ms(self) -> float | None:
        return 10.0 if self.later else None

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return Later(self.later)


@dataclasses.dataclass
class Later(SplitEnumerator):
    names: frozenset[str]

    def discover(self, known: AbstractSet[str]) -> Discovery:
        return Discovery([SourceSplit(name) for name in sorted(self.names - known)])


def read(folder: Path, source: Source[Any], **segment: Any) -> Run:
    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(source, WatermarkStrategy.no_watermarks(), "topic").uid("topic").sink_to(CollectSink())

    return run_in_process(folder, build, **segment)


def values(run: Run) -> list[Any]:
    return sorted(
        ast.literal_eval(found.text) for found in recorded(run.folder, run.segments[0].operators[-1].operator_id)
    )


@pytest.mark.parametrize("wakes_late", [False, True])
def test_a_partition_that_has_fewer_records_than_its_share_does_not_keep_the_run_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wakes_late: bool
) -> None:
    monkeypatch.setattr(sources, "QUIET_S", 0.3)
    topic = Topic({"full": 1000, "short": 3, "empty": 0}, wakes_late=wakes_late)
    first = read(tmp_path / "first", topic, records=30)
    wanted = [("full", n) for n in range(10)] + [("short", n) for n in range(3)]
    assert values(first) == wanted
    (limits,) = measured_limits(first.folder).values()
    assert limits == {"full": 10, "short": 3, "empty": 0}
    # The others read what the first has read, whatever has come since, and wait for nothing.
    monkeypatch.setattr(sources, "QUIET_S", 1e9)
    topic = Topic({"full": 1000, "short": 100, "empty": 100}, wakes_late=wakes_late)
    second = read(tmp_path / "second", topic, records=30, limits=measured_limits(first.folder))
    assert values(second) == wanted
    (note,) = [note for note in second.segments[0].notes if "'Source: topic' was read for 13 records, not 30" in note]
    assert "'empty', 'short' had no more" in note


def test_a_split_that_pauses_for_less_than_the_while_is_read_to_its_share(tmp_path: Path) -> None:
    """And nothing is noted of a source that had all that was asked for."""
    first = read(tmp_path / "first", Topic({"a": 1000, "b": 1000}), records=31)
    assert len(values(first)) == 31
    second = read(tmp_path / "second", Topic({"a": 1000, "b": 1000}), records=31, limits=measured_limits(first.folder))
    assert values(second) == values(first)
    assert not any("was read for" in note for note in second.segments[0].notes)


def test_what_an_enumerator_finds_at_the_start_is_read_too(tmp_path: Path) -> None:
    topic = Topic({"a": 1000, "b": 1000}, later=frozenset("b"))
    assert values(read(tmp_path / "run", topic, records=4)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_files_of_a_watched_folder_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "QUIET_S", 0.3)
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(3):
        (folder / f"{n}.txt").write_text(f"{n}a\n{n}b\n")
    build = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder))
    source = build.monitor_continuously(Duration.of_millis(10)).build()
    assert LimitedSource(source, "in", str(tmp_path)).reads_in_turn
    assert values(read(tmp_path / "run", source, records=100)) == ["0a", "0b", "1a", "1b", "2a", "2b"]
