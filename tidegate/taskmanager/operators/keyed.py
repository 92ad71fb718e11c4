"""Operators on keyed streams: the key of each record is made current before the user's function sees it.

`KeyedProcessOperator.process` is the hottest loop of the system (benchmark W1). Per record: the key selector, one
attribute write, the user's function, one `extend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from types import FunctionType
from typing import Any, NoReturn

from tidegate.common.errors import ConfigurationError, check_internal
from tidegate.common.ids import CheckpointId
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.functions import CheckpointedFunction
from tidegate.contracts.state import ValueStateDescriptor
from tidegate.contracts.time_domain import TimeDomain
from tidegate.graph.operator_specs import KeyedMapSpec, ReduceSpec
from tidegate.state.key_groups import is_unhashable, key_group, selector_without_lists, unhashable_key
from tidegate.state.keyed_states import HeapValueState
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import FunctionOperator, bind, last_taken
from tidegate.taskmanager.operators.batch_mode import ReadsByKeys
from tidegate.taskmanager.operators.results import emit_results
from tidegate.taskmanager.operators.rolling_fields import RETURNED_NONE, Loop, loop_for, reduce_loop
from tidegate.taskmanager.runtime_context import KeyedElementContext, KeyedTimerContext, KeyedTimerService
from tidegate.taskmanager.timers import OperatorTimers, TimerQueue


class NoCurrentKey:
    """Stands in for the key where there is none: touching keyed state or timers with it says what is wrong."""

    def __init__(self, operator_name: str, where: str, instead: str) -> None:
        self._operator_name = operator_name
        self._where = where
        self._instead = instead  # the state to use there

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"operator '{self._operator_name}': keyed state was used in {self._where}, where no key is current; use "
            f"{self._instead} state there, and keyed state and timers in process_element and on_timer"
        )

    def __hash__(self) -> int:
        self._refuse()

    def __reduce__(self) -> NoReturn:
        self._refuse()


class KeyedOperator(FunctionOperator, ReadsByKeys):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        check_internal(context.keyed is not None, f"keyed operator '{self.name}' without a keyed state backend")
        self.backend: Any = context.keyed
        self.selectors = [bind(s, "get_key") for s in context.node.key_selectors]
        self._known = [False] * len(self.selectors)  # inputs of which a key has been seen

    def selector(self, first: Any, side: int = 0) -> Callable[[Any], Any]:
        """The key selector of an input, for a batch that begins with this record. Refuses what cannot be a key, which
        is looked at once per batch: with parallelism 1 nothing else would notice."""
        try:
            if not self._known[side]:
                self.selectors[side] = selector_without_lists(self.selectors[side], first) or self.selectors[side]
            select = self.selectors[side]
            key = select(first)
            if is_unhashable(key):
                raise unhashable_key(key)
            key_group(key, self.context.max_parallelism)
        except Exception as error:
            self.fail("key_by()", error, first)
        self._known[side] = True
        return select

    def end_of_keys(self, keep: bool) -> None: ...

    def last_processing_timer(self) -> int | None:
        timers: OperatorTimers | None = getattr(self, "timers", None)
        return None if timers is None else timers.processing.last_timestamp()

    def forget_keys(self) -> None:
        timers: OperatorTimers | None = getattr(self, "timers", None)
        if timers is not None:
            timers.clear()
        self.backend.drop_all()

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        timers: OperatorTimers | None = getattr(self, "timers", None)
        if timers is not None:
            timers.save()
        if self.backend is not None and isinstance(self.function, CheckpointedFunction):
            self.backend.current_key = NoCurrentKey(self.name, "snapshot_state", "operator")
        super().update_state(checkpoint_id, timestamp)

    def finish(self) -> None:
        if self.backend is not None:
            self.backend.current_key = NoCurrentKey(self.name, "finish", "operator")
        super().finish()

    def fail_keyed(self, doing: str, error: BaseException, values: list[Any], rest: Iterator[Any]) -> NoReturn:
        """`fail_at`, with a better word when it was the key."""
        if isinstance(error, TypeError) and is_unhashable(getattr(self.backend, "current_key", None)):
            self.fail_at("key_by()", unhashable_key(self.backend.current_key), values, rest)
        self.fail_at(doing, error, values, rest)


class TimerOperator(KeyedOperator):
    """A keyed operator whose function may set timers: fires them and hands on what `on_timer` yields."""

    def open(self) -> None:
        # Before the function's open(), which may look at the clocks.
        self.timers = OperatorTimers(self.backend, self.limit)
        self.timer_service = KeyedTimerService(self)
        self._timer_context = KeyedTimerContext(self)
        self._on_timer = getattr(self.function, "on_timer", None)
        super().open()

    def fire_event_timers(self, limit: int) -> bool:
        context = self._timer_context
        context.domain = TimeDomain.EVENT_TIME
        return self._fire(self.timers.event, self.current_watermark, limit, keep_timestamp=True)

    def fire_processing_timers(self, now_ms: float, limit: int) -> bool:
        self._timer_context.domain = TimeDomain.PROCESSING_TIME
        return self._fire(self.timers.processing, int(now_ms), limit, keep_timestamp=False)

    def next_processing_timer(self) -> int | None:
        return self.timers.processing.next_timestamp()

    def _fire(self, queue: TimerQueue, up_to: int, limit: int, keep_timestamp: bool) -> bool:
        """As `OperatorTimers.fire` does, without a call around each of the user's function."""
        values: list[Any] = []
        stamps: list[int] = []
        backend, context, time_limit = self.backend, self._timer_context, self.limit
        on_timer = None if self._on_timer is None else self.own.many(self._on_timer)
        if limit:
            queue.merge_new()
        try:
            for timestamp, key, _ in queue.due(up_to, limit):
                if on_timer is not None:
                    backend.current_key = key
                    context.stamp = timestamp
                    results = on_timer(timestamp, context)
                    if results is not None:
                        values.extend(results)
                        stamps += [timestamp] * (len(values) - len(stamps))
                if time_limit.expired:
                    break
        except Exception as error:
            self.fail("on_timer()", error)
        self.own.look(values)
        emit_results(self, values, stamps if keep_timestamp else None)
        following = queue.next_timestamp()
        return following is None or following > up_to


