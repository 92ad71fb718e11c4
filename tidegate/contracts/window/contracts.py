"""What a program may implement of its own: triggers and window assigners."""

from __future__ import annotations

import abc
import enum
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from tidegate.contracts.functions import RuntimeContext
    from tidegate.contracts.output_tag import OutputTag
    from tidegate.contracts.state import State, StateDescriptor

T = TypeVar("T")
W = TypeVar("W")
CW = TypeVar("CW")  # the window of a nested callback class


class TriggerResult(enum.Enum):
    """What happens to a window after a trigger was asked. Nothing is emitted for a window without elements."""

    CONTINUE = (False, False)  # nothing
    FIRE_AND_PURGE = (True, True)  # emit the result and forget the elements
    FIRE = (True, False)  # emit the result, keep the elements
    PURGE = (False, True)  # forget the elements, emit nothing

    def is_fire(self) -> bool:
        return self.value[0]

    def is_purge(self) -> bool:
        return self.value[1]


class Trigger(abc.ABC, Generic[T, W]):
    """Says when a window's result is emitted. One object serves all keys and windows: what it has to remember goes into
    `ctx.get_partitioned_state`, which is kept per key and window and is part of every checkpoint.

    Event-time timers fire when the watermark reaches them, at the end of bounded input at the latest. Processing-time
    timers that are not due when bounded input ends never fire.
    """

    class TriggerContext(abc.ABC):
        """Valid during the call only, for the key and window of the call."""

        @abc.abstractmethod
        def get_current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def get_metric_group(self) -> Any: ...

        @abc.abstractmethod
        def get_current_watermark(self) -> int: ...

        @abc.abstractmethod
        def register_processing_time_timer(self, time: int) -> None:
            """Have `on_processing_time` called when the clock has passed `time`."""

        @abc.abstractmethod
        def register_event_time_timer(self, time: int) -> None:
            """Have `on_event_time` called when the watermark has reached `time`."""

        @abc.abstractmethod
        def delete_processing_time_timer(self, time: int) -> None: ...

        @abc.abstractmethod
        def delete_event_time_timer(self, time: int) -> None: ...

        @abc.abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> State:
            """State of the trigger for the current key and window."""

    class OnMergeContext(TriggerContext):
        @abc.abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
            """Move the state of the windows that were merged into the new window's: list, reducing or aggregating
            state."""

    @abc.abstractmethod
    def on_element(self, element: T, timestamp: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        """An element was added to the window. `timestamp` is the smallest 64-bit number when the element has none."""

    @abc.abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult: ...

    @abc.abstractmethod
    def on_event_time(self, time: int, window: W, ctx: Trigger.TriggerContext) -> TriggerResult: ...

    def can_merge(self) -> bool:
        """Whether the trigger works with windows that merge (sessions), that is implements `on_merge`."""
        return False

    @abc.abstractmethod
    def on_merge(self, window: W, ctx: Trigger.OnMergeContext) -> None:
        """Several windows have become `window`: merge their state and set the timers of the new one."""

    @abc.abstractmethod
    def clear(self, window: W, ctx: Trigger.TriggerContext) -> None:
        """The window is dropped: delete its timers and its trigger state."""


class WindowAssigner(abc.ABC, Generic[T, W]):
    """Says which windows an element belongs to."""

    class WindowAssignerContext(abc.ABC):
        @abc.abstractmethod
        def get_current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def get_runtime_context(self) -> RuntimeContext:
            """The runtime context, through which an assigner gets keyed state of its own."""

    @abc.abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[W]:
        """All windows of the element. `timestamp` is the smallest 64-bit number when the element has none."""

    @abc.abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]: ...

    @abc.abstractmethod
    def get_window_serializer(self) -> Any:
        """The serializer of the windows, for programs that ask for it: Tidegate itself pickles the windows that it
        stores."""

    @abc.abstractmethod
    def is_event_time(self) -> bool:
        """True: windows end by the watermark, and elements can be late."""


class MergingWindowAssigner(WindowAssigner[T, W]):
    """An assigner whose windows may grow together."""

    class MergeCallback(abc.ABC, Generic[CW]):
        @abc.abstractmethod
        def merge(self, to_be_merged: Iterable[CW], merge_result: CW) -> None:
            """The given windows become `merge_result`."""

    @abc.abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: MergingWindowAssigner.MergeCallback[W]) -> None:
        """Call back for each group of windows that have to be merged."""


class WindowOperationDescriptor:
    """A window operation with everything that was set on it."""

    def __init__(
        self,
        assigner: WindowAssigner[Any, Any],
        trigger: Trigger[Any, Any],
        allowed_lateness: int,
        late_data_output_tag: OutputTag | None,
        window_state_descriptor: StateDescriptor,
        window_serializer: Any,
        internal_window_function: Any,
    ) -> None:
        self.assigner = assigner
        self.trigger = trigger
        self.allowed_lateness = allowed_lateness
        self.late_data_output_tag = late_data_output_tag
        self.window_state_descriptor = window_state_descriptor
        self.window_serializer = window_serializer
        self.internal_window_function = internal_window_function

    def generate_op_name(self) -> str:
        return type(self.assigner).__name__

    def generate_op_desc(self, windowed_stream_type: str, func_desc: str) -> str:
        return f"{windowed_stream_type}({self.assigner}, {type(self.trigger).__name__}, {func_desc})"
