"""Input for jobs under test: scripts of records, watermarks and pauses, and streams that a test feeds by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream.stream import DataStream
from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment


class Record(NamedTuple):
    """A record that comes now. `timestamp` is its event time in milliseconds since the epoch; either all records of an
    input have one, or none has."""

    value: Any
    timestamp: int | None = None


class Watermark(NamedTuple):
    """From here on the watermark is `timestamp`."""

    timestamp: int


class Wait(NamedTuple):
    """What follows comes `ms` milliseconds later on the job's clock."""

    ms: float


Step = Record | Watermark | Wait


def scripted(
    env: StreamExecutionEnvironment, steps: Iterable[Step], *, bounded: bool = True, name: str = "script"
) -> DataStream:
    """The values of a script as a stream, with its timestamps and watermarks, and no other watermarks::

        stream = scripted(env, [Record("a", 1_000), Watermark(5_000), Wait(100), Record("b", 6_000)])

    What comes between two waits may be processed as one batch. The stream ends behind the last step; with
    `bounded=False` it is silent there instead. It can be read again from any position: a job with it is exactly once
    under failures."""
    items: list[tuple[float, Record | Watermark]] = []
    now = 0.0
    for step in steps:
        if isinstance(step, Wait):
            now += step.ms
        elif isinstance(step, (Record, Watermark)):
            items.append((now, step))
        else:
            raise TypeError(f"scripted: a step is a Record, a Watermark or a Wait, got {step!r}")
    return _with_time(env, _Script(items, now, bounded), name)


class Feed:
    """A stream that a test feeds while the job runs. It never ends by itself; `end` ends it.

    What was fed is kept, so that a job that restarts reads it again from where its checkpoint stands."""

    _feeds: ClassVar[dict[int, Feed]] = {}  # the source is pickled to the slots and finds its feed by number
    _numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self) -> None:
        self.items: list[Record | Watermark] = []
        self.ended = False
        self._number = next(Feed._numbers)
        Feed._feeds[self._number] = self

    def add(self, *steps: Record | Watermark) -> None:
        self.items += steps

    def end(self) -> None:
        """The input is over behind what was fed."""
        self.ended = True

    def stream(self, env: StreamExecutionEnvironment, name: str = "feed") -> DataStream:
        return _with_time(env, _FeedSource(self._number), name)

    def forget(self) -> None:
        """The job is over: nothing will read this feed any more."""
        Feed._feeds.pop(self._number, None)


def _with_time(env: StreamExecutionEnvironment, source: Source[Any], name: str) -> DataStream:
    raw = env.from_source(source, WatermarkStrategy.no_watermarks(), name).set_parallelism(1)
    marked = raw.assign_timestamps_and_watermarks(WatermarkStrategy.for_generator(_Marks)).set_parallelism(1)
    return marked.flat_map(_values).set_parallelism(1)


def _values(step: Record | Watermark) -> list[Any]:
    return [step.value] if isinstance(step, Record) else []


class _Marks(WatermarkGenerator):
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if isinstance(event, Watermark):
            output.emit_watermark(event.timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """The script alone says when."""


class _StepSource(Source[Any]):
    """A single split whose position is the number of steps that were read."""

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("all")]


class _Script(_StepSource):
    def __init__(self, items: list[tuple[float, Record | Watermark]], ends_after_ms: float, bounded: bool) -> None:
        self.items = items
        self.ends_after_ms = ends_after_ms
        self.bounded = bounded
        _check_timestamps(step for _, step in items)

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _ScriptReader(self, offset, context.clock)


class _ScriptReader(SplitReader[Any]):
    """The offset is the position and the time since the start, so that waits go on where they were."""

    def __init__(self, script: _Script, offset: tuple[int, float] | None, clock: Any) -> None:
        self._script = script
        self._position, passed = (0, 0.0) if offset is None else offset
        self._clock = clock
        self._began_ms = clock.now_ms() - passed

    def _due(self) -> float:
        items = self._script.items
        after = items[self._position][0] if self._position < len(items) else self._script.ends_after_ms
        return float(self._began_ms + after)

    def poll(self, max_records: int) -> RecordBatch | None:
        items, start, now = self._script.items, self._position, self._clock.now_ms()
        if start == len(items) and self._script.bounded and self._due() <= now:
            return None
        ready = itertools.takewhile(lambda item: self._began_ms + item[0] <= now, items[start : start + max_records])
        batch = _batch([step for _, step in ready])
        self._position += len(batch)
        return batch

    def offset(self) -> tuple[int, float]:
        return self._position, self._clock.now_ms() - self._began_ms

    def wake_at_ms(self) -> float | None:
        over = self._position == len(self._script.items) and not self._script.bounded
        return self._clock.now_ms() + 1000.0 if over else self._due()


class _FeedSource(_StepSource):
    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        number, position = offset or (self._number, 0)
        return _FeedReader(Feed._feeds[self._number], self._number, position if number == self._number else 0)


class _FeedReader(SplitReader[Any]):
    """The offset says whose feed it is: one that begins with the snapshot of another is read from its start."""

    def __init__(self, feed: Feed, number: int, position: int) -> None:
        self._feed = feed
        self._number = number
        self._position = position

    def poll(self, max_records: int) -> RecordBatch | None:
        items = self._feed.items[self._position : self._position + max_records]
        if not items and self._feed.ended:
            return None
        batch = _batch(items)
        self._position += len(batch)
        return batch

    def offset(self) -> tuple[int, int]:
        return self._number, self._position


def _batch(steps: Sequence[Record | Watermark]) -> RecordBatch:
    """The first steps that can be one batch: all with a timestamp, or all without. Watermarks travel as values with
    timestamps, which nobody looks at."""
    stamped = bool(steps) and steps[0].timestamp is not None
    same = list(itertools.takewhile(lambda step: (step.timestamp is not None) is stamped, steps))
    return RecordBatch(same, [step.timestamp or 0 for step in same] if stamped else None)


def _check_timestamps(steps: Iterable[Record | Watermark]) -> None:
    if len({step.timestamp is None for step in steps if isinstance(step, Record)}) > 1:
        raise ValueError("either all records of an input have timestamps, or none has")
