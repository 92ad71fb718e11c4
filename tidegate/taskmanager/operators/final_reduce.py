"""Reduce in BATCH mode: one result per key, when all its records have come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.functions import Function
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import last_taken
from tidegate.taskmanager.operators.batch_mode import TakesCombined
from tidegate.taskmanager.operators.keyed import ReduceOperator

_EMIT = 4096

Reduce = Callable[[Any, Any], Any]


def fold(results: dict[Any, Any], reduce: Reduce, values: Iterator[Any], keys: Iterable[Any]) -> None:
    """Reduce each value into the result of its key. When it fails, `values` stands behind the culprit."""
    for v, key in zip(values, keys, strict=True):
        so_far = results.get(key)
        if so_far is None:
            results[key] = v
        else:
            results[key] = result = reduce(so_far, v)
            if result is None:
                raise TypeError("it returned None; it has to return the two records combined")


class FinalReduceOperator(ReduceOperator, TakesCombined):
    """The keys whose records are coming now are in a plain dict. Their state is what a rolling reduce would have, so
    that a streaming job can go on from a savepoint."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._results: dict[Any, Any] = {}
        self._stamps: dict[Any, int] = {}  # of the last record
        opens = getattr(type(self.function), "open", None)
        self._may_use_state = opens not in (None, Function.open)  # it is where a function gets its state

    def process(self, batch: RecordBatch) -> None:
        select = self.selector(batch.values[0])
        rest = iter(batch.values)
        try:
            keys = [select(v) for v in rest]
        except Exception as error:
            self.fail_keyed("reduce()", error, batch.values, rest)
        self.process_combined(keys, batch.values)
        if batch.timestamps is not None:
            self._stamps.update(zip(keys, batch.timestamps, strict=True))

    def process_combined(self, keys: list[Any], values: list[Any]) -> None:
        rest = iter(values)
        try:
            fold(self._results, self._reduce, rest, self._made_current(keys) if self._may_use_state else keys)
        except Exception as error:
            self.backend.current_key = keys[last_taken(values, rest)]
            self.fail_keyed("reduce()", error, values, rest)

    def _made_current(self, keys: list[Any]) -> Iterator[Any]:
        """The keys, each made current when it is asked for: for functions with keyed state of their own."""
        for key in keys:
            self.backend.current_key = key
            yield key

    def end_of_keys(self, keep: bool) -> None:
        results, self._results = self._results, {}
        stamps, self._stamps = self._stamps, {}
        if keep:
            for key in results:
                self.backend.current_key = key
                results[key] = self._with_state(results[key])
                self._state.update(results[key])
        plain = iter([value for key, value in results.items() if key not in stamps] if stamps else results.values())
        while values := list(islice(plain, _EMIT)):
            self.output(RecordBatch(values))
        stamped = iter(stamps.items())
        while some := list(islice(stamped, _EMIT)):
            self.output(RecordBatch([results[key] for key, _ in some], [time for _, time in some]))

    def _with_state(self, value: Any) -> Any:
        """After what the key had when the job began, from a savepoint."""
        so_far = self._state.value()
        if so_far is None:
            return value
        try:
            result = self._reduce(so_far, value)
            if result is None:
                raise TypeError("it returned None; it has to return the two records combined")
        except Exception as error:
            self.fail("reduce()", error, value)
        return result
