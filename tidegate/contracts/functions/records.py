"""Functions that are called with one record, or one key, at a time and keep neither state nor timers."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

from tidegate.contracts.functions.base import Function


class MapFunction(Function):
    @abc.abstractmethod
    def map(self, value: Any) -> Any:
        """One record in, one record out."""


class MapBatchesFunction(Function):
    """For `DataStream.map_batches`: many records at once, as models and bulk requests want them. Tidegate's own."""

    @abc.abstractmethod
    def map_batches(self, values: list[Any]) -> Iterable[Any]:
        """The results of these records, one for each, in the same order. Keep no record back: whatever comes before a
        checkpoint has been handed over by then."""


class CoMapFunction(Function):
    @abc.abstractmethod
    def map1(self, value: Any) -> Any:
        """A record of the first input in, one record out."""

    @abc.abstractmethod
    def map2(self, value: Any) -> Any:
        """A record of the second input in, one record out."""


class FlatMapFunction(Function):
    @abc.abstractmethod
    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """One record in, any number out: yield them, or return an iterable or None."""


class CoFlatMapFunction(Function):
    @abc.abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None: ...

    @abc.abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None: ...


class ReduceFunction(Function):
    @abc.abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine the value so far with the next one; must not change its arguments."""


class AggregateFunction(Function):
    """Folds values of one type into an accumulator and makes a result of it."""

    @abc.abstractmethod
    def create_accumulator(self) -> Any: ...

    @abc.abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with `value` in it (a new one, or the same one changed)."""

    @abc.abstractmethod
    def get_result(self, accumulator: Any) -> Any: ...

    @abc.abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """One accumulator for two. Only called for windows that merge (sessions)."""


class KeySelector(Function):
    @abc.abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key of a record: hashable, and the same every time it is asked for the same record."""


class FilterFunction(Function):
    @abc.abstractmethod
    def filter(self, value: Any) -> bool:
        """Says whether the record stays in the stream."""


class Partitioner(Function):
    @abc.abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """The downstream subtask for a key, 0 .. num_partitions-1."""
