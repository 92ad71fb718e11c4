"""Process functions: they see a record with its time and, on keyed streams, have timers.

They yield results; `yield tag, value` with an OutputTag sends the value to that side output.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.contracts.functions.base import Function
from tidegate.contracts.timer_service import TimerService

if TYPE_CHECKING:
    from tidegate.contracts.time_domain import TimeDomain


class _ElementContext(abc.ABC):
    @abc.abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the record (or of the timer), None when it has none."""

    @abc.abstractmethod
    def timer_service(self) -> TimerService: ...


class _KeyedElementContext(_ElementContext):
    @abc.abstractmethod
    def get_current_key(self) -> Any: ...


class _KeyedTimerContext(_KeyedElementContext):
    @abc.abstractmethod
    def time_domain(self) -> TimeDomain:
        """Which clock the timer followed."""


class ProcessFunction(Function):
    """One record in, any number out, on a stream without keys: may read the clocks but sets no timers."""

    class Context(_ElementContext):
        """Valid during the call only."""

    @abc.abstractmethod
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any] | None: ...


class KeyedProcessFunction(Function):
    """One record in, any number out, with keyed state and timers."""

    class Context(_KeyedElementContext):
        """Valid during the call only."""

    class OnTimerContext(_KeyedTimerContext):
        """Valid during the call only."""

    @abc.abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None: ...

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Called when a timer fires, with its key as the current one."""
        return None


class CoProcessFunction(Function):
    """A record of either of two inputs in, any number out, without keyed state and timers."""

    class Context(_ElementContext):
        """Valid during the call only."""

    @abc.abstractmethod
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any] | None: ...

    @abc.abstractmethod
    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any] | None: ...


class KeyedCoProcessFunction(Function):
    """Two inputs that share keyed state and timers: both are keyed, by keys of the same type."""

    class Context(_KeyedElementContext):
        """Valid during the call only."""

    class OnTimerContext(_KeyedTimerContext):
        """Valid during the call only."""

    @abc.abstractmethod
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None: ...

    @abc.abstractmethod
    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any] | None: ...

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Called when a timer fires, with its key as the current one."""
        return None
