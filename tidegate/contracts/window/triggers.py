"""The triggers that come with Tidegate."""

from __future__ import annotations

import abc
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.common.typeinfo import Types
from tidegate.contracts.functions import ReduceFunction
from tidegate.contracts.state import ReducingStateDescriptor
from tidegate.contracts.window.contracts import T, Trigger, TriggerResult
from tidegate.contracts.window.windows import TimeWindow, Window

_CONTINUE, _FIRE = TriggerResult.CONTINUE, TriggerResult.FIRE


class EventTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the watermark passes the end of the window, and again for each late element that is allowed."""

    @staticmethod
    def create() -> EventTimeTrigger[Any]:
        return EventTimeTrigger()

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        end = window.max_timestamp()
        if end <= ctx.get_current_watermark():
            return _FIRE
        ctx.register_event_time_timer(end)
        return _CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _FIRE if time == window.max_timestamp() else _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the clock passes the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger[Any]:
        return ProcessingTimeTrigger()

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return _CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class Min(ReduceFunction):
    """The smaller of two values: how the next firing time of merged windows is found."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return min(value1, value2)


class _Continuous(Trigger[T, TimeWindow]):
    """What both continuous triggers share: the next firing time as state of the window."""

    def __init__(self, interval: int) -> None:
        self.interval = _positive_interval(type(self).__name__, interval)
        self.state_desc = ReducingStateDescriptor("fire-time", Min(), Types.LONG())

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self.state_desc)
        following = ctx.get_partitioned_state(self.state_desc).get()  # type: ignore[attr-defined]
        if following is not None:
            self._register_timer(ctx, following)

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        fire_time = ctx.get_partitioned_state(self.state_desc)
        following = fire_time.get()  # type: ignore[attr-defined]
        if following is not None:
            self._delete_timer(ctx, following)
            fire_time.clear()

    def _fire_at(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """A timer was due: fires, and sets the next one, if it is the timer that the state knows of."""
        fire_time = ctx.get_partitioned_state(self.state_desc)
        if fire_time.get() != time:  # type: ignore[attr-defined]
            return _CONTINUE
        fire_time.clear()
        self.register_next_fire_timestamp(time, window, ctx, fire_time)
        return _FIRE

    @abc.abstractmethod
    def register_next_fire_timestamp(
        self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext, fire_timestamp_state: Any
    ) -> None: ...

    @abc.abstractmethod
    def _register_timer(self, ctx: Trigger.OnMergeContext, time: int) -> None: ...

    @abc.abstractmethod
    def _delete_timer(self, ctx: Trigger.TriggerContext, time: int) -> None: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.interval})"


class ContinuousEventTimeTrigger(_Continuous[T]):
    """Fires whenever the watermark passes another multiple of the interval, and at the end of the window."""

    @staticmethod
    def of(interval: TimeLike) -> ContinuousEventTimeTrigger[Any]:
        return ContinuousEventTimeTrigger(as_milliseconds(interval, "ContinuousEventTimeTrigger: the interval"))

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return _FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        fire_time = ctx.get_partitioned_state(self.state_desc)
        if fire_time.get() is None:  # type: ignore[attr-defined]
            self.register_next_fire_timestamp(timestamp - timestamp % self.interval, window, ctx, fire_time)
        return _CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _FIRE if time == window.max_timestamp() else self._fire_at(time, window, ctx)

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        super().clear(window, ctx)
        ctx.delete_event_time_timer(window.max_timestamp())

    def _register_timer(self, ctx: Trigger.OnMergeContext, time: int) -> None:
        ctx.register_event_time_timer(time)

    def _delete_timer(self, ctx: Trigger.TriggerContext, time: int) -> None:
        ctx.delete_event_time_timer(time)

    def register_next_fire_timestamp(
        self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext, fire_timestamp_state: Any
    ) -> None:
        following = min(time + self.interval, window.max_timestamp())
        fire_timestamp_state.add(following)
        ctx.register_event_time_timer(following)


