"""What the user implements: functions, and the contexts they are given.

Every function may override `open` and `close`. The runtime calls, on one thread, in this order::

    initialize_state (CheckpointedFunction only)   open   <records, timers, snapshot_state>*   close

`close` is also called after a failure, once, when `open` was called. An instance is pickled to the workers: create
connections, locks and the like in `open`, not in the constructor.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidegate.contracts.timer_service import TimerService

if TYPE_CHECKING:
    from tidegate.common.accumulators import Accumulator
    from tidegate.common.metrics import MetricGroup
    from tidegate.contracts.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        BroadcastState,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReadOnlyBroadcastState,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )
    from tidegate.contracts.time_domain import TimeDomain

IN = TypeVar("IN")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")
W = TypeVar("W")
CW = TypeVar("CW")  # the window of a nested Context class

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncFunctionDescriptor",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CheckpointListener",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "SinkFunction",
    "SourceFunction",
    "TimerService",
    "WindowFunction",
]


# ---------------------------------------------------------------- contexts


class KeyedStateStore(abc.ABC):
    """Hands out keyed state. Each object reads and writes the entry of the key that is being processed; asking twice
    for the same name gives the same object."""

    @abc.abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]: ...

    @abc.abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]: ...

    @abc.abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]: ...

    @abc.abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]: ...

    @abc.abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]: ...


class RuntimeContext(KeyedStateStore):
    """Where a function runs. Given to `Function.open`, valid until `close`. Keyed state only on a keyed stream."""

    @abc.abstractmethod
    def get_task_name(self) -> str: ...

    @abc.abstractmethod
    def get_number_of_parallel_subtasks(self) -> int: ...

    @abc.abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int: ...

    @abc.abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """0 .. parallelism-1."""

    @abc.abstractmethod
    def get_attempt_number(self) -> int:
        """0 for the first attempt, one more after each restart."""

    @abc.abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """For example `Count (2/4)#0`."""

    @abc.abstractmethod
    def get_job_parameter(self, key: str, default_value: str) -> str: ...

    @abc.abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """The metrics of this function in this subtask."""

    @abc.abstractmethod
    def add_accumulator(self, name: str, accumulator: Accumulator) -> None:
        """Make an accumulator part of the job's result. The same name in other functions and subtasks is the same
        accumulator, and has to be of the same class."""

    @abc.abstractmethod
    def get_accumulator(self, name: str) -> Accumulator:
        """What this subtask has added under the name."""

    @abc.abstractmethod
    def get_cached_file(self, name: str) -> str:
        """The local path of a file that was registered with `register_cached_file`, or of the folder of an archive
        that was added with `add_python_archive`."""


# ---------------------------------------------------------------- the base, and what a function may add to it


class Function(abc.ABC):  # noqa: B024 (PyFlink's base has no abstract method either)
    """Base of all functions of the user."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once per subtask before the first record: the place for state, connections and caches."""

    def close(self) -> None:
        """Called once after the last record or a failure."""


class CheckpointedFunction(abc.ABC):
    """Add to any function that keeps state of its own outside keyed state (operator state)."""

    @abc.abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Called when a checkpoint is taken: bring the operator state up to date. Must not block."""

    @abc.abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Called before `open`, on a fresh start and after a recovery: register state, read what was restored."""


class CheckpointListener:
    """Add to any function that wants to know what became of a checkpoint."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete everywhere. Not promised for each one: a later one includes all before it."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never be complete. Not promised for each one."""


# ---------------------------------------------------------------- one record at a time


class MapFunction(Function):
    @abc.abstractmethod
    def map(self, value: Any) -> Any:
        """One record in, one record out."""


class CoMapFunction(Function):
    @abc.abstractmethod
    def map1(self, value: Any) -> Any:
        """A record of the first input in, one record out."""

    @abc.abstractmethod
    def map2(self, value: Any) -> Any:
        """A record of the second input in, one record out."""


class FlatMapFunction(Function):
    @abc.abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """One record in, any number out: yield them, or return an iterable or None."""


class CoFlatMapFunction(Function):
    @abc.abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None: ...

    @abc.abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None: ...


class ReduceFunction(Function):
    @abc.abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine the value so far with the next one; must not change its arguments."""


class AggregateFunction(Function):
    """Folds values of one type into an accumulator and makes a result of it."""

    @abc.abstractmethod
    def create_accumulator(self) -> Any: ...

    @abc.abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with `value` in it (a new one, or the same one changed)."""

    @abc.abstractmethod
    def get_result(self, accumulator: Any) -> Any: ...

    @abc.abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Only called for windows that merge (sessions)."""


class KeySelector(Function):
    @abc.abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key of a record: hashable, and the same every time it is asked for the same record."""


