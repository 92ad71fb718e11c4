"""Process functions that join a stream with a broadcast one, through broadcast state."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.contracts.functions.base import Function
from tidegate.contracts.timer_service import TimerService

if TYPE_CHECKING:
    from tidegate.contracts.state import BroadcastState, MapStateDescriptor, ReadOnlyBroadcastState
    from tidegate.contracts.time_domain import TimeDomain


class BaseBroadcastProcessFunction(Function):
    """What both broadcast process functions share: the contexts."""

    class _BaseContext(abc.ABC):
        @abc.abstractmethod
        def timestamp(self) -> int | None: ...

        @abc.abstractmethod
        def current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def current_watermark(self) -> int: ...

    class Context(_BaseContext):
        """The context of records of the broadcast side, which may write the broadcast state."""

        @abc.abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]: ...

    class ReadOnlyContext(_BaseContext):
        """The context of records of the other side, which may only read the broadcast state."""

        @abc.abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]: ...


class BroadcastProcessFunction(BaseBroadcastProcessFunction):
    class Context(BaseBroadcastProcessFunction.Context):
        """Valid during the call only."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """Valid during the call only."""

    @abc.abstractmethod
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any] | None: ...

    @abc.abstractmethod
    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Iterable[Any] | None: ...


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction):
    class Context(BaseBroadcastProcessFunction.Context):
        """Valid during the call only."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        @abc.abstractmethod
        def timer_service(self) -> TimerService: ...

        @abc.abstractmethod
        def get_current_key(self) -> Any: ...

    class OnTimerContext(ReadOnlyContext):
        @abc.abstractmethod
        def time_domain(self) -> TimeDomain: ...

    @abc.abstractmethod
    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any] | None: ...

    @abc.abstractmethod
    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Any] | None: ...

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Called when a timer fires, with its key as the current one."""
        return None
