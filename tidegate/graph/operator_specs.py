"""What the API says an operator does; the runtime (`tidegate.taskmanager.operators`) knows how.

A spec is plain data with the user's function inside. It travels to the workers with the job graph. `function` is either
an instance of the matching class of `tidegate.contracts.functions` or a plain callable where the API allows one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OperatorSpec:
    """Base of all specs. `keyed` operators get a keyed state backend and a key selector per input."""

    @property
    def keyed(self) -> bool:
        return False

    @property
    def user_function(self) -> Any:
        """The user's object, for error messages; None when there is none."""
        return getattr(self, "function", None)


@dataclass(frozen=True)
class SourceSpec(OperatorSpec):
    """Head of a chain without inputs: reads splits (see `datastream.connectors.base.Source`)."""

    source: Any
    watermark_strategy: Any = None
    splits: tuple[Any, ...] | None = None  # made once, on the driver, when the job is submitted

    @property
    def user_function(self) -> Any:
        return self.source


@dataclass(frozen=True)
class MapSpec(OperatorSpec):
    function: Any  # MapFunction or callable(value) -> value


@dataclass(frozen=True)
class MapBatchesSpec(OperatorSpec):
    function: Any  # MapBatchesFunction or callable(list of values) -> as many values
    size: int  # records in a full batch
    max_wait_ms: int  # after which a batch that is not full is handed over


@dataclass(frozen=True)
class FlatMapSpec(OperatorSpec):
    function: Any  # FlatMapFunction or callable(value) -> iterable or None


@dataclass(frozen=True)
class FilterSpec(OperatorSpec):
    function: Any  # FilterFunction or callable(value) -> bool


@dataclass(frozen=True)
class ProcessSpec(OperatorSpec):
    function: Any  # ProcessFunction


@dataclass(frozen=True)
class KeyedProcessSpec(OperatorSpec):
    function: Any  # KeyedProcessFunction, or a MapFunction/... wrapped by the API

    @property
    def keyed(self) -> bool:
        return True


@dataclass(frozen=True)
class KeyedMapSpec(OperatorSpec):
    """On a KeyedStream: the function may use keyed state. kind: "map" | "flat_map" | "filter"."""

    function: Any
    kind: str

    @property
    def keyed(self) -> bool:
        return True


@dataclass(frozen=True)
class ReduceSpec(OperatorSpec):
    """Rolling reduce per key; emits the new value for every record. sum, min, max, min_by, max_by are reduces too."""

    function: Any  # ReduceFunction or callable(a, b) -> c
    at_end: bool = False  # BATCH: only the last value of each key
    field: tuple[str, int] | None = None  # what is aggregated, when it is a field by its index: ("sum", 1)

    @property
    def keyed(self) -> bool:
        return True


@dataclass(frozen=True)
class CoMapSpec(OperatorSpec):
    """Two inputs. kind: "map" | "flat_map". With `is_keyed` the function may use keyed state."""

    function: Any
    kind: str
    is_keyed: bool = False

    @property
    def keyed(self) -> bool:
        return self.is_keyed


@dataclass(frozen=True)
class CoProcessSpec(OperatorSpec):
    function: Any  # CoProcessFunction, or KeyedCoProcessFunction when is_keyed
    is_keyed: bool = False

    @property
    def keyed(self) -> bool:
        return self.is_keyed


@dataclass(frozen=True)
class BroadcastProcessSpec(OperatorSpec):
    """Input 0 with or without keys, input 1 is broadcast."""

    function: Any  # BroadcastProcessFunction, or KeyedBroadcastProcessFunction when is_keyed
    descriptors: tuple[Any, ...]  # MapStateDescriptors of the broadcast states
    is_keyed: bool = False

    @property
    def keyed(self) -> bool:
        return self.is_keyed


@dataclass(frozen=True)
class AsyncSpec(OperatorSpec):
    """An asynchronous function: calls to the outside that overlap."""

    function: Any  # AsyncFunction
    timeout_ms: int  # over all tries of a record; 0: none
    capacity: int  # how many calls may be under way in a subtask
    retry: Any  # AsyncRetryStrategy
    ordered: bool


@dataclass(frozen=True)
class WindowSpec(OperatorSpec):
    """A window operation. kind: "elements" (the window function gets all of them) | "reduce" | "aggregate" (as records
    come; the window function, if there is one, gets the one result)."""

    assigner: Any  # datastream.window.WindowAssigner
    trigger: Any  # datastream.window.Trigger
    kind: str
    aggregation: Any = None  # ReduceFunction or callable(a, b), AggregateFunction; None for "elements"
    function: Any = None  # WindowFunction, ProcessWindowFunction, or their All... variants when `all_keys`
    all_keys: bool = False  # window_all: one constant key
    allowed_lateness_ms: int = 0
    late_tag: Any = None  # OutputTag of late records; None: they are dropped
    combinable: bool = False  # partial results can be merged: sliding windows keep one per slice

    @property
    def keyed(self) -> bool:
        return True

    @property
    def user_function(self) -> Any:
        return self.aggregation if self.function is None else self.function


@dataclass(frozen=True)
class AssignTimestampsSpec(OperatorSpec):
    watermark_strategy: Any

    @property
    def user_function(self) -> Any:
        return self.watermark_strategy


@dataclass(frozen=True)
class SinkSpec(OperatorSpec):
    """A `datastream.connectors.base.Sink` (writer and optional committer)."""

    sink: Any

    @property
    def user_function(self) -> Any:
        return self.sink


@dataclass(frozen=True)
class SinkFunctionSpec(OperatorSpec):
    """A `datastream.functions.SinkFunction` or callable(value)."""

    function: Any
