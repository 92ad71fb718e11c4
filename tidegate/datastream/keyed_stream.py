"""KeyedStream: a stream in which all records of a key are in the same subtask, with state per key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.types import Row
from tidegate.contracts.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from tidegate.datastream import aggregations
from tidegate.datastream.arguments import checked_function
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.stream import DataStream
from tidegate.graph.job_graph import PartitionSpec
from tidegate.graph.operator_specs import KeyedMapSpec, KeyedProcessSpec, OperatorSpec, ReduceSpec
from tidegate.graph.transformations import PartitionTransformation

if TYPE_CHECKING:
    from tidegate.common.typeinfo import TypeInformation
    from tidegate.contracts.window import WindowAssigner
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
    from tidegate.datastream.windowed_stream import WindowedStream


class KeyedStream(DataStream):
    """Functions on it may use keyed state. What they emit is a DataStream again: key it anew where keys are needed."""

    def __init__(
        self,
        environment: StreamExecutionEnvironment,
        transformation: PartitionTransformation,
        key_selector: Callable[[Any], Any],
        key_type: TypeInformation | None,
    ) -> None:
        super().__init__(environment, transformation)
        self._key_selector = key_selector
        self._key_type = key_type

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: Any = None) -> DataStream:
        function = checked_function("map", func, MapFunction, ("map",), plain=True)
        return self._one_input("Map", KeyedMapSpec(function, "map"), "map", output_type)

    def flat_map(self, func: FlatMapFunction | Callable[[Any], Any], output_type: Any = None) -> DataStream:
        function = checked_function("flat_map", func, FlatMapFunction, ("flat_map",), plain=True)
        return self._one_input("Flat Map", KeyedMapSpec(function, "flat_map"), "flat_map", output_type)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        function = checked_function("filter", func, FilterFunction, ("filter",), plain=True)
        return self._one_input("Filter", KeyedMapSpec(function, "filter"), "filter", keep_type=True)

    def process(self, func: KeyedProcessFunction | ProcessFunction, output_type: Any = None) -> DataStream:
        """Yield any number of records per record or timer; `yield tag, value` emits to a side output."""
        function = checked_function(
            "process (on a keyed stream)", func, KeyedProcessFunction, ("process_element", "on_timer"), plain=False
        )
        return self._one_input("Keyed Process", KeyedProcessSpec(function), "process", output_type)

    def reduce(self, func: ReduceFunction | Callable[[Any, Any], Any], output_type: Any = None) -> DataStream:
        """Emits, for every record, the reduce of all records of its key so far."""
        function = checked_function("reduce", func, ReduceFunction, ("reduce",), plain=True)
        return self._one_input("Reduce", ReduceSpec(function), "reduce", output_type, keep_type=True)

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """The rolling sum of a field, by index or name; the other fields are those of the key's first record."""
        return self._aggregate("sum", aggregations.sum_of, position_to_sum)

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """The rolling minimum of a field; the other fields are those of the key's first record."""
        return self._aggregate("min", aggregations.min_of, position_to_min)

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """The rolling maximum of a field; the other fields are those of the key's first record."""
        return self._aggregate("max", aggregations.max_of, position_to_max)

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """The record with the smallest value of a field so far; of equal ones the first."""
        return self._aggregate("min_by", aggregations.min_by, position_to_min_by)

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """The record with the largest value of a field so far; of equal ones the first."""
        return self._aggregate("max_by", aggregations.max_by, position_to_max_by)

    def key_by(self, key_selector: Callable[[Any], Any] | KeySelector, key_type: Any = None) -> KeyedStream:
        """Keys anew, in place of the keys of this stream."""
        return DataStream(self._environment, self._transformation.inputs[0]).key_by(key_selector, key_type)

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Cut the records of each key into windows."""
        from tidegate.datastream.windowed_stream import WindowedStream

        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of `size` records of a key: one after the other, or one that begins at every `slide`-th record."""
        from tidegate.contracts.window import CountSlidingWindowAssigner, CountTumblingWindowAssigner

        if slide == 0:
            return self.window(CountTumblingWindowAssigner(size))
        return self.window(CountSlidingWindowAssigner(size, slide))

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """As of any stream, but a record is `Row(f0=key, f1=value)`, as in PyFlink."""
        pairs = self.process(_WithKey()).name("With Key")
        return pairs.execute_and_collect(job_execution_name, limit)

    def _partitioned(self, partition: PartitionSpec) -> DataStream:
        """shuffle, rebalance, rescale, forward, broadcast, partition_custom, global_"""
        raise ConfigurationError(
            "Cannot override partitioning for KeyedStream. Its records are where their keys belong: call "
            f"{partition.kind.name.lower()}() on the stream before key_by(), or on the result of a function."
        )

    def _aggregate(
        self, method: str, aggregation: Callable[[int | str], Callable[[Any, Any], Any]], position: Any
    ) -> DataStream:
        checked = aggregations.checked_position(method, position)
        field = (method, checked) if isinstance(checked, int) else None
        spec = ReduceSpec(aggregation(checked), field=field)
        return self._one_input(method.replace("_", " ").title(), spec, method, keep_type=True)

    def _key_selectors(self, spec: OperatorSpec) -> tuple[Any, ...]:
        return (self._key_selector,) if spec.keyed else ()


class _WithKey(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        yield Row(f0=ctx.get_current_key(), f1=value)
