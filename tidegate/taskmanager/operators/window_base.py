"""What all window operators share: calling the window function, emitting its results, late records.

How the contents of windows are kept differs, and with it the state; see `window.make_window_operator`. A layout has a
state name of its own, so that an operator never takes the state of another layout for its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NoReturn

from tidegate.common.errors import ConfigurationError, InternalError, SnapshotError
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.functions import (
    AllWindowFunction,
    KeyedStateStore,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from tidegate.contracts.state import StateDescriptor
from tidegate.contracts.window import MergingWindowAssigner, Window
from tidegate.graph.operator_specs import WindowSpec
from tidegate.taskmanager.checked_states import CheckedStates
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import bind
from tidegate.taskmanager.operators.keyed import KeyedOperator
from tidegate.taskmanager.operators.results import emit_results

LAYOUTS = {
    "_window/contents": "one entry per key and window",
    "_window/panes": "one entry per key and window, without timers",
    "_window/slices": "one partial result per key and slice",
}
_RUNTIME = str(Path(__file__).parents[1])


class BaseWindowOperator(KeyedOperator):
    layout: str  # state name, a key of LAYOUTS

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        spec = context.node.spec
        if not isinstance(spec, WindowSpec):
            raise InternalError(f"{type(self).__name__} needs a WindowSpec")
        self.spec = spec
        self.assigner = spec.assigner
        self.event_time: bool = spec.assigner.is_event_time()
        self.lateness: int = spec.allowed_lateness_ms if self.event_time else 0
        self.values: list[Any] = []  # results of the call under way
        self.stamps: list[int] = []
        self.late_values: list[Any] = []
        self.late_stamps: list[int] = []

    def open(self) -> None:
        for layout in LAYOUTS.keys() - {self.layout}:
            if any(True for _ in self.backend.keys(layout)):
                raise SnapshotError(
                    f"operator '{self.name}': the snapshot keeps the windows of this operator as {LAYOUTS[layout]}, "
                    f"but the job now keeps them as {LAYOUTS[self.layout]}. That changes with the kind of windows, the "
                    "trigger, the allowed lateness and the way they are aggregated: run these as before, or give the "
                    "operator a new uid and leave the old windows behind"
                )
        super().open()
        self._late_dropped = self.runtime_context.get_metrics_group().counter("numLateRecordsDropped")
        self._context = WindowContext(self)
        self._call = self._window_function()
        self._clear = None
        if isinstance(self.spec.function, (ProcessWindowFunction, ProcessAllWindowFunction)):
            self._clear = self.spec.function.clear
        self._open_aggregation()

    def _open_aggregation(self) -> None:
        """The window function is opened by the base class; what it is combined with may want to be opened too."""
        aggregation_open = getattr(self.spec.aggregation, "open", None)
        if self.spec.function is not None and aggregation_open is not None:
            try:
                aggregation_open(self.runtime_context)
            except Exception as error:
                self.fail("open()", error)

    def close(self) -> None:
        aggregation_close = getattr(self.spec.aggregation, "close", None)
        if self._opened and self.spec.function is not None and aggregation_close is not None:
            try:
                aggregation_close()
            except Exception as error:
                self.fail("close()", error)
        super().close()

    def now(self) -> int:
        return int(self.context.clock.now_ms())

    # ------------------------------------------------------------ results
    def _window_function(self) -> Callable[[Any, Any, list[Any]], Any] | None:
        """callable(key, window, elements), None when results are emitted as they are."""
        function = self.spec.function
        if isinstance(function, WindowFunction):
            return function.apply
        if isinstance(function, AllWindowFunction):
            return lambda key, window, elements: function.apply(window, elements)
        context: Any = self._context
        if isinstance(function, ProcessWindowFunction):
            return lambda key, window, elements: function.process(key, context.at(window), elements)
        if isinstance(function, ProcessAllWindowFunction):
            return lambda key, window, elements: function.process(context.at(window), elements)
        return None

    def evaluate(self, key: Any, window: Window, elements: list[Any]) -> None:
        """Emit the result of a window. `key` is the current one."""
        if self._call is None:
            self.values.append(self.own.kept(elements[0]))
        else:
            results = self.own.many(self._call)(key, window, elements)
            if results is not None:
                self.values.extend(results)
        self.stamps.extend(repeat(window.max_timestamp(), len(self.values) - len(self.stamps)))

    def dropped(self, window: Window) -> None:
        """The window of the current key is gone: tell the process function."""
        if self._clear is not None:
            self._clear(self._context.at(window))

    def flush(self) -> None:
        """Hand on what the call has gathered."""
        if self.values:
            values, stamps = self.values, self.stamps
            self.values, self.stamps = [], []
            self.own.look(values)
            emit_results(self, values, stamps)
        if self.late_values:
            values, stamps = self.late_values, self.late_stamps
            self.late_values, self.late_stamps = [], []
            if self.spec.late_tag is None:
                self._late_dropped.inc(len(values))
            else:
                late = self.side_outputs.get(self.spec.late_tag.tag_id)
                if late is not None:
                    late(RecordBatch(values, stamps))

    # ------------------------------------------------------------ errors
    def timestamps_of(self, batch: RecordBatch) -> list[int]:
        if batch.timestamps is None:
            self.fail(
                "assign_windows()",
                ConfigurationError(
                    "an event-time window got a record without a timestamp; call "
                    "assign_timestamps_and_watermarks(WatermarkStrategy...with_timestamp_assigner(...)) on the stream "
                    "before window()"
                ),
                batch.values[0],
            )
        return batch.timestamps

    def fail_in_window(self, error: BaseException, values: list[Any], rest: Iterator[Any]) -> NoReturn:
        self.fail_keyed(called_by_runtime(error), error, values, rest)


def called_by_runtime(error: BaseException) -> str:
    """The method that an error came out of, as `name()`: that of the outermost frame that is not the runtime's."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_RUNTIME):
            return f"{code.co_name}()" if code.co_name.isidentifier() else "the window's function"
        trace = trace.tb_next
    return "the window's function"


