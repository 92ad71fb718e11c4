"""The general window operator: any assigner, any trigger, merging windows; one state entry per key and window.

Two common cases have operators of their own, with the same results and less work per record: tumbling windows
(`window_panes`) and sliding windows (`window_slices`) that are aggregated as records come and fire when they end.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tidegate.common.errors import ConfigurationError, InternalError
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.functions import ProcessAllWindowFunction, ProcessWindowFunction, RuntimeContext
from tidegate.contracts.window import (
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    EventTimeTrigger,
    MergingWindowAssigner,
    ProcessingTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from tidegate.graph.operator_specs import WindowSpec
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.operators.window_base import BaseWindowOperator, called_by_runtime
from tidegate.taskmanager.operators.window_contents import make_contents
from tidegate.taskmanager.operators.window_heap_slices import HeapSliceWindowOperator
from tidegate.taskmanager.operators.window_merging import MergingWindowSet
from tidegate.taskmanager.operators.window_panes import PaneWindowOperator
from tidegate.taskmanager.operators.window_slices import SliceWindowOperator
from tidegate.taskmanager.operators.window_triggers import TriggerContext
from tidegate.taskmanager.timers import OperatorTimers

_CONTINUE = TriggerResult.CONTINUE


def make_window_operator(context: OperatorContext) -> Operator:
    """The operator for a WindowSpec. The choice depends on the spec only: the state is laid out by it."""
    spec = context.node.spec
    if not isinstance(spec, WindowSpec):
        raise InternalError("a window operator needs a WindowSpec")
    assigner = type(spec.assigner)
    at_the_end = type(spec.trigger) is (EventTimeTrigger if spec.assigner.is_event_time() else ProcessingTimeTrigger)
    if at_the_end and spec.kind != "elements":
        if assigner is TumblingProcessingTimeWindows:
            return PaneWindowOperator(context)
        if assigner is TumblingEventTimeWindows and spec.allowed_lateness_ms == 0:
            return PaneWindowOperator(context)
        if assigner is SlidingProcessingTimeWindows and spec.combinable:
            return _slices_operator(context, spec)
        # A process function is told when each window is dropped, which slices kept for late records do not say.
        told = isinstance(spec.function, (ProcessWindowFunction, ProcessAllWindowFunction))
        if assigner is SlidingEventTimeWindows and spec.combinable and not (told and spec.allowed_lateness_ms > 0):
            return _slices_operator(context, spec)
    return WindowOperator(context)


def _slices_operator(context: OperatorContext, spec: WindowSpec) -> Operator:
    """Both lay out the state alike."""
    if isinstance(context.keyed, HeapKeyedStateBackend) and spec.allowed_lateness_ms == 0:
        return HeapSliceWindowOperator(context)
    return SliceWindowOperator(context)


class WindowOperator(BaseWindowOperator):
    layout = "_window/contents"

    def open(self) -> None:
        super().open()
        self.timers = OperatorTimers(self.backend, self.limit)
        self._trigger = self.spec.trigger
        self._trigger_context = TriggerContext(self, self.timers)
        self._assigner_context = AssignerContext(self)
        self._contents = make_contents(self.backend, self.layout, self.spec)
        self._merging = None
        if isinstance(self.assigner, MergingWindowAssigner):
            self._merging = MergingWindowSet(self.backend, self.assigner)
        # A count window that has fired gets no more elements, and no timer would ever drop it.
        self._drops_when_fired = (
            isinstance(self.assigner, (CountTumblingWindowAssigner, CountSlidingWindowAssigner))
            and type(self._trigger) is CountTrigger
            and self._trigger.window_size == self.assigner.window_size
        )

    # ------------------------------------------------------------ records
    def process(self, batch: RecordBatch) -> None:
        backend, select = self.backend, self.selector(batch.values[0])
        assign, context = self.assigner.assign_windows, self._assigner_context
        add = self._add if self._merging is None else partial(self._add_merging, self._merging)
        event_time, lateness, watermark = self.event_time, self.lateness, self.current_watermark
        stamps = self.timestamps_of(batch) if event_time else batch.timestamps
        if stamps is None:
            stamps = [MIN_WATERMARK] * len(batch.values)
        taken, rest = self.limit.take(batch.values)
        try:
            for value, stamp in zip(rest, stamps, strict=False):
                backend.current_key = select(value)
                added = add(value, stamp, assign(value, stamp, context))
                if not added and event_time and stamp + lateness <= watermark:
                    self.late_values.append(value)
                    self.late_stamps.append(stamp)
        except Exception as error:
            self.fail_in_window(error, taken, rest)
        self.taken(batch, taken)
        self.flush()

    def _add(self, value: Any, stamp: int, windows: Any) -> bool:
        """False: all windows of the record are over."""
        backend, context = self.backend, self._trigger_context
        taken = False
        for window in windows:
            if self._is_over(window):
                continue
            taken = True
            backend.current_namespace = window
            self._contents.add(value)
            context.window = window
            result = self._trigger.on_element(value, stamp, window, context)
            if result is not _CONTINUE:
                self._act(result, window, window)
                if self._drops_when_fired and result.is_fire():
                    self._drop(window, window)
                    continue
            self._register_clean_up(window)
        return taken

    def _add_merging(self, merging: MergingWindowSet, value: Any, stamp: int, windows: Any) -> bool:
        backend, context = self.backend, self._trigger_context
        merging.load()
        taken = False
        for assigned in windows:
            window = merging.add(assigned, self._merged)
            if self._is_over(window):
                merging.retire(window)
                continue
            taken = True
            state_window = backend.current_namespace = merging.state_window(window)
            self._contents.add(value)
            context.window = window
            result = self._trigger.on_element(value, stamp, window, context)
            if result is not _CONTINUE:
                self._act(result, window, state_window)
            self._register_clean_up(window)
        merging.save()
        return taken

    def _merged(self, window: Any, members: list[Any], target: Any, sources: list[Any]) -> None:
        now = self.current_watermark if self.event_time else self.now()
        if self._clean_up_time(window) <= now:
            raise ConfigurationError(
                f"the window assigner merged {members} into {window}, which is over already ({now}): the end of a "
                "window must not become earlier by merging"
            )
        context = self._trigger_context
        context.window, context.merged = window, members
        self._trigger.on_merge(window, context)
        for member in members:
            if member != window:
                context.window = member
                self._trigger.clear(member, context)
                self._delete_clean_up(member)
        self._contents.merge(target, sources)

    # ------------------------------------------------------------ timers
    def fire_event_timers(self, limit: int) -> bool:
        return self._fire(True, self.current_watermark, limit)

    def fire_processing_timers(self, now_ms: float, limit: int) -> bool:
        # A timer at the last millisecond of a window fires when that is over: a record that comes in it belongs in.
        return self._fire(False, int(now_ms) - 1, limit)

    def next_processing_timer(self) -> int | None:
        due = self.timers.processing.next_timestamp()
        return None if due is None else due + 1

    def _fire(self, event_time: bool, up_to: int, limit: int) -> bool:
        queue = self.timers.event if event_time else self.timers.processing
        ask = self._trigger.on_event_time if event_time else self._trigger.on_processing_time
        cleans_up = event_time == self.event_time
        context, merging = self._trigger_context, self._merging

        def fire(timestamp: int, key: Any, window: Any) -> None:
            state_window = window
            self.backend.current_key = key
            if merging is not None:
                merging.load()
                state_window = merging.state_window(window)
                if state_window is None:
                    return  # of a window that has been merged or dropped
            context.window = window
            result = ask(timestamp, window, context)
            if result is not _CONTINUE:
                self._act(result, window, state_window)
            if cleans_up and timestamp == self._clean_up_time(window):
                self._drop(window, state_window)
            if merging is not None:
                merging.save()

        try:
            done = self.timers.fire(queue, up_to, limit, fire)
        except Exception as error:
            self.fail(called_by_runtime(error), error)
        self.flush()
        return done

    # ------------------------------------------------------------ one window of the current key
    def _act(self, result: Any, window: Any, state_window: Any) -> None:
        backend = self.backend
        if not isinstance(result, TriggerResult):
            raise ConfigurationError(
                f"the trigger {type(self._trigger).__name__} returned {result!r} instead of a TriggerResult"
            )
        if result.is_fire():
            backend.current_namespace = state_window
            elements = self._contents.get()
            if elements:
                self.evaluate(backend.current_key, window, elements)
        if result.is_purge():
            backend.current_namespace = state_window
            self._contents.clear()

    def _drop(self, window: Any, state_window: Any) -> None:
        self.backend.current_namespace = state_window
        self._contents.clear()
        self._trigger_context.window = window
        self._trigger.clear(window, self._trigger_context)
        self.dropped(window)
        if self._merging is not None:
            self._merging.retire(window)

    def _clean_up_time(self, window: Any) -> int:
        """When a window is dropped; MAX_WATERMARK: never."""
        latest: int = window.max_timestamp() + self.lateness
        return min(latest, MAX_WATERMARK)

    def _is_over(self, window: Any) -> bool:
        return self.event_time and self._clean_up_time(window) <= self.current_watermark

    def _register_clean_up(self, window: Any) -> None:
        time = self._clean_up_time(window)
        if time < MAX_WATERMARK:
            queue = self.timers.event if self.event_time else self.timers.processing
            queue.register(time, self.backend.current_key, window)

    def _delete_clean_up(self, window: Any) -> None:
        queue = self.timers.event if self.event_time else self.timers.processing
        queue.delete(self._clean_up_time(window), self.backend.current_key, window)


class AssignerContext(WindowAssigner.WindowAssignerContext):
    def __init__(self, operator: BaseWindowOperator) -> None:
        self._operator = operator

    def get_current_processing_time(self) -> int:
        return self._operator.now()

    def get_runtime_context(self) -> RuntimeContext:
        return self._operator.runtime_context
