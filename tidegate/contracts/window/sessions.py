"""Session windows: elements of a key that follow each other within a gap. They grow together as elements come."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.contracts.window.assigners import checked_timestamp
from tidegate.contracts.window.contracts import MergingWindowAssigner, T, Trigger, WindowAssigner
from tidegate.contracts.window.triggers import EventTimeTrigger, ProcessingTimeTrigger
from tidegate.contracts.window.windows import TimeWindow, TimeWindowSerializer


class SessionWindowTimeGapExtractor(abc.ABC):
    """Says how long a session stays open after an element."""

    @abc.abstractmethod
    def extract(self, element: Any) -> int:
        """The gap in milliseconds, more than 0."""


class _Sessions(MergingWindowAssigner[T, TimeWindow]):
    event_time: bool

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        start = checked_timestamp(timestamp) if self.event_time else context.get_current_processing_time()
        return [TimeWindow(start, start + self._gap_of(element))]

    @abc.abstractmethod
    def _gap_of(self, element: T) -> int: ...

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        TimeWindow.merge_windows(windows, callback)

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return EventTimeTrigger() if self.event_time else ProcessingTimeTrigger()

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return self.event_time


class _FixedGap(_Sessions[T]):
    def __init__(self, session_gap: int) -> None:
        if isinstance(session_gap, bool) or not isinstance(session_gap, int):
            raise TypeError(f"{type(self).__name__}: the gap is a number of milliseconds (int), got {session_gap!r}")
        if session_gap <= 0:
            raise ConfigurationError(f"{type(self).__name__}: the gap has to be more than 0 ms, got {session_gap}")
        self.session_gap = session_gap

    def _gap_of(self, element: T) -> int:
        return self.session_gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_gap})"


class _DynamicGap(_Sessions[T]):
    def __init__(self, session_window_time_gap_extractor: SessionWindowTimeGapExtractor | Callable[[Any], int]) -> None:
        extractor = session_window_time_gap_extractor
        self._extract: Callable[[Any], int]
        if isinstance(extractor, SessionWindowTimeGapExtractor):
            self._extract = extractor.extract
        elif callable(extractor) and not isinstance(extractor, type):
            self._extract = extractor
        else:
            raise TypeError(
                f"{type(self).__name__}: takes a SessionWindowTimeGapExtractor (an instance) or a function of the "
                f"element, got {extractor!r}"
            )

    def _gap_of(self, element: T) -> int:
        gap = self._extract(element)
        if isinstance(gap, bool) or not isinstance(gap, int) or gap <= 0:
            raise ConfigurationError(
                f"{type(self).__name__}: the gap of an element has to be a number of milliseconds above 0, the "
                f"extractor gave {gap!r}"
            )
        return gap

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class EventTimeSessionWindows(_FixedGap[T]):
    """Sessions by the elements' timestamps."""

    event_time = True

    @staticmethod
    def with_gap(size: TimeLike) -> EventTimeSessionWindows[Any]:
        """A session ends `size` after its last element."""
        return EventTimeSessionWindows(as_milliseconds(size, "EventTimeSessionWindows: the gap"))

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicEventTimeSessionWindows[Any]:
        """Each element says how long the session stays open after it."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_FixedGap[T]):
    """Sessions by the worker's clock. A session that is open when bounded input ends is not emitted."""

    event_time = False

    @staticmethod
    def with_gap(size: TimeLike) -> ProcessingTimeSessionWindows[Any]:
        """A session ends `size` after its last element."""
        return ProcessingTimeSessionWindows(as_milliseconds(size, "ProcessingTimeSessionWindows: the gap"))

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicProcessingTimeSessionWindows[Any]:
        """Each element says how long the session stays open after it."""
        return DynamicProcessingTimeSessionWindows(extractor)


class DynamicEventTimeSessionWindows(_DynamicGap[T]):
    """Sessions by the elements' timestamps, with a gap per element."""

    event_time = True

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicEventTimeSessionWindows[Any]:
        return DynamicEventTimeSessionWindows(extractor)


class DynamicProcessingTimeSessionWindows(_DynamicGap[T]):
    """Sessions by the worker's clock, with a gap per element. A session that is open when bounded input ends is not
    emitted."""

    event_time = False

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> DynamicProcessingTimeSessionWindows[Any]:
        return DynamicProcessingTimeSessionWindows(extractor)
