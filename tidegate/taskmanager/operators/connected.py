"""Operators with two inputs: co-map, co-flat-map and co-process, with or without keys."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from tidegate.contracts.batches import RecordBatch
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import FunctionOperator
from tidegate.taskmanager.operators.keyed import TimerOperator
from tidegate.taskmanager.operators.results import emit_results
from tidegate.taskmanager.runtime_context import ElementContext, KeyedElementContext


class ConnectedOperator(TimerOperator):
    """Runs one method of the function for each input. `keyed` ones make the record's key current first."""

    def __init__(self, context: OperatorContext) -> None:
        spec: Any = context.node.spec
        self._keyed = spec.keyed
        if self._keyed:
            super().__init__(context)
        else:
            FunctionOperator.__init__(self, context)
            self.backend = None
        kind = getattr(spec, "kind", "process_element")
        self._kind: str = kind
        self._methods = [getattr(self.function, f"{kind}1"), getattr(self.function, f"{kind}2")]

    def open(self) -> None:
        if self._keyed:
            super().open()
        else:
            FunctionOperator.open(self)
        self._element: Any = KeyedElementContext(self) if self._keyed else ElementContext(self)

    def fire_event_timers(self, limit: int) -> bool:
        return super().fire_event_timers(limit) if self._keyed else True

    def next_processing_timer(self) -> int | None:
        return super().next_processing_timer() if self._keyed else None

    def process(self, batch: RecordBatch) -> None:
        self._run(batch, 0)

    def process_second(self, batch: RecordBatch) -> None:
        self._run(batch, 1)

    def _run(self, batch: RecordBatch, side: int) -> None:
        backend, element = self.backend, self._element
        select = self.selector(batch.values[0], side) if self._keyed else None
        with_context = self._kind == "process_element"
        single = self._kind == "map"
        function = self.own.one(self._methods[side]) if single else self.own.many(self._methods[side])
        if select is not None:
            backend.prefetch(select, batch.values)
        values: list[Any] = []
        stamps: list[int] = []
        old = batch.timestamps if batch.timestamps is not None else repeat(None, len(batch.values))
        taken, rest = self.limit.take(batch.values)
        try:
            for v, t in zip(rest, old, strict=False):
                if select is not None:
                    backend.current_key = select(v)
                if single:
                    values.append(function(v))
                else:
                    element.stamp = t
                    results = function(v, element) if with_context else function(v)
                    if results is not None:
                        values.extend(results)
                if t is not None:
                    stamps.extend(repeat(t, len(values) - len(stamps)))
        except Exception as error:
            doing = f"{self._kind}{side + 1}()"
            if self._keyed:
                self.fail_keyed(doing, error, taken, rest)
            self.fail_at(doing, error, taken, rest)
        self.own.look(values)
        self.taken(batch, taken)
        emit_results(self, values, None if batch.timestamps is None else stamps)
