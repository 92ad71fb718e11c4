"""Reduce in BATCH mode: one result per key, when all its records have come."""

from __future__ import annotations

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
        reduce, select, results = self._reduce, self.selectors[0], self._results
        self.check_key(select, batch.values[0])
        rest = iter(batch.values)
        try:
            for v in rest:
                key = self.backend.current_key = select(v)
                so_far = results.get(key)
                results[key] = v if so_far is None else reduce(so_far, v)
            if batch.timestamps is not None:
                self._stamps.update(zip(map(select, batch.values), batch.timestamps, strict=True))
        except Exception as error:
            self.fail_keyed("reduce()", error, batch.values, rest)

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
