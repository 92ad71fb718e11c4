"""map, flat_map, filter, process and timestamp assignment on streams without keys.

The loops here are the hot path: one Python call per record (the user's) and nothing else; an operator boundary costs a
list comprehension per batch. The position of a failing record is found after the fact (`fail_at`). A loop may be ended
early (`TimeLimit`): `rest` is then shorter than the batch, and comes first in a `zip`.
"""

from __future__ import annotations

from itertools import compress, repeat
from typing import Any

from tidegate.contracts.batches import RecordBatch
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import FunctionOperator, bind
from tidegate.taskmanager.operators.results import emit_results
from tidegate.taskmanager.runtime_context import ElementContext


class MapOperator(FunctionOperator):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._map = bind(self.function, "map")

    def process(self, batch: RecordBatch) -> None:
        function = self.own.one(self._map)
        taken, rest = self.limit.take(batch.values)
        try:
            values = [function(v) for v in rest]
        except Exception as error:
            self.fail_at("map()", error, taken, rest)
        self.own.look(values)
        self.output(RecordBatch(values, self.taken(batch, taken).timestamps))


class FilterOperator(FunctionOperator):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._filter = bind(self.function, "filter")

    def process(self, batch: RecordBatch) -> None:
        function = self._filter
        timestamps = batch.timestamps
        taken, rest = self.limit.take(batch.values)
        kept: list[int] | None = None
        try:
            if timestamps is None:
                values = [v for v in rest if function(v)]
            else:
                keep = [bool(function(v)) for v in rest]
                values = list(compress(taken, keep))
                kept = list(compress(timestamps, keep))
        except Exception as error:
            self.fail_at("filter()", error, taken, rest)
        self.taken(batch, taken)
        if values:
            self.output(RecordBatch(values, kept))


class FlatMapOperator(FunctionOperator):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._flat_map = bind(self.function, "flat_map")

    def process(self, batch: RecordBatch) -> None:
        function = self.own.many(self._flat_map)
        values: list[Any] = []
        extend = values.extend
        stamps: list[int] | None = None
        taken, rest = self.limit.take(batch.values)
        try:
            if batch.timestamps is None:
                for v in rest:
                    results = function(v)
                    if results is not None:
                        extend(results)
            else:
                stamps = []
                for v, t in zip(rest, batch.timestamps, strict=False):
                    results = function(v)
                    if results is not None:
                        extend(results)
                        stamps.extend(repeat(t, len(values) - len(stamps)))
        except Exception as error:
            self.fail_at("flat_map()", error, taken, rest)
        self.own.look(values)
        self.taken(batch, taken)
        if values:
            self.output(RecordBatch(values, stamps))


class ProcessOperator(FunctionOperator):
    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._process = bind(self.function, "process_element")

    def open(self) -> None:
        super().open()
        self._element = ElementContext(self)

    def process(self, batch: RecordBatch) -> None:
        function, element = self.own.many(self._process), self._element
        values: list[Any] = []
        extend = values.extend
        stamps: list[int] | None = None
        taken, rest = self.limit.take(batch.values)
        try:
            if batch.timestamps is None:
                element.stamp = None
                for v in rest:
                    results = function(v, element)
                    if results is not None:
                        extend(results)
            else:
                stamps = []
                for v, t in zip(rest, batch.timestamps, strict=False):
                    element.stamp = t
                    results = function(v, element)
                    if results is not None:
                        extend(results)
                        stamps.extend(repeat(t, len(values) - len(stamps)))
        except Exception as error:
            self.fail_at("process_element()", error, taken, rest)
        self.own.look(values)
        self.taken(batch, taken)
        emit_results(self, values, stamps)
