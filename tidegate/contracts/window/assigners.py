"""Assigners of windows that stay as they are: by time, by count, and the one window for everything."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import Duration, Time, TimeLike, as_milliseconds
from tidegate.common.typeinfo import Types
from tidegate.contracts.state import ValueStateDescriptor
from tidegate.contracts.window.contracts import T, Trigger, WindowAssigner
from tidegate.contracts.window.triggers import CountTrigger, EventTimeTrigger, NeverTrigger, ProcessingTimeTrigger
from tidegate.contracts.window.windows import (
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
)

NO_TIMESTAMP = -(2**63)
"""The timestamp of an element that has none."""


class TumblingWindows(WindowAssigner[T, TimeWindow]):
    """What both kinds of tumbling time windows share. `size` and `offset` are milliseconds."""

    def __init__(self, size: int, offset: int) -> None:
        self.size = _positive(self, "the size", size)
        self.offset = _checked_offset(self, offset, "the size", size)

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()

    def _window(self, time: int) -> TimeWindow:
        start = TimeWindow.get_window_start_with_offset(time, self.offset, self.size)
        return TimeWindow(start, start + self.size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, {self.offset})"


class TumblingEventTimeWindows(TumblingWindows[T]):
    """Windows of one size, one after the other, by the elements' timestamps."""

    @staticmethod
    def of(size: TimeLike, offset: TimeLike | None = None) -> TumblingEventTimeWindows[Any]:
        """Windows begin at multiples of `size` since the epoch (UTC), moved by `offset`: days in a zone at UTC+8 are
        `of(Time.days(1), Time.hours(-8))`."""
        name = "TumblingEventTimeWindows"
        return TumblingEventTimeWindows(as_milliseconds(size, f"{name}: the size"), _offset_ms(name, offset))

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        return [self._window(checked_timestamp(timestamp))]

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


class TumblingProcessingTimeWindows(TumblingWindows[T]):
    """Windows of one size, one after the other, by the worker's clock. What is in the last one when bounded input ends
    is not emitted."""

    @staticmethod
    def of(size: TimeLike, offset: TimeLike | None = None) -> TumblingProcessingTimeWindows[Any]:
        """See `TumblingEventTimeWindows.of`."""
        name = "TumblingProcessingTimeWindows"
        return TumblingProcessingTimeWindows(as_milliseconds(size, f"{name}: the size"), _offset_ms(name, offset))

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        return [self._window(context.get_current_processing_time())]

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return False


class SlidingWindows(WindowAssigner[T, TimeWindow]):
    """What both kinds of sliding time windows share. `size`, `slide` and `offset` are milliseconds."""

    def __init__(self, size: int, slide: int, offset: int) -> None:
        self.size = _positive(self, "the size", size)
        self.slide = _positive(self, "the slide", slide)
        if slide > size:
            raise ConfigurationError(
                f"{type(self).__name__}: the slide ({slide} ms) is greater than the size ({size} ms), so elements "
                "between two windows would be lost without notice; make the slide at most the size, and filter() the "
                "stream if you want a sample"
            )
        self.offset = _checked_offset(self, offset, "the slide", slide)
        self.pane = math.gcd(size, slide)  # windows are made of whole panes

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()

    def _windows(self, time: int) -> list[TimeWindow]:
        """The windows of a timestamp, the latest first."""
        last = TimeWindow.get_window_start_with_offset(time, self.offset, self.slide)
        return [TimeWindow(start, start + self.size) for start in range(last, time - self.size, -self.slide)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.size}, {self.slide}, {self.offset})"


class SlidingEventTimeWindows(SlidingWindows[T]):
    """A window of `size` begins every `slide`, by the elements' timestamps: each element is in size / slide of them."""

    @staticmethod
    def of(size: TimeLike, slide: TimeLike, offset: TimeLike | None = None) -> SlidingEventTimeWindows[Any]:
        name = "SlidingEventTimeWindows"
        return SlidingEventTimeWindows(
            as_milliseconds(size, f"{name}: the size"),
            as_milliseconds(slide, f"{name}: the slide"),
            _offset_ms(name, offset),
        )

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        return self._windows(checked_timestamp(timestamp))

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