class FilterFunction(Function):
    @abc.abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether the record stays."""


class Partitioner(Function):
    @abc.abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """The downstream subtask for a key, 0 .. num_partitions-1."""


class SourceFunction(Function):
    """The old style of source, which pushes records. New code implements the replayable `connectors.base.Source`."""

    class SourceContext(abc.ABC):
        @abc.abstractmethod
        def collect(self, value: Any) -> None: ...

        @abc.abstractmethod
        def collect_with_timestamp(self, value: Any, timestamp: int) -> None: ...

    @abc.abstractmethod
    def run(self, ctx: SourceFunction.SourceContext) -> None: ...

    @abc.abstractmethod
    def cancel(self) -> None: ...


class SinkFunction(Function):
    """The old style of sink: one call per record, no commit. After a recovery a record may be written again."""

    class Context(abc.ABC):
        @abc.abstractmethod
        def current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def current_watermark(self) -> int: ...

        @abc.abstractmethod
        def timestamp(self) -> int | None:
            """Event time of the record, None when it has none."""

    @abc.abstractmethod
    def invoke(self, value: Any, context: SinkFunction.Context) -> None: ...


# ---------------------------------------------------------------- process functions
# They yield results; `yield tag, value` with an OutputTag goes to that side output.


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
    """Two inputs, without keys."""

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


# ---------------------------------------------------------------- broadcast state


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
        """For records of the broadcast side: may write."""

        @abc.abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]: ...

    class ReadOnlyContext(_BaseContext):
        """For records of the other side: may only read."""

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


# ---------------------------------------------------------------- windows


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    @abc.abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Iterable[OUT]: ...


class AllWindowFunction(Function, Generic[IN, OUT, W]):
    @abc.abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Iterable[OUT]: ...


class _WindowContext(abc.ABC, Generic[W]):
    @abc.abstractmethod
    def window(self) -> W: ...

    @abc.abstractmethod
    def window_state(self) -> KeyedStateStore:
        """State of this key and this window; clear it in `clear`."""

    @abc.abstractmethod
    def global_state(self) -> KeyedStateStore:
        """State of this key over all windows."""


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    class Context(_WindowContext[CW]):
        @abc.abstractmethod
        def current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def current_watermark(self) -> int: ...

    @abc.abstractmethod
    def process(self, key: KEY, context: ProcessWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]: ...

    def clear(self, context: ProcessWindowFunction.Context[W]) -> None:
        """Called when the window is dropped: delete what is in `context.window_state()`."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, W]):
    class Context(_WindowContext[CW]):
        """Valid during the call only."""

    @abc.abstractmethod
    def process(self, context: ProcessAllWindowFunction.Context[W], elements: Iterable[IN]) -> Iterable[OUT]: ...

    def clear(self, context: ProcessAllWindowFunction.Context[W]) -> None:
        """Called when the window is dropped: delete what is in `context.window_state()`."""


# ---------------------------------------------------------------- asynchronous calls


class AsyncRetryPredicate(abc.ABC):
    """Says whether an asynchronous call is tried again."""

    @abc.abstractmethod
    def result_predicate(self) -> Callable[[list[Any]], bool] | None: ...

    @abc.abstractmethod
    def exception_predicate(self) -> Callable[[Exception], bool] | None: ...


class AsyncRetryStrategy(abc.ABC):
    """How often and after how long an asynchronous call is tried again."""

    @abc.abstractmethod
    def can_retry(self, current_attempts: int) -> bool: ...

    @abc.abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int: ...

    @abc.abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate: ...

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        from tidegate.contracts.async_retry_strategies import NoRetryStrategy

        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: Callable[[list[Any]], bool] | None = None,
        exception_predicate: Callable[[Exception], bool] | None = None,
    ) -> AsyncRetryStrategy:
        from tidegate.contracts.async_retry_strategies import FixedDelayRetryStrategy

        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: Callable[[list[Any]], bool] | None = None,
        exception_predicate: Callable[[Exception], bool] | None = None,
    ) -> AsyncRetryStrategy:
        from tidegate.contracts.async_retry_strategies import ExponentialBackoffDelayRetryStrategy

        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class AsyncFunction(Function, Generic[IN, OUT]):
    """Calls to the outside that overlap: one coroutine per record."""

    @abc.abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """The results of one record."""

    def timeout(self, value: IN) -> list[OUT]:
        """What to emit when the call took too long; fails the job unless overridden."""
        raise TimeoutError(
            f"async call for {value!r} timed out; override AsyncFunction.timeout to emit something instead"
        )


@dataclass(frozen=True)
class AsyncFunctionDescriptor:
    """An asynchronous function with the settings it was applied with."""

    class OutputMode(enum.Enum):
        ORDERED = 0  # results in the order of the records
        UNORDERED = 1  # results as they come

    async_function: AsyncFunction[Any, Any]
    timeout_ms: int
    capacity: int
    async_retry_strategy: AsyncRetryStrategy
    output_mode: AsyncFunctionDescriptor.OutputMode
