"""Broadcast state: BroadcastStream, and what comes of connecting another stream to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from tidegate.contracts.state import MapStateDescriptor
from tidegate.datastream.arguments import checked_function, checked_type_info
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.stream import DataStream
from tidegate.graph.operator_specs import BroadcastProcessSpec
from tidegate.graph.transformations import TwoInputTransformation

if TYPE_CHECKING:
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment


class BroadcastStream:
    """A stream whose records go to all subtasks, with the descriptors of the state that they are kept in. Made by
    `DataStream.broadcast(descriptor, ...)`, and good for one thing: to be connected to another stream."""

    def __init__(
        self,
        input_stream: DataStream,
        broadcast_state_descriptor: MapStateDescriptor,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> None:
        descriptors = (broadcast_state_descriptor, *other_broadcast_state_descriptors)
        names: set[str] = set()
        for descriptor in descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise TypeError(
                    f"broadcast: takes MapStateDescriptors, got {type(descriptor).__name__}: {descriptor!r}"
                )
            if descriptor.get_name() in names:
                raise ConfigurationError(
                    f"broadcast: there are two state descriptors of the name '{descriptor.get_name()}'; give each "
                    "state a name of its own"
                )
            names.add(descriptor.get_name())
        self.input_stream = input_stream
        self.broadcast_state_descriptors = descriptors


class BroadcastConnectedStream:
    """A stream, with or without keys, and a broadcast one, as the two inputs of one operator."""

    def __init__(self, non_broadcast_stream: DataStream, broadcast_stream: BroadcastStream) -> None:
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream

    def process(
        self, func: BroadcastProcessFunction | KeyedBroadcastProcessFunction, output_type: Any = None
    ) -> DataStream:
        """A KeyedBroadcastProcessFunction when the stream has keys, a BroadcastProcessFunction when it has none."""
        function = checked_function(
            "process (with a broadcast stream)",
            func,
            (BroadcastProcessFunction, KeyedBroadcastProcessFunction),
            ("process_element", "process_broadcast_element", "on_timer"),
            plain=False,
        )
        stream = self.non_broadcast_stream
        keyed = isinstance(stream, KeyedStream)
        if keyed != isinstance(function, KeyedBroadcastProcessFunction):
            kind = type(function).__qualname__
            if keyed:
                story = f"the stream has keys, so {kind} has to be a KeyedBroadcastProcessFunction"
            else:
                story = (
                    f"{kind} is a KeyedBroadcastProcessFunction and needs keys; call key_by() before connect(), or "
                    "make it a BroadcastProcessFunction"
                )
            raise TypeError(f"process (with a broadcast stream): {story}")
        name = "Keyed Broadcast Process" if keyed else "Broadcast Process"
        declared = checked_type_info(output_type, f"{name}: output_type")
        spec = BroadcastProcessSpec(function, self.broadcast_stream.broadcast_state_descriptors, keyed)
        inputs = (stream._transformation, self.broadcast_stream.input_stream._transformation)
        transformation = TwoInputTransformation(name, spec, inputs, declared)
        transformation.converts_output = declared is not None
        if isinstance(stream, KeyedStream):
            transformation.key_selectors = (stream._key_selector,)
            transformation.key_type = stream._key_type
        environment: StreamExecutionEnvironment = stream.get_execution_environment()
        environment._add_operator(transformation)
        return DataStream(environment, transformation)