class SlidingProcessingTimeWindows(SlidingWindows[T]):
    """A window of `size` that begins every `slide`, by the worker's clock. What is in windows that are not over when
    bounded input ends is not emitted."""

    @staticmethod
    def of(size: TimeLike, slide: TimeLike, offset: TimeLike | None = None) -> SlidingProcessingTimeWindows[Any]:
        name = "SlidingProcessingTimeWindows"
        return SlidingProcessingTimeWindows(
            as_milliseconds(size, f"{name}: the size"),
            as_milliseconds(slide, f"{name}: the slide"),
            _offset_ms(name, offset),
        )

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        return self._windows(context.get_current_processing_time())

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        return False


class CountWindows(WindowAssigner[T, CountWindow]):
    """What both kinds of count windows share: the number of elements of the key so far, as keyed state."""

    window_size: int
    _count_descriptor: ValueStateDescriptor

    def _next_index(self, context: WindowAssigner.WindowAssignerContext) -> int:
        count = context.get_runtime_context().get_state(self._count_descriptor)
        index: int = count.value() or 0
        count.update(index + 1)
        return index

    def get_default_trigger(self, env: Any) -> Trigger[T, Any]:
        return CountTrigger(self.window_size)

    def get_window_serializer(self) -> CountWindowSerializer:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(CountWindows[T]):
    """Every `window_size` elements of a key. An incomplete window is not emitted when bounded input ends."""

    def __init__(self, window_size: int) -> None:
        self.window_size = _positive(self, "the window size", window_size)
        self._count_descriptor = ValueStateDescriptor("tumble-count-assigner", Types.LONG())

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner[Any]:
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        return [CountWindow(self._next_index(context) // self.window_size)]

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self.window_size})"


class CountSlidingWindowAssigner(CountWindows[T]):
    """`window_size` elements of a key, beginning at every `window_slide`-th. An incomplete window is not emitted when
    bounded input ends."""

    def __init__(self, window_size: int, window_slide: int) -> None:
        self.window_size = _positive(self, "the window size", window_size)
        self.window_slide = _positive(self, "the window slide", window_slide)
        if window_slide > window_size:
            raise ConfigurationError(
                f"CountSlidingWindowAssigner: the slide ({window_slide}) is greater than the size ({window_size}), so "
                "elements between two windows would be lost without notice; make the slide at most the size"
            )
        self._count_descriptor = ValueStateDescriptor("slide-count-assigner", Types.LONG())

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner[Any]:
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        index = self._next_index(context)
        slide = self.window_slide
        first = max(0, -((self.window_size - 1 - index) // slide))  # the earliest window that reaches this far
        return [CountWindow(number) for number in range(index // slide, first - 1, -1)]

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self.window_size}, {self.window_slide})"


class GlobalWindows(WindowAssigner[T, GlobalWindow]):
    """All elements of a key in one window. Needs a trigger of your choice: the default one never fires."""

    @staticmethod
    def create() -> GlobalWindows[Any]:
        return GlobalWindows()

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[GlobalWindow]:
        return [GlobalWindow.get()]

    def get_default_trigger(self, env: Any) -> Trigger[T, Any]:
        return NeverTrigger()

    def get_window_serializer(self) -> GlobalWindowSerializer:
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "GlobalWindows()"


# ---------------------------------------------------------------- checks


def checked_timestamp(timestamp: int) -> int:
    if timestamp <= NO_TIMESTAMP:
        raise ConfigurationError(
            "an event-time window got a record without a timestamp; call "
            "assign_timestamps_and_watermarks(WatermarkStrategy...with_timestamp_assigner(...)) on the stream before "
            "window()"
        )
    return timestamp


def _positive(owner: object, what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{type(owner).__name__}: {what} has to be an int, got {value!r}")
    if value <= 0:
        raise ConfigurationError(f"{type(owner).__name__}: {what} has to be more than 0, got {value}")
    return value


def _checked_offset(owner: object, offset: int, what: str, limit: int) -> int:
    if abs(offset) >= limit:
        raise ConfigurationError(
            f"{type(owner).__name__}: the offset ({offset} ms) has to lie between -{limit} and {limit} ms, {what}"
        )
    return offset


def _offset_ms(owner: str, offset: TimeLike | None) -> int:
    """The offset in milliseconds, which may be negative, unlike the lengths that `as_milliseconds` takes."""
    if offset is None:
        return 0
    if isinstance(offset, Duration | Time):
        return offset.to_milliseconds()
    if isinstance(offset, int) and not isinstance(offset, bool):
        return offset
    if isinstance(offset, datetime.timedelta):
        return offset // datetime.timedelta(milliseconds=1)
    raise ConfigurationError(
        f"{owner}: the offset must be a number of milliseconds (int), a Duration, a Time or a timedelta, got {offset!r}"
    )