class WindowContext(ProcessWindowFunction.Context[Any], ProcessAllWindowFunction.Context[Any]):
    """For process functions on windows: one object, moved from window to window."""

    def __init__(self, operator: BaseWindowOperator) -> None:
        self._operator = operator
        self._window: Any = None
        self._window_state = WindowStateStore(operator)
        self._merging = isinstance(operator.assigner, MergingWindowAssigner)

    def at(self, window: Any) -> WindowContext:
        self._window = window
        self._operator.backend.current_namespace = window
        return self

    def window(self) -> Any:
        return self._window

    def current_processing_time(self) -> int:
        return self._operator.now()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def window_state(self) -> KeyedStateStore:
        if self._merging:
            raise ConfigurationError(
                f"operator '{self._operator.name}': there is no state per window for windows that merge (sessions); "
                "use global_state()"
            )
        return self._window_state

    def global_state(self) -> KeyedStateStore:
        return self._operator.runtime_context


class WindowStateStore(CheckedStates):
    """State of a process function per key and window. Not the state of the same name in the global store."""

    PREFIX = "_window_state/"

    def __init__(self, operator: BaseWindowOperator) -> None:
        self._context = operator.context

    def _keyed_state(self, descriptor: StateDescriptor) -> Any:
        return self._context.keyed_state(renamed(descriptor, self.PREFIX), namespaced=True)


def renamed(descriptor: StateDescriptor, prefix: str) -> StateDescriptor:
    """The same state under a name that cannot be that of another state of the operator."""
    copied = copy.copy(descriptor)
    copied.name = prefix + descriptor.get_name()
    return copied


def aggregation_calls(spec: WindowSpec) -> tuple[Callable[[Any], Any], Callable[[Any, Any], Any], Any, Any]:
    """(first(value) -> accumulator, add(accumulator, value), result(accumulator) or None, merge(a, b)) of an
    incremental aggregation."""
    function = spec.aggregation
    if spec.kind == "reduce":
        reduce = bind(function, "reduce")
        return lambda value: value, reduce, None, reduce
    create, add = function.create_accumulator, function.add
    return (
        lambda value: add(value, create()),
        lambda accumulator, value: add(value, accumulator),
        function.get_result,
        function.merge,
    )
