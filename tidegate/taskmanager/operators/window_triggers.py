"""The context that triggers are given, with their state and timers per key and window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.functions import AggregateFunction
from tidegate.contracts.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from tidegate.contracts.window import Trigger
from tidegate.taskmanager.operators.window_base import BaseWindowOperator, renamed
from tidegate.taskmanager.timers import OperatorTimers


class TriggerContext(Trigger.OnMergeContext):
    """One object for all windows: `window` is set before each call, `merged` before `on_merge`."""

    PREFIX = "_trigger/"

    def __init__(self, operator: BaseWindowOperator, timers: OperatorTimers) -> None:
        self.window: Any = None
        self.merged: Sequence[Any] = ()
        self._operator = operator
        self._backend = operator.backend
        self._event = timers.event
        self._processing = timers.processing
        self._states: dict[str, tuple[str, Any]] = {}  # name -> (kind, state object)

    def get_current_processing_time(self) -> int:
        return self._operator.now()

    def get_metric_group(self) -> Any:
        return self._operator.runtime_context.get_metrics_group()

    def get_current_watermark(self) -> int:
        return self._operator.current_watermark

    def register_processing_time_timer(self, time: int) -> None:
        self._processing.register(time, self._backend.current_key, self.window)

    def register_event_time_timer(self, time: int) -> None:
        self._event.register(time, self._backend.current_key, self.window)

    def delete_processing_time_timer(self, time: int) -> None:
        self._processing.delete(time, self._backend.current_key, self.window)

    def delete_event_time_timer(self, time: int) -> None:
        self._event.delete(time, self._backend.current_key, self.window)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        self._backend.current_namespace = self.window
        kind, state = self._states.get(state_descriptor.name, ("", None))
        if kind != state_descriptor.kind:
            state = self._make_state(renamed(state_descriptor, self.PREFIX))
            self._states[state_descriptor.name] = (state_descriptor.kind, state)
        return state

    def _make_state(self, descriptor: StateDescriptor) -> Any:
        if isinstance(descriptor, AggregatingStateDescriptor):
            inner = self._backend.get_state(ValueStateDescriptor(descriptor.name), namespaced=True)
            return _MergeableAggregate(inner, descriptor.get_agg_function())
        return self._backend.get_state(descriptor, namespaced=True)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        state = self.get_partitioned_state(state_descriptor)
        kind = state_descriptor.kind
        if kind not in ("list", "reducing", "aggregating"):
            raise ConfigurationError(
                f"merge_partitioned_state: the {kind} state '{state_descriptor.name}' of the trigger cannot be merged; "
                "use list, reducing or aggregating state"
            )
        for window in self.merged:
            self._backend.current_namespace = window
            taken = state.accumulator() if kind == "aggregating" else state.get()
            state.clear()
            self._backend.current_namespace = self.window
            if kind == "list":
                state.add_all(list(taken))
            elif taken is not None:
                state.merge(taken) if kind == "aggregating" else state.add(taken)


class _MergeableAggregate(AggregatingState[Any, Any]):
    """Aggregating state of which the accumulator can be had: the backends' own show results only."""

    def __init__(self, inner: Any, function: AggregateFunction) -> None:
        self._inner = inner
        self._function = function
        self.accumulator = inner.value
        self.clear = inner.clear  # type: ignore[method-assign]

    def get(self) -> Any:
        accumulator = self._inner.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        accumulator = self._inner.value()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._inner.update(self._function.add(value, accumulator))

    def merge(self, other: Any) -> None:
        accumulator = self._inner.value()
        self._inner.update(other if accumulator is None else self._function.merge(accumulator, other))

    def clear(self) -> None:
        self._inner.clear()
