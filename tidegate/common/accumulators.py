"""Accumulators: values that functions add to, merged over all subtasks into the result of the job.

A function adds one with `RuntimeContext.add_accumulator(name, accumulator)`; the same name in several functions and
subtasks is one accumulator of the job. They are no state: what an attempt that failed has added is lost with it.
"""

from __future__ import annotations

import abc
import pickle
from collections import Counter as _Counts
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import cloudpickle

from tidegate.common.errors import ConfigurationError


class Accumulator(abc.ABC):
    """Subclass it for another way of merging. Has to be picklable."""

    @abc.abstractmethod
    def add(self, value: Any) -> None: ...

    @abc.abstractmethod
    def get_local_value(self) -> Any:
        """The value as the result of the job shows it."""

    @abc.abstractmethod
    def merge(self, other: Self) -> None:
        """Take over what another subtask has added to its own one, of the same class."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_local_value()!r})"


class _Sum(Accumulator):
    _zero: Any

    def __init__(self, value: Any = None) -> None:
        self._value = self._zero if value is None else value

    def add(self, value: Any) -> None:
        self._value += value

    def get_local_value(self) -> Any:
        return self._value

    def merge(self, other: Self) -> None:
        self._value += other._value


class IntCounter(_Sum):
    _zero = 0


class LongCounter(_Sum):
    _zero = 0


class DoubleCounter(_Sum):
    _zero = 0.0


class _Extreme(Accumulator):
    """The largest or the smallest value that was added; None before the first one."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    @staticmethod
    @abc.abstractmethod
    def _choose(a: Any, b: Any) -> Any: ...

    def add(self, value: Any) -> None:
        self._value = value if self._value is None else self._choose(self._value, value)

    def get_local_value(self) -> Any:
        return self._value

    def merge(self, other: Self) -> None:
        if other._value is not None:
            self.add(other._value)


class Minimum(_Extreme):
    @staticmethod
    def _choose(a: Any, b: Any) -> Any:
        return min(a, b)


class Maximum(_Extreme):
    @staticmethod
    def _choose(a: Any, b: Any) -> Any:
        return max(a, b)


class AverageAccumulator(Accumulator):
    """The mean of all values, 0.0 when there are none."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._count += 1
        self._sum += value

    def get_local_value(self) -> float:
        return self._sum / self._count if self._count else 0.0

    def merge(self, other: Self) -> None:
        self._count += other._count
        self._sum += other._sum


class ListAccumulator(Accumulator):
    """All values, in no particular order between subtasks. They come to the driver's memory."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def add(self, value: Any) -> None:
        self._values.append(value)

    def get_local_value(self) -> list[Any]:
        return list(self._values)

    def merge(self, other: Self) -> None:
        self._values += other._values


class Histogram(Accumulator):
    """Counts how often each value was added."""

    def __init__(self) -> None:
        self._counts: _Counts[Any] = _Counts()

    def add(self, value: Any) -> None:
        self._counts[value] += 1

    def get_local_value(self) -> dict[Any, int]:
        return dict(self._counts)

    def merge(self, other: Self) -> None:
        self._counts.update(other._counts)


def merge_all(parts: Iterable[Mapping[str, Accumulator]]) -> dict[str, Accumulator]:
    """One accumulator per name. The parts are used up: merging changes them."""
    merged: dict[str, Accumulator] = {}
    for part in parts:
        for name, accumulator in part.items():
            known = merged.setdefault(name, accumulator)
            if known is accumulator:
                continue
            if type(known) is not type(accumulator):
                raise ConfigurationError(
                    f"accumulator '{name}' is a {type(known).__name__} in one function and a "
                    f"{type(accumulator).__name__} in another; give each a name of its own"
                )
            known.merge(accumulator)
    return merged


def dump(parts: Sequence[Mapping[str, Accumulator]]) -> bytes:
    """The accumulators as bytes, for the way to the driver; b"" when there are none."""
    return bytes(cloudpickle.dumps(list(parts))) if parts else b""


def load_values(parts: Iterable[bytes]) -> dict[str, Any]:
    """The merged values of what `dump` made in the slots."""
    loaded = [accumulators for part in parts if part for accumulators in pickle.loads(part)]
    return {name: accumulator.get_local_value() for name, accumulator in sorted(merge_all(loaded).items())}
