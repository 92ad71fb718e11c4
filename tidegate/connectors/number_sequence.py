"""A bounded sequence of integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.errors import ConfigurationError, of_type
from tidegate.contracts.connectors import Source, SourceContext, SourceSplit, SplitReader


@dataclass(frozen=True)
class NumberSequenceSplit(SourceSplit):
    start: int
    end: int  # inclusive


class NumberSequenceSource(Source[int]):
    """The integers `start` to `end`, both included. In order within a subtask, which reads one contiguous range."""

    gives_timestamps = False

    def __init__(self, start: int, end: int) -> None:
        for name, value in (("start", start), ("end", end)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"NumberSequenceSource({name}): expected an int, got {type(value).__name__}")
        if start > end:
            raise ConfigurationError(f"NumberSequenceSource: start ({start}) is greater than end ({end})")
        self._start = start
        self._end = end

    def create_splits(self, parallelism: int) -> Sequence[NumberSequenceSplit]:
        total = self._end - self._start + 1
        parts = min(parallelism, total)
        bounds = [self._start + i * total // parts for i in range(parts + 1)]
        return [NumberSequenceSplit(str(i), bounds[i], bounds[i + 1] - 1) for i in range(parts)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> NumberSequenceReader:
        split = of_type(NumberSequenceSplit, split)
        return NumberSequenceReader(split.start if offset is None else offset, split.end + 1, split.start)

    def get_produced_type(self) -> Any:
        from tidegate.common.typeinfo import Types

        return Types.LONG()

    def __repr__(self) -> str:
        return f"NumberSequenceSource({self._start}, {self._end})"


class NumberSequenceReader(SplitReader[int]):
    def __init__(self, next_number: int, stop: int, first: int | None = None) -> None:
        self._next = next_number
        self._stop = stop
        self._first = next_number if first is None else first

    def poll(self, max_records: int) -> list[int] | None:
        start = self._next
        if start >= self._stop:
            return None
        self._next = min(start + max_records, self._stop)
        return list(range(start, self._next))

    def offset(self) -> int:
        return self._next

    def progress(self) -> float:
        return (self._next - self._first) / max(1, self._stop - self._first)
