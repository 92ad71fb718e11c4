"""Reduce in BATCH mode: one result per key, when all its records have come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from tidegate.common.record_batch import RecordBatch
from tidegate.taskmanager.operators.base import OperatorContext
from tidegate.taskmanager.operators.keyed import ReduceOperator

_EMIT = 4096


class FinalReduceOperator(ReduceOperator):
    """The keys whose records are coming now are in a plain dict. Their state is what a rolling reduce would have, so
    that a streaming job can go on from a savepoint."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._results: dict[Any, Any] = {}
        self._stamps: dict[Any, int] = {}  # of the last record

    def process(self, batch: RecordBatch) -> None:
        select = self.selectors[0]
        self.check_key(select, batch.values[0])
        rest = iter(batch.values)
        self._take(map(select, batch.values), batch.values, rest)
        if batch.timestamps is not None:
            self._stamps.update(zip(map(select, batch.values), batch.timestamps, strict=True))

    def process_combined(self, keys: list[Any], values: list[Any]) -> None:
        self._take(iter(keys), values, iter(values))

    def _take(self, keys: Iterator[Any], values: list[Any], rest: Iterator[Any]) -> None:
        reduce, results, backend = self._reduce, self._results, self.backend
        try:
            for v in rest:
                key = backend.current_key = next(keys)
                so_far = results.get(key)
                if so_far is None:
                    results[key] = v
                else:
                    results[key] = result = reduce(so_far, v)
                    if result is None:
                        raise TypeError("it returned None; it has to return the two records combined")
        except Exception as error:
            self.fail_keyed("reduce()", error, values, rest)

    def end_of_keys(self, keep: bool) -> None:
        results, self._results = self._results, {}
        stamps, self._stamps = self._stamps, {}
        if keep:
            for key, value in results.items():
                self.backend.current_key = key
                self._state.update(value)
        items = iter(results.items())
        while some := list(islice(items, _EMIT)):
            times = [stamps[key] for key, _ in some] if stamps else None
            self.output(RecordBatch([value for _, value in some], times))
