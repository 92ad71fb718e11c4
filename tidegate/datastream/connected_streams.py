"""ConnectedStreams: two streams as the two inputs of one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.contracts.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
)
from tidegate.datastream.arguments import checked_function, checked_type_info
from tidegate.datastream.keyed_stream import KeyedStream
from tidegate.datastream.stream import DataStream
from tidegate.graph.operator_specs import CoMapSpec, CoProcessSpec, OperatorSpec
from tidegate.graph.transformations import TwoInputTransformation


class ConnectedStreams:
    """The two streams keep their own types. When both are keyed, the function shares keyed state between them."""

    def __init__(self, stream1: DataStream, stream2: DataStream) -> None:
        self.stream1 = stream1
        self.stream2 = stream2

    def key_by(
        self,
        key_selector1: Callable[[Any], Any] | KeySelector,
        key_selector2: Callable[[Any], Any] | KeySelector,
        key_type: Any = None,
    ) -> ConnectedStreams:
        """Keys both streams; the keys of both have to be of the same kind, since they share state."""
        return ConnectedStreams(
            self.stream1.key_by(key_selector1, key_type), self.stream2.key_by(key_selector2, key_type)
        )

    def map(self, func: CoMapFunction, output_type: Any = None) -> DataStream:
        function = checked_function("map (on connected streams)", func, CoMapFunction, ("map1", "map2"), plain=False)
        return self._two_inputs("Co-Map", CoMapSpec(function, "map", self._is_keyed), output_type)

    def flat_map(self, func: CoFlatMapFunction, output_type: Any = None) -> DataStream:
        function = checked_function(
            "flat_map (on connected streams)", func, CoFlatMapFunction, ("flat_map1", "flat_map2"), plain=False
        )
        return self._two_inputs("Co-Flat Map", CoMapSpec(function, "flat_map", self._is_keyed), output_type)

    def process(self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: Any = None) -> DataStream:
        """A KeyedCoProcessFunction needs keys on both streams."""
        function = checked_function(
            "process (on connected streams)",
            func,
            (CoProcessFunction, KeyedCoProcessFunction),
            ("process_element1", "process_element2", "on_timer"),
            plain=False,
        )
        if isinstance(function, KeyedCoProcessFunction) and not self._is_keyed:
            raise ConfigurationError(
                f"process (on connected streams): {type(function).__qualname__} is a KeyedCoProcessFunction and needs "
                "keys on both streams; call key_by(selector1, selector2) first, or make it a CoProcessFunction"
            )
        name = "Keyed Co-Process" if self._is_keyed else "Co-Process"
        return self._two_inputs(name, CoProcessSpec(function, self._is_keyed), output_type)

    @property
    def _is_keyed(self) -> bool:
        return isinstance(self.stream1, KeyedStream) and isinstance(self.stream2, KeyedStream)

    def _two_inputs(self, name: str, spec: OperatorSpec, output_type: Any) -> DataStream:
        declared = checked_type_info(output_type, f"{name}: output_type")
        inputs = (self.stream1._transformation, self.stream2._transformation)
        transformation = TwoInputTransformation(name, spec, inputs, declared)
        transformation.converts_output = declared is not None
        if isinstance(self.stream1, KeyedStream) and isinstance(self.stream2, KeyedStream):
            transformation.key_selectors = (self.stream1._key_selector, self.stream2._key_selector)
            transformation.key_type = self.stream1._key_type
        environment = self.stream1.get_execution_environment()
        environment._add_operator(transformation)
        return DataStream(environment, transformation)
