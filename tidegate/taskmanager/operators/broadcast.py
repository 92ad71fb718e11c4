"""A stream, with or without keys, connected to a broadcast one: every subtask keeps the broadcast state, the broadcast
side writes it, the other side reads it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from tidegate.contracts.state import MapStateDescriptor, ReadOnlyBroadcastState
from tidegate.contracts.time_domain import TimeDomain
from tidegate.contracts.timer_service import TimerService
from tidegate.graph.operator_specs import BroadcastProcessSpec
from tidegate.state.operator_state import HeapBroadcastState
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import FunctionOperator
from tidegate.taskmanager.operators.keyed import NoCurrentKey, TimerOperator
from tidegate.taskmanager.operators.results import emit_results


class BroadcastOperator(TimerOperator):
    """Runs `process_element` for input 0 and `process_broadcast_element` for input 1."""

    def __init__(self, context: OperatorContext) -> None:
        spec = context.node.spec
        if not isinstance(spec, BroadcastProcessSpec):
            raise TypeError("BroadcastOperator needs a BroadcastProcessSpec")
        self._keyed = spec.is_keyed
        self._descriptors = spec.descriptors
        if self._keyed:
            super().__init__(context)
        else:
            FunctionOperator.__init__(self, context)
            self.backend = None
        self._process = self.function.process_element
        self._process_broadcast = self.function.process_broadcast_element

    def open(self) -> None:
        store = self.context.operator_state
        self._states = {d.get_name(): store.get_broadcast_state(d) for d in self._descriptors}
        self._writing = _WritingContext(self)
        if self._keyed:
            super().open()
            self._reading: _ReadingContext = _KeyedReadingContext(self)
            self._timer_context: Any = _TimerContext(self)
        else:
            FunctionOperator.open(self)
            self._reading = _ReadingContext(self)

    def broadcast_state(self, descriptor: MapStateDescriptor) -> HeapBroadcastState:
        name = descriptor.get_name() if isinstance(descriptor, MapStateDescriptor) else descriptor
        state = self._states.get(name)
        if state is None:
            raise ConfigurationError(
                f"operator '{self.name}' has no broadcast state {name!r}: give its descriptor to broadcast(). There "
                f"is: {', '.join(sorted(self._states))}"
            )
        return state

    def fire_event_timers(self, limit: int) -> bool:
        return super().fire_event_timers(limit) if self._keyed else True

    def next_processing_timer(self) -> int | None:
        return super().next_processing_timer() if self._keyed else None

    def process(self, batch: RecordBatch) -> None:
        select = self.selector(batch.values[0]) if self._keyed else None
        if select is not None:
            self.backend.prefetch(select, batch.values)
        self._run(batch, self._process, self._reading, select, "process_element()")

    def process_second(self, batch: RecordBatch) -> None:
        if self._keyed:
            self.backend.current_key = NoCurrentKey(self.name, "process_broadcast_element", "broadcast")
        self._run(batch, self._process_broadcast, self._writing, None, "process_broadcast_element()")

    def _run(
        self,
        batch: RecordBatch,
        function: Callable[..., Any],
        context: _Clocks,
        select: Callable[[Any], Any] | None,
        doing: str,
    ) -> None:
        backend, function = self.backend, self.own.many(function)
        values: list[Any] = []
        stamps: list[int] = []
        old = batch.timestamps if batch.timestamps is not None else repeat(None, len(batch.values))
        taken, rest = self.limit.take(batch.values)
        try:
            for v, t in zip(rest, old, strict=False):
                if select is not None:
                    backend.current_key = select(v)
                context.stamp = t
                results = function(v, context)
                if results is not None:
                    values.extend(results)
                if t is not None:
                    stamps.extend(repeat(t, len(values) - len(stamps)))
        except Exception as error:
            if select is not None:
                self.fail_keyed(doing, error, taken, rest)
            self.fail_at(doing, error, taken, rest)
        self.own.look(values)
        self.taken(batch, taken)
        emit_results(self, values, None if batch.timestamps is None else stamps)


# ---------------------------------------------------------------- contexts


class _Clocks:
    """One object for all records of one side; `stamp` is set before each call."""

    def __init__(self, operator: BroadcastOperator) -> None:
        self._operator = operator
        self.stamp: int | None = None

    def timestamp(self) -> int | None:
        return self.stamp

    def current_processing_time(self) -> int:
        return int(self._operator.context.clock.now_ms())

    def current_watermark(self) -> int:
        return self._operator.current_watermark


class _WritingContext(_Clocks, BroadcastProcessFunction.Context, KeyedBroadcastProcessFunction.Context):
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> HeapBroadcastState:
        return self._operator.broadcast_state(state_descriptor)

    def timer_service(self) -> TimerService:
        """Flink has none here; this says why."""
        raise ConfigurationError(
            f"operator '{self._operator.name}': no key is current in process_broadcast_element, so it has no timers; "
            "set them in process_element or on_timer. The clocks are ctx.current_watermark() and "
            "ctx.current_processing_time()"
        )


class _ReadingContext(_Clocks, BroadcastProcessFunction.ReadOnlyContext):
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        return ReadOnlyView(self._operator.broadcast_state(state_descriptor))


class _KeyedReadingContext(_ReadingContext, KeyedBroadcastProcessFunction.ReadOnlyContext):
    def timer_service(self) -> TimerService:
        return self._operator.timer_service

    def get_current_key(self) -> Any:
        return self._operator.backend.current_key


class _TimerContext(_KeyedReadingContext, KeyedBroadcastProcessFunction.OnTimerContext):
    """`domain` is set by the operator before it fires timers."""

    domain = TimeDomain.EVENT_TIME

    def time_domain(self) -> TimeDomain:
        return self.domain


class ReadOnlyView(ReadOnlyBroadcastState[Any, Any]):
    def __init__(self, state: HeapBroadcastState) -> None:
        self._state = state

    def get(self, key: Any) -> Any:
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        return self._state.contains(key)

    def items(self) -> list[tuple[Any, Any]]:
        return self._state.items()

    def keys(self) -> list[Any]:
        return self._state.keys()

    def values(self) -> list[Any]:
        return self._state.values()

    def is_empty(self) -> bool:
        return self._state.is_empty()

    def clear(self) -> None:
        raise ConfigurationError(
            "broadcast state is read-only on this side: change it in process_broadcast_element, which all subtasks run"
        )

    def put(self, key: Any, value: Any) -> None:
        self.clear()

    def put_all(self, dict_value: Any) -> None:
        self.clear()

    def remove(self, key: Any) -> None:
        self.clear()