class ContinuousProcessingTimeTrigger(_Continuous[T]):
    """Fires whenever the clock passes another multiple of the interval, and at the end of a processing-time window."""

    @staticmethod
    def of(interval: TimeLike) -> ContinuousProcessingTimeTrigger[Any]:
        return ContinuousProcessingTimeTrigger(
            as_milliseconds(interval, "ContinuousProcessingTimeTrigger: the interval")
        )

    def on_element(self, element: T, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        fire_time = ctx.get_partitioned_state(self.state_desc)
        if fire_time.get() is None:  # type: ignore[attr-defined]
            now = ctx.get_current_processing_time()
            self.register_next_fire_timestamp(now - now % self.interval, window, ctx, fire_time)
        return _CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return self._fire_at(time, window, ctx)

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def _register_timer(self, ctx: Trigger.OnMergeContext, time: int) -> None:
        ctx.register_processing_time_timer(time)

    def _delete_timer(self, ctx: Trigger.TriggerContext, time: int) -> None:
        ctx.delete_processing_time_timer(time)

    def register_next_fire_timestamp(
        self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext, fire_timestamp_state: Any
    ) -> None:
        """At the end of the window the chain stops: a timer that is set again for the time at which it fires would
        fire without end."""
        following = min(time + self.interval, window.max_timestamp())
        if following > time:
            fire_timestamp_state.add(following)
            ctx.register_processing_time_timer(following)


class PurgingTrigger(Trigger[T, Window]):
    """Another trigger, after whose firing the window's elements are forgotten."""

    def __init__(self, nested_trigger: Trigger[Any, Any]) -> None:
        if not isinstance(nested_trigger, Trigger):
            raise TypeError(f"PurgingTrigger.of: takes a trigger (an instance of Trigger), got {nested_trigger!r}")
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger[Any, Any]) -> PurgingTrigger[Any]:
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: T, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        self.nested_trigger.clear(window, ctx)

    def __repr__(self) -> str:
        return f"PurgingTrigger({self.nested_trigger!r})"


class CountTrigger(Trigger[T, Window]):
    """Fires at every n-th element of a window. Fewer than n elements, left when bounded input ends, are not emitted."""

    def __init__(self, window_size: int) -> None:
        if isinstance(window_size, bool) or not isinstance(window_size, int):
            raise TypeError(f"CountTrigger.of: the number of elements has to be an int, got {window_size!r}")
        if window_size < 1:
            raise ConfigurationError(f"CountTrigger.of: the number of elements has to be at least 1, got {window_size}")
        self.window_size = window_size
        self._count_state_descriptor = ReducingStateDescriptor("count", _add, Types.LONG())

    @staticmethod
    def of(window_size: int) -> CountTrigger[Any]:
        return CountTrigger(window_size)

    def on_element(self, element: T, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        count: Any = ctx.get_partitioned_state(self._count_state_descriptor)
        count.add(1)
        if count.get() < self.window_size:
            return _CONTINUE
        count.clear()
        return _FIRE

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._count_state_descriptor)

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(self._count_state_descriptor).clear()

    def __repr__(self) -> str:
        return f"CountTrigger({self.window_size})"


class NeverTrigger(Trigger[T, Window]):
    """Never fires, not at the end of bounded input either: the default of GlobalWindows, to be replaced by another."""

    def on_element(self, element: T, timestamp: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: Trigger.TriggerContext) -> TriggerResult:
        return _CONTINUE

    def on_merge(self, window: Window, ctx: Trigger.OnMergeContext) -> None: ...

    def clear(self, window: Window, ctx: Trigger.TriggerContext) -> None: ...


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result


def _add(first: int, second: int) -> int:
    return first + second


def _positive_interval(owner: str, interval: Any) -> int:
    if isinstance(interval, bool) or not isinstance(interval, int):
        raise TypeError(f"{owner}: the interval is a number of milliseconds (int), got {interval!r}; see {owner}.of")
    if interval <= 0:
        raise ConfigurationError(f"{owner}: the interval has to be more than 0 ms, got {interval}")
    return interval