class KeyedProcessOperator(TimerOperator):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._process = bind(self.function, "process_element")

    def open(self) -> None:
        super().open()
        self._element = KeyedElementContext(self)

    def process(self, batch: RecordBatch) -> None:
        function, element, backend = self.own.many(self._process), self._element, self.backend
        select = self.selector(batch.values[0])
        values: list[Any] = []
        extend = values.extend
        stamps: list[int] | None = None
        backend.prefetch(select, batch.values)
        taken, rest = self.limit.take(batch.values)
        try:
            if batch.timestamps is None:
                element.stamp = None
                for v in rest:
                    backend.current_key = select(v)
                    results = function(v, element)
                    if results is not None:
                        extend(results)
            else:
                stamps = []
                for v, t in zip(rest, batch.timestamps, strict=False):
                    backend.current_key = select(v)
                    element.stamp = t
                    results = function(v, element)
                    if results is not None:
                        extend(results)
                        stamps.extend(repeat(t, len(values) - len(stamps)))
        except Exception as error:
            self.fail_keyed("process_element()", error, taken, rest)
        self.own.look(values)
        self.taken(batch, taken)
        emit_results(self, values, stamps)


class KeyedMapOperator(KeyedOperator):
    """map, flat_map and filter with keyed state."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        spec = context.node.spec
        check_internal(isinstance(spec, KeyedMapSpec), "KeyedMapOperator needs a KeyedMapSpec")
        self._kind: str = spec.kind  # type: ignore[attr-defined]
        self._function = bind(self.function, self._kind)

    def process(self, batch: RecordBatch) -> None:
        function, backend, select = self._function, self.backend, self.selector(batch.values[0])
        if self._kind != "filter":
            function = self.own.one(function) if self._kind == "map" else self.own.many(function)
        backend.prefetch(select, batch.values)
        values: list[Any] = []
        stamps: list[int] = []
        old = batch.timestamps if batch.timestamps is not None else repeat(0, len(batch.values))
        taken, rest = self.limit.take(batch.values)
        kind = self._kind
        try:
            for v, t in zip(rest, old, strict=False):
                backend.current_key = select(v)
                result = function(v)
                if kind == "map":
                    values.append(result)
                elif kind == "filter":
                    if result:
                        values.append(v)
                elif result is not None:
                    values.extend(result)
                stamps.extend(repeat(t, len(values) - len(stamps)))
        except Exception as error:
            self.fail_keyed(f"{kind}()", error, taken, rest)
        self.own.look(values)
        self.taken(batch, taken)
        if values:
            self.output(RecordBatch(values, None if batch.timestamps is None else stamps))


class ReduceOperator(KeyedOperator):
    """Rolling reduce: one value per key, under a name that never changes, so that it survives a restart."""

    STATE_NAME = "_reduce_state"

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._reduce = bind(self.function, "reduce")

    def open(self) -> None:
        super().open()
        self._state = self.context.keyed_state(ValueStateDescriptor(self.STATE_NAME, self.node.output_type))
        spec = self.node.spec
        on_heap = type(self._state) is HeapValueState
        self._field = spec.field if on_heap and isinstance(spec, ReduceSpec) else None
        self._plain = on_heap and isinstance(self.function, FunctionType)

    def _loop(self, first: Any) -> Loop | None:
        """A faster one than that of `process`, for a batch that begins with this record."""
        if self._field is not None and type(first) is tuple:
            loop = loop_for(*self._field, len(first))
            if loop is not None:
                return loop
        return reduce_loop if self._plain else None

    def process(self, batch: RecordBatch) -> None:
        loop = None if self.own.careful else self._loop(batch.values[0])
        if loop is not None:
            self._process_with(loop, batch)
            return
        reduce, backend, select, kept = self._reduce, self.backend, self.selector(batch.values[0]), self.own.kept
        current, update = self._state.value, self._state.update
        backend.prefetch(select, batch.values)
        values: list[Any] = []
        append = values.append
        taken, rest = self.limit.take(batch.values)
        try:
            for v in rest:
                backend.current_key = select(v)
                so_far = current()
                if so_far is None:
                    result = v
                else:
                    result = reduce(so_far, v)
                    if result is None:
                        raise TypeError(RETURNED_NONE)
                update(result)
                append(kept(result))
        except Exception as error:
            self.fail_keyed("reduce()", error, taken, rest)
        self.own.look(values)
        self.output(RecordBatch(values, self.taken(batch, taken).timestamps))

    def _process_with(self, loop: Loop, batch: RecordBatch) -> None:
        select, values = self.selector(batch.values[0]), list[Any]()
        changed, below = self._state.contents()
        taken, rest = self.limit.take(batch.values)
        try:
            loop(rest, select, changed, below, values, self._reduce, self._process_one)
        except Exception as error:
            self.backend.current_key = self._key_of(taken, rest)
            self.fail_keyed("reduce()", error, taken, rest)
        self.own.look(values)
        self.output(RecordBatch(values, self.taken(batch, taken).timestamps))

    def _process_one(self, key: Any, value: Any) -> Any:
        self.backend.current_key = key
        so_far = self._state.value()
        result = value if so_far is None else self._reduce(so_far, value)
        self._state.update(result)
        return result

    def _key_of(self, values: list[Any], rest: Iterator[Any]) -> Any:
        """Of the record that a loop has failed at; None when its key is what has failed."""
        try:
            return self.selectors[0](values[last_taken(values, rest)])
        except Exception:
            return None
