"""WindowedStream and AllWindowedStream: a stream that has been cut into windows, and what can be done with them."""

from __future__ import annotations

import dis
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.contracts.functions import (
    AggregateFunction,
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from tidegate.contracts.output_tag import OutputTag
from tidegate.contracts.window import MergingWindowAssigner, NeverTrigger, Trigger, WindowAssigner
from tidegate.datastream.arguments import checked_function, checked_type_info
from tidegate.graph.operator_specs import WindowSpec

if TYPE_CHECKING:
    from tidegate.common.typeinfo import TypeInformation
    from tidegate.datastream.keyed_stream import KeyedStream
    from tidegate.datastream.stream import DataStream
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment


class _Windows:
    """What both share. Setters change the object and return it; `reduce`, `aggregate`, `apply` and `process` make the
    operator."""

    _apply_kind: type
    _process_kind: type
    _all_keys: bool

    def __init__(self, stream: KeyedStream, window_assigner: Any) -> None:
        method = "window_all" if self._all_keys else "window"
        if not isinstance(window_assigner, WindowAssigner):
            hint = "; make one, for example with its of()" if isinstance(window_assigner, type) else ""
            raise TypeError(
                f"{method}: takes a window assigner such as TumblingEventTimeWindows.of(Time.minutes(1)), got "
                f"{window_assigner!r}{hint}"
            )
        self._stream = stream
        self._assigner = window_assigner
        self._trigger = self._checked_trigger(
            method, window_assigner.get_default_trigger(stream.get_execution_environment())
        )
        self._allowed_lateness = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        return self._stream.get_type()

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Sets when results are emitted, in place of the assigner's default."""
        self._trigger = self._checked_trigger("trigger", trigger)
        return self

    def allowed_lateness(self, time_ms: TimeLike) -> Self:
        """How long after its end (in event time) a window is kept for late records, each of which makes it fire again.
        Has no effect on processing-time windows."""
        self._allowed_lateness = as_milliseconds(time_ms, "allowed_lateness: the time")
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Records that come too late go to this side output of the operator instead of being dropped."""
        if not isinstance(output_tag, OutputTag):
            raise TypeError(f"side_output_late_data: takes an OutputTag, got {type(output_tag).__name__}")
        self._late_tag = output_tag
        return self

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: Any = None,
        output_type: Any = None,
    ) -> DataStream:
        """The reduce of a window's records, kept up to date as they come. A window function gets it as the only
        element. The function has to be associative: partial results may be combined."""
        function = checked_function("reduce (of a window)", reduce_function, ReduceFunction, ("reduce",), plain=True)
        return self._operator("reduce", function, window_function, output_type, keep_type=window_function is None)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: Any = None,
        accumulator_type: Any = None,
        output_type: Any = None,
    ) -> DataStream:
        """The result of an AggregateFunction over a window's records. A window function gets it as the only element."""
        function = checked_function(
            "aggregate", aggregate_function, AggregateFunction, ("add", "get_result", "merge"), plain=False
        )
        checked_type_info(accumulator_type, "aggregate(accumulator_type)")
        return self._operator("aggregate", function, window_function, output_type)

    def apply(self, window_function: Any, output_type: Any = None) -> DataStream:
        """Calls the function with all records of a window."""
        function = checked_function("apply (of a window)", window_function, self._apply_kind, ("apply",), plain=False)
        return self._operator("elements", None, function, output_type)

    def process(self, process_window_function: Any, output_type: Any = None) -> DataStream:
        """Calls the function with all records of a window and a context: window, clocks, state."""
        function = checked_function(
            "process (of a window)", process_window_function, self._process_kind, ("process", "clear"), plain=False
        )
        return self._operator("elements", None, function, output_type)

    # ------------------------------------------------------------ building

    def _operator(
        self, kind: str, aggregation: Any, window_function: Any, output_type: Any, keep_type: bool = False
    ) -> DataStream:
        if window_function is not None:
            window_function = checked_function(
                f"{kind} (the window function)",
                window_function,
                (self._apply_kind, self._process_kind),
                ("apply", "process", "clear"),
                plain=False,
            )
        if isinstance(self._trigger, NeverTrigger):
            warnings.warn(
                f"{self._assigner!r} without a trigger never emits anything; set one with trigger(), for example "
                "PurgingTrigger.of(CountTrigger.of(100))",
                stacklevel=3,
            )
        spec = WindowSpec(
            assigner=self._assigner,
            trigger=self._trigger,
            kind=kind,
            aggregation=aggregation,
            function=window_function,
            all_keys=self._all_keys,
            allowed_lateness_ms=self._allowed_lateness,
            late_tag=self._late_tag,
            combinable=kind == "reduce" or (kind == "aggregate" and _has_merge(aggregation)),
        )
        stream = self._stream._one_input(type(self._assigner).__name__, spec, kind, output_type, keep_type)
        functions = [type(f).__name__ for f in (aggregation, window_function) if f is not None]
        stream.set_description(
            f"{type(self).__name__}({self._assigner!r}, {type(self._trigger).__name__}, {', '.join(functions)})"
        )
        return stream

    def _checked_trigger(self, method: str, trigger: Any) -> Trigger[Any, Any]:
        if not isinstance(trigger, Trigger):
            raise TypeError(f"{method}: takes a trigger (an instance of Trigger), got {trigger!r}")
        if isinstance(self._assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise ConfigurationError(
                f"{method}: {type(trigger).__name__} cannot be used with the merging windows of "
                f"{type(self._assigner).__name__}; use one whose can_merge() returns True, and which implements "
                "on_merge()"
            )
        return trigger


class WindowedStream(_Windows):
    """The windows of each key of a keyed stream."""

    _apply_kind = WindowFunction
    _process_kind = ProcessWindowFunction
    _all_keys = False


class AllWindowedStream(_Windows):
    """The windows of a whole stream, worked on by one subtask."""

    _apply_kind = AllWindowFunction
    _process_kind = ProcessAllWindowFunction
    _all_keys = True

    def __init__(self, stream: DataStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(stream.key_by(_the_only_key), window_assigner)

    def _operator(
        self, kind: str, aggregation: Any, window_function: Any, output_type: Any, keep_type: bool = False
    ) -> DataStream:
        return super()._operator(kind, aggregation, window_function, output_type, keep_type).force_non_parallel()


def _the_only_key(value: Any) -> int:
    return 0


def _has_merge(function: AggregateFunction) -> bool:
    """Whether `merge` seems to be implemented. It is abstract, and PyFlink calls it for sessions only, so many programs
    have one that raises, returns nothing, or returns one of its arguments."""
    try:
        merged = function.merge(function.create_accumulator(), function.create_accumulator())
    except Exception:
        return False
    return merged is not None and _looks_at_both(function.merge)


def _looks_at_both(merge: Callable[..., Any]) -> bool:
    """Whether the code of a function of two arguments mentions both of them."""
    code = getattr(merge, "__code__", None)
    if not isinstance(code, types.CodeType) or code.co_argcount < 2:
        return True
    mentioned: set[Any] = set()
    for instruction in dis.get_instructions(code):
        if not instruction.opname.startswith(("STORE", "DELETE")):
            mentioned.update(instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,))
    return mentioned.issuperset(code.co_varnames[code.co_argcount - 2 : code.co_argcount])
