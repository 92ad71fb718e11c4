"""DataStream and DataStreamSink; public as `tidegate.datastream.data_stream`, together with the other streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, overload

from tidegate.common.errors import ConfigurationError, of_type
from tidegate.common.time import TimeLike, as_milliseconds
from tidegate.common.typeinfo import TupleTypeInfo, TypeInformation, Types, value_converter
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.contracts.connectors import Sink, SupportsPreprocessing
from tidegate.contracts.functions import (
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapBatchesFunction,
    MapFunction,
    Partitioner,
    ProcessFunction,
    SinkFunction,
)
from tidegate.contracts.output_tag import OutputTag
from tidegate.datastream.arguments import (
    checked_function,
    checked_int,
    checked_selector,
    checked_type_info,
)
from tidegate.datastream.closeable_iterator import CloseableIterator
from tidegate.datastream.spark_bridge import spark_module
from tidegate.datastream.stream_settings import OperatorSettings, missing_attribute
from tidegate.graph.job_graph import PartitionKind, PartitionSpec
from tidegate.graph.operator_specs import (
    AssignTimestampsSpec,
    FilterSpec,
    FlatMapSpec,
    MapBatchesSpec,
    MapSpec,
    OperatorSpec,
    ProcessSpec,
    SinkFunctionSpec,
    SinkSpec,
)
from tidegate.graph.transformations import (
    ChainingStrategy,
    OneInputTransformation,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    SinkTransformation,
    UnionTransformation,
)
from tidegate.jobmanager.running_jobs import cancelled_by_interrupt

if TYPE_CHECKING:
    from tidegate.common.execution_config import ExecutionConfig
    from tidegate.contracts.state import MapStateDescriptor
    from tidegate.contracts.window import WindowAssigner
    from tidegate.datastream.broadcast_streams import BroadcastConnectedStream, BroadcastStream
    from tidegate.datastream.cached_stream import CachedDataStream
    from tidegate.datastream.connected_streams import ConnectedStreams
    from tidegate.datastream.keyed_stream import KeyedStream
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
    from tidegate.datastream.windowed_stream import AllWindowedStream


class DataStream(OperatorSettings):
    """A stream of records of one kind. Each transformation gives a new stream; nothing runs before `execute`."""

    # ------------------------------------------------------------ about the stream

    def get_execution_environment(self) -> StreamExecutionEnvironment:
        return self._environment

    def get_execution_config(self) -> ExecutionConfig:
        return self._environment.get_config()

    def get_type(self) -> TypeInformation:
        """The declared type of the records; pickled Python objects when none was declared."""
        declared: TypeInformation | None = self._transformation.output_type
        return Types.PICKLED_BYTE_ARRAY() if declared is None else declared

    # ------------------------------------------------------------ settings of streams only

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """How long a batch that is not full may wait before it is sent. -1: until it is full; 0: not at all."""
        operator = self._operator("set_buffer_timeout")
        operator.buffer_timeout_ms = checked_int("set_buffer_timeout", timeout_millis, -1, "the timeout")
        return self

    def start_new_chain(self) -> Self:
        """Begin a new task with this operator."""
        self._operator("start_new_chain").chaining_strategy = ChainingStrategy.HEAD
        return self

    def force_non_parallel(self) -> Self:
        """Parallelism and max parallelism 1, for good."""
        operator = self._operator("force_non_parallel")
        operator.parallelism = operator.max_parallelism = 1
        operator.parallelism_fixed = True
        return self

    # ------------------------------------------------------------ one record at a time

    def map(self, func: MapFunction | Callable[[Any], Any], output_type: Any = None) -> DataStream:
        function = checked_function("map", func, MapFunction, ("map",), plain=True)
        return self._one_input("Map", MapSpec(function), "map", output_type)

    def map_batches(
        self,
        func: MapBatchesFunction | Callable[[list[Any]], Iterable[Any]],
        size: int,
        max_wait: TimeLike = 100,
        output_type: Any = None,
    ) -> DataStream:
        """`map` for functions that want many records at once: a model, a bulk request. Tidegate's own.

        The function gets a list of at most `size` records of a subtask and returns as many results, in the same order;
        each has the timestamp of its record. A list that is not full is handed over `max_wait` (milliseconds) after its
        first record, before every checkpoint, and at the end of the input: so no record is ever held back over a
        checkpoint, and after a failure all are processed as if it had not been. Watermarks wait for the records
        before them. On a keyed stream a list has records of many keys, and there is no keyed state."""
        function = checked_function("map_batches", func, MapBatchesFunction, ("map_batches",), plain=True)
        checked_int("map_batches", size, 1, "the size")
        spec = MapBatchesSpec(function, size, as_milliseconds(max_wait, "map_batches: max_wait"))
        return self._one_input("Map Batches", spec, "map_batches", output_type)

    def flat_map(self, func: FlatMapFunction | Callable[[Any], Any], output_type: Any = None) -> DataStream:
        function = checked_function("flat_map", func, FlatMapFunction, ("flat_map",), plain=True)
        return self._one_input("Flat Map", FlatMapSpec(function), "flat_map", output_type)

    def filter(self, func: FilterFunction | Callable[[Any], bool]) -> DataStream:
        function = checked_function("filter", func, FilterFunction, ("filter",), plain=True)
        return self._one_input("Filter", FilterSpec(function), "filter", keep_type=True)

    def process(self, func: ProcessFunction, output_type: Any = None) -> DataStream:
        """Yield any number of records per record; `yield tag, value` emits to a side output."""
        function = checked_function("process", func, ProcessFunction, ("process_element",), plain=False)
        return self._one_input("Process", ProcessSpec(function), "process", output_type)

    def project(self, *field_indexes: int) -> DataStream:
        """Tuples of the given fields of tuples, lists or Rows, in the given order."""
        if not field_indexes:
            raise ConfigurationError("project: give the index of at least one field")
        for index in field_indexes:
            checked_int("project", index, 0, "the index of a field")
        stream = self._one_input("Projection", MapSpec(_projection(field_indexes)), "project")
        if isinstance(self._transformation.output_type, TupleTypeInfo):
            types = self._transformation.output_type.get_field_types()
            if max(field_indexes) >= len(types):
                raise ConfigurationError(
                    f"project: the records have {len(types)} fields, there is no {max(field_indexes)}"
                )
            stream._transformation.output_type = Types.TUPLE([types[index] for index in field_indexes])
        return stream

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> DataStream:
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise TypeError(
                f"assign_timestamps_and_watermarks: takes a WatermarkStrategy, got {type(watermark_strategy).__name__}"
            )
        spec = AssignTimestampsSpec(watermark_strategy)
        return self._one_input("Timestamps/Watermarks", spec, "assign_timestamps_and_watermarks", keep_type=True)

    def window_all(self, window_assigner: WindowAssigner[Any, Any]) -> AllWindowedStream:
        """Cut the whole stream into windows, whatever the keys: in one subtask."""
        from tidegate.datastream.windowed_stream import AllWindowedStream

        return AllWindowedStream(_without_keys(self), window_assigner)

    # ------------------------------------------------------------ several streams

    def union(self, *streams: DataStream) -> DataStream:
        """The records of all streams, in no particular order between them."""
        for stream in streams:
            self._check_other("union", stream)
        if not streams:
            return DataStream(self._environment, self._transformation)
        inputs = [_without_keys(stream) for stream in (self, *streams)]
        return DataStream(self._environment, UnionTransformation([stream._transformation for stream in inputs]))

    @overload
    def connect(self, ds: DataStream) -> ConnectedStreams: ...

    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, ds: DataStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """Both streams as the two inputs of one operator."""
        from tidegate.datastream.broadcast_streams import BroadcastConnectedStream, BroadcastStream
        from tidegate.datastream.connected_streams import ConnectedStreams

        if isinstance(ds, BroadcastStream):
            self._check_other("connect", ds.input_stream)
            return BroadcastConnectedStream(self, ds)
        self._check_other("connect", ds)
        return ConnectedStreams(self, ds)

    def cache(self) -> CachedDataStream:
        """Keep the records of this stream: the first job that computes it stores them, streams that are built from the
        result after that job has finished read what it stored."""
        from tidegate.datastream.cached_stream import CachedDataStream

        return CachedDataStream(_without_keys(self))

    def get_side_output(self, output_tag: OutputTag) -> DataStream:
        """The records that this operator emits with the tag."""
        if not isinstance(output_tag, OutputTag):
            raise TypeError(f"get_side_output: takes an OutputTag, got {type(output_tag).__name__}: {output_tag!r}")
        operator = self._operator("get_side_output")
        known = operator.side_output_types.get(output_tag.tag_id)
        if None not in (known, output_tag.type_info) and known != output_tag.type_info:
            raise ConfigurationError(
                f"get_side_output: the side output '{output_tag.tag_id}' of '{operator.name}' was asked for as {known} "
                f"and now as {output_tag.type_info}; give different outputs different ids"
            )
        type_info = output_tag.type_info if known is None else known
        operator.side_output_types[output_tag.tag_id] = type_info
        return DataStream(self._environment, SideOutputTransformation(operator, output_tag.tag_id, type_info))

    # ------------------------------------------------------------ partitioning

    def key_by(self, key_selector: Callable[[Any], Any] | KeySelector, key_type: Any = None) -> KeyedStream:
        """All records with the same key go to the same subtask. Keys have to be hashable. When they are lists, or
        hold some, functions see tuples in their place."""
        from tidegate.datastream.keyed_stream import KeyedStream

        selector = checked_selector("key_by", key_selector, KeySelector, "get_key")
        declared = checked_type_info(key_type, "key_by(key_type)")
        converter = value_converter(declared)
        if converter is not None:
            selector = _typed_key(selector, converter)
        partition = PartitionSpec(PartitionKind.HASH, key_selector=selector)
        return KeyedStream(
            self._environment, PartitionTransformation(self._transformation, partition), selector, declared
        )

    def partition_custom(
        self, partitioner: Callable[[Any, int], int] | Partitioner, key_selector: Callable[[Any], Any] | KeySelector
    ) -> DataStream:
        """The partitioner gets the key and the number of subtasks, and returns the subtask."""
        return self._partitioned(
            PartitionSpec(
                PartitionKind.CUSTOM,
                key_selector=checked_selector("partition_custom", key_selector, KeySelector, "get_key"),
                partitioner=checked_selector("partition_custom", partitioner, Partitioner, "partition"),
            )
        )

    def shuffle(self) -> DataStream:
        """Each record to a random subtask."""
        return self._partitioned(PartitionSpec(PartitionKind.SHUFFLE))

    def rebalance(self) -> DataStream:
        """Round robin over all subtasks."""
        return self._partitioned(PartitionSpec(PartitionKind.REBALANCE))

    def rescale(self) -> DataStream:
        """Round robin over a few near subtasks."""
        return self._partitioned(PartitionSpec(PartitionKind.RESCALE))

    def forward(self) -> DataStream:
        """Subtask i to subtask i: both operators need the same parallelism."""
        return self._partitioned(PartitionSpec(PartitionKind.FORWARD))

    @overload
    def broadcast(self) -> DataStream: ...

    @overload
    def broadcast(
        self, broadcast_state_descriptor: MapStateDescriptor, *other_broadcast_state_descriptors: MapStateDescriptor
    ) -> BroadcastStream: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> DataStream | BroadcastStream:
        """Every record to all subtasks. With descriptors of broadcast state: a stream for `connect`, whose function
        keeps that state in every subtask."""
        from tidegate.datastream.broadcast_streams import BroadcastStream

        stream = self._partitioned(PartitionSpec(PartitionKind.BROADCAST))
        if broadcast_state_descriptor is None:
            return stream
        return BroadcastStream(stream, broadcast_state_descriptor, *other_broadcast_state_descriptors)

    def global_(self) -> DataStream:
        """All records to the first subtask (`global` is a keyword of Python)."""
        return self._partitioned(PartitionSpec(PartitionKind.GLOBAL))

    # ------------------------------------------------------------ results

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Every record as a line on standard output: that of the program when Spark is local, otherwise of the
        workers."""
        from tidegate.connectors.print_sink import PrintSink

        return self.sink_to(PrintSink(sink_identifier)).name("Print to Std. Out")

    def print_to_err(self, sink_identifier: str | None = None) -> DataStreamSink:
        """The same on standard error."""
        from tidegate.connectors.print_sink import PrintSink

        return self.sink_to(PrintSink(sink_identifier, to_stderr=True)).name("Print to Std. Err")

    def sink_to(self, sink: Sink[Any, Any]) -> DataStreamSink:
        if isinstance(sink, type):
            raise TypeError(f"sink_to: takes a Sink, got the class {sink.__qualname__} itself; pass an instance")
        if not isinstance(sink, Sink):
            raise TypeError(f"sink_to: takes a Sink (add_sink takes functions), got {type(sink).__name__}: {sink!r}")
        transformer = sink.get_transformer() if isinstance(sink, SupportsPreprocessing) else None
        stream = self if transformer is None else transformer.apply(self)
        if stream.get_type() != Types.PICKLED_BYTE_ARRAY():
            sink = sink.for_declared_type()
        return stream._sink(type(sink).__name__, SinkSpec(sink))

    def add_sink(self, sink_func: SinkFunction | Callable[[Any], Any] | Sink[Any, Any]) -> DataStreamSink:
        """A SinkFunction, or a function that is called with each record. A Sink too: what PyFlink has as a sink
        function (StreamingFileSink) is a Sink here."""
        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        function = checked_function("add_sink", sink_func, SinkFunction, ("invoke",), plain=True)
        return self._sink(_function_name(function), SinkFunctionSpec(function))

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Run the job and bring the records of this stream back: as an iterator, or with `limit` as a list of at most
        so many (the job is cancelled once they are there)."""
        from tidegate.contracts.collect_sink import CollectSink

        if limit is not None:
            checked_int("execute_and_collect", limit, 1, "the limit")
        sink = self._sink("Collect", SinkSpec(CollectSink(self.get_name())))
        transformation = of_type(SinkTransformation, sink._transformation)
        if isinstance(self._transformation, OperatorTransformation):  # so that its order is that of the results
            own = self._transformation.parallelism
            transformation.parallelism = self._transformation.created_under.parallelism if own is None else own
        with cancelled_by_interrupt():
            try:
                client = self._environment._submit(job_execution_name)
            except BaseException:
                self._environment._remove_operator(transformation)
                raise
            iterator = CloseableIterator(iter(client.collect_results()), client.cancel)
        if limit is None:
            return iterator
        with iterator:
            return [value for _, value in zip(range(limit), iterator, strict=False)]

    def to_spark(self, schema: Any = None, job_execution_name: str | None = None) -> Any:
        """A Spark DataFrame of this stream, which has to be bounded.

        `schema`: a DDL string (`"word string, n bigint"`) or a StructType; without one the declared type is used. In
        STREAMING mode the job is run to its end first; in BATCH mode Spark runs it when the DataFrame is used. See
        docs/spark.md."""
        return spark_module("dataframes.results").dataframe_of(self, schema, job_execution_name)

    # ------------------------------------------------------------ building

    if not TYPE_CHECKING:  # a type checker knows what is there

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name)

    def _one_input(
        self, name: str, spec: OperatorSpec, method: str, output_type: Any = None, keep_type: bool = False
    ) -> DataStream:
        """A new operator behind this stream. `keep_type`: its records are those of this stream."""
        declared = checked_type_info(output_type, f"{method}(output_type)")
        known = self._transformation.output_type if keep_type and declared is None else declared
        transformation = OneInputTransformation(name, spec, (self._transformation,), known)
        transformation.converts_output = declared is not None
        transformation.key_selectors = self._key_selectors(spec)
        transformation.key_type = getattr(self, "_key_type", None) if spec.keyed else None
        self._environment._add_operator(transformation)
        return DataStream(self._environment, transformation)

    def _key_selectors(self, spec: OperatorSpec) -> tuple[Any, ...]:
        return ()

    def _partitioned(self, partition: PartitionSpec) -> DataStream:
        return DataStream(self._environment, PartitionTransformation(self._transformation, partition))

    def _sink(self, name: str, spec: OperatorSpec) -> DataStreamSink:
        transformation = SinkTransformation(name, spec, (self._transformation,))
        self._environment._add_operator(transformation)
        return DataStreamSink(self._environment, transformation)

    def _check_other(self, method: str, other: Any) -> None:
        if not isinstance(other, DataStream):
            raise TypeError(f"{method}: takes a DataStream, got {type(other).__name__}: {other!r}")
        if other._environment is not self._environment:
            raise ConfigurationError(f"{method}: the streams belong to different execution environments")


class DataStreamSink(OperatorSettings):
    """The end of a stream: settings of the sink's operator."""


def _without_keys(stream: DataStream) -> DataStream:
    """A KeyedStream in a union loses its keys, and with them its partitioning."""
    from tidegate.datastream.keyed_stream import KeyedStream

    if isinstance(stream, KeyedStream):
        return DataStream(stream._environment, stream._transformation.inputs[0])
    return stream


def _typed_key(selector: Callable[[Any], Any], convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def typed_key(value: Any) -> Any:
        return convert(selector(value))

    return typed_key


def _projection(indexes: tuple[int, ...]) -> Callable[[Any], tuple[Any, ...]]:
    def project(value: Any) -> tuple[Any, ...]:
        return tuple([value[index] for index in indexes])

    return project


def _function_name(function: Any) -> str:
    name = type(function).__name__ if isinstance(function, SinkFunction) else getattr(function, "__name__", "Unnamed")
    return "Unnamed" if name == "<lambda>" else name
