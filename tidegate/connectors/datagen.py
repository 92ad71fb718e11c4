"""A source that makes its records from their index, at a rate when asked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError, of_type
from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader


@dataclass(frozen=True)
class DataGeneratorSplit(SourceSplit):
    """The indices first, first + stride, first + 2 * stride, ... below the count."""

    first: int
    stride: int


class DataGeneratorSource(Source[Any]):
    """Record number i is `function(i)`, for i from 0 to `count`-1 (without end when `count` is None).

    The function has to give the same record for the same index every time: that is what makes the source replayable.
    `records_per_second` is the rate of all subtasks together. A reader that was held up catches up what was due
    meanwhile, and never gets ahead of the rate; after a restart the rate starts anew.
    """

    gives_timestamps = False

    def __init__(
        self,
        function: Callable[[int], Any],
        count: int | None = None,
        records_per_second: float | None = None,
        type_info: Any = None,
    ) -> None:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(f"DataGeneratorSource(function): expected a function of the index, got {function!r}")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise TypeError(f"DataGeneratorSource(count): expected an int or None, got {type(count).__name__}")
        if count is not None and count < 0:
            raise ConfigurationError(f"DataGeneratorSource(count): has to be >= 0 or None (without end), got {count}")
        if records_per_second is not None and not (0 < records_per_second < math.inf):
            raise ConfigurationError(
                f"DataGeneratorSource(records_per_second): has to be > 0 or None (as fast as possible), "
                f"got {records_per_second}"
            )
        self._function = function
        self._count = count
        self._records_per_second = records_per_second
        self._type_info = type_info

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED if self._count is None else Boundedness.BOUNDED

    def create_splits(self, parallelism: int) -> Sequence[DataGeneratorSplit]:
        parts = parallelism if self._count is None else min(parallelism, max(self._count, 1))
        return [DataGeneratorSplit(str(i), i, parts) for i in range(parts)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> DataGeneratorReader:
        split = of_type(DataGeneratorSplit, split)
        end = None
        if self._count is not None:
            end = max(0, -(-(self._count - split.first) // split.stride))
        interval_ms = None if self._records_per_second is None else 1000.0 * split.stride / self._records_per_second
        position = 0 if offset is None else offset
        since = context.memos.get(split.split_id)
        return DataGeneratorReader(self._function, split, position, end, interval_ms, context, since)

    def get_produced_type(self) -> Any:
        return self._type_info

    def __repr__(self) -> str:
        return f"DataGeneratorSource({getattr(self._function, '__qualname__', self._function)!s}, count={self._count})"


class DataGeneratorReader(SplitReader[Any]):
    """The offset is the number of records of the split that were emitted."""

    def __init__(
        self,
        function: Callable[[int], Any],
        split: DataGeneratorSplit,
        position: int,
        end: int | None,
        interval_ms: float | None,
        context: SourceContext,
        since: tuple[int, float | None] | None = None,
    ) -> None:
        """`since`: where and when the rate has started; without it, here and with the first poll."""
        self._function = function
        self._split = split
        self._position = position
        self._end = end
        self._interval_ms = interval_ms
        self._clock = context.clock
        self._take = context.take
        self._anchor_position, self._anchor_ms = since or (position, None)

    def poll(self, max_records: int) -> list[Any] | None:
        start = self._position
        if self._end is not None and start >= self._end:
            return None
        stop = start + max_records
        if self._interval_ms is not None:
            now = self._clock.now_ms()
            if self._anchor_ms is None:
                self._anchor_ms = now
            stop = min(stop, self._anchor_position + _due(now, self._anchor_ms, self._interval_ms))
        if self._end is not None:
            stop = min(stop, self._end)
        if stop <= start:
            return []
        first, stride, function = self._split.first, self._split.stride, self._function
        _, rest = self._take(list(range(first + start * stride, first + stop * stride, stride)))
        batch = [function(i) for i in rest]
        self._position = start + len(batch)
        return batch

    def offset(self) -> int:
        return self._position

    def memo(self) -> tuple[int, float | None]:
        return self._anchor_position, self._anchor_ms

    def progress(self) -> float | None:
        return None if self._end is None else self._position / max(1, self._end)

    def wake_at_ms(self) -> float | None:
        if self._interval_ms is None or self._anchor_ms is None:
            return None
        return self._anchor_ms + (self._position - self._anchor_position) * self._interval_ms


def _due(now: float, anchor_ms: float, interval_ms: float) -> int:
    """How many records may have been emitted by now, by the very expression of `wake_at_ms`: a clock that stands
    exactly at the time that was asked for must not find the record not due for a rounding error."""
    due = int((now - anchor_ms) / interval_ms)
    while anchor_ms + due * interval_ms <= now:
        due += 1
    return due
