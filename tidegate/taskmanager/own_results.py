"""What a function has handed over as a result is the next operator's, whatever the function does to its own objects
afterwards: a running total that is changed after `yield`, an accumulator that `reduce` changes in place and returns, a
list that is in the state too.

Flink copies every record between two operators for that. Here results are copied as they come, and only those that

* can be changed in place, and
* somebody else still refers to: a local variable of a generator, an attribute, the state. The interpreter counts
  references, so a record that was made for the `yield`, or a `map` that returns the record it was given, costs no copy.

The first thousand results of an operator are looked into. What follows depends on what they were:

* plain values: from then on three of each batch are looked at (2 µs per batch);
* objects that can be changed, and nobody else had: whether somebody else has it is asked for each result (0.1 µs), and
  three of each batch are looked into, for parts of them that somebody has;
* one that somebody else had: all results are looked into, and copied where needed (0.2 to 0.5 µs for a dict, tuple or
  Row of plain values), for good.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from sys import getrefcount
from types import GeneratorType
from typing import Any

from tidegate.common.types import Row
from tidegate.contracts.output_tag import OutputTag
from tidegate.taskmanager.copying import SCALARS, copied_values

ENOUGH = 1000  # results without anything to change in place, after which three of a batch are looked at
_DEPTH = 20  # of what is looked into; deeper, or around in circles, is copied
_PLAIN = SCALARS | {OutputTag, type, range}
_UNSHARED = 3  # getrefcount of an object in a container, asked in a loop over it: the container, the loop, the question

Function = Callable[..., Any]


class OwnResults:
    """Of one operator. `one` and `many` stand around its function, for the length of a batch; `look` is told what the
    batch has given. `kept` is for results that the operator itself has kept hold of."""

    def __init__(self, copies: bool) -> None:
        self.careful = copies  # something has to be asked of each result
        self._copies = copies  # False: objects are reused, and nothing is ever copied
        self._deep = True  # each result is looked into
        self._met = False  # a result that can be changed
        self._shared = False  # one that somebody else had, and that was copied therefore
        self._seen = 0  # results that were looked into

    def one(self, function: Function) -> Function:
        """For a function of one record that returns one result. The record itself may be the result."""
        if not self.careful:
            return function
        own, light = self._own, not self._deep

        def guarded(record: Any) -> Any:
            result = function(record)
            unshared = getrefcount(result) <= _RETURNED  # asked apart: arguments of a call count too
            if result is record or (light and unshared):
                return result
            return own(result, unshared)

        return guarded

    def many(self, function: Function) -> Function:
        """For a function that yields its results, or returns them; or None."""
        if not self.careful:
            return function
        yielded, listed = self._own_yielded, self._own_listed

        def guarded(*args: Any) -> Any:
            results = function(*args)
            if type(results) is GeneratorType:
                return map(yielded, results)
            if isinstance(results, Iterable):
                made_now = type(results) is list and getrefcount(results) <= _RETURNED
                return listed(results, made_now)
            return results  # None; the caller tells of what is no result

        return guarded

    def kept(self, result: Any) -> Any:
        return self._own(result, False) if self.careful else result

    def look(self, values: list[Any]) -> None:
        """All results of a batch, or of what has come in one go."""
        if self._shared or not values or not self._copies:
            return
        if self._deep:
            self._seen += len(values)
            if self._seen >= ENOUGH:
                self._deep, self.careful = False, self._met
            return
        for value in (values[0], values[len(values) // 2], values[-1]):
            if not stays(value) and not (self.careful and _is_alone(value, _DEPTH)):
                values[:] = [self._own(value, False) for value in values]
                self.careful = self._deep = True
                return

    def _own_yielded(self, result: Any) -> Any:
        unshared = getrefcount(result) <= _YIELDED
        return result if unshared and not self._deep else self._own(result, unshared)

    def _own_listed(self, results: Iterable[Any], made_now: bool) -> list[Any]:
        """Of results in a list that nobody else has (`made_now`), or of an iterator, one by one as they come."""
        own: list[Any] = []
        for result in results:
            unshared = made_now and getrefcount(result) <= _UNSHARED
            own.append(result if unshared and not self._deep else self._own(result, unshared))
        return own

    def _own(self, result: Any, unshared: bool) -> Any:
        if type(result) in _PLAIN or stays(result):
            return result
        self._met = True
        if unshared and _is_alone(result, _DEPTH):
            return result
        self._shared = self._deep = True
        if type(result) is dict and _PLAIN.issuperset(map(type, result.values())):  # the commonest case first
            return result.copy()
        if type(result) is tuple and len(result) == 2 and type(result[0]) is OutputTag:
            return result[0], copied_values([result[1]])[0]
        return copied_values([result])[0]


def stays(value: Any, depth: int = _DEPTH) -> bool:
    """There is nothing in it that could be changed in place."""
    if type(value) in _PLAIN:
        return True
    if isinstance(value, (tuple, frozenset)):
        others = [part for part in value if type(part) not in _PLAIN]
        return not others or (depth > 0 and all(stays(part, depth - 1) for part in others))
    return isinstance(value, enum.Enum)


def _is_alone(value: Any, depth: int) -> bool:
    """Of an object that nobody else has: nobody has anything in it either that could be changed. Objects of classes
    that are not known here, such as arrays, are taken for one piece."""
    kind = type(value)
    parts: Iterable[Any]
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple, set)):
        parts = value
    elif kind is Row:
        parts = value._values
    elif isinstance(kind.__dict__.get("__slots__"), (tuple, list)):
        parts = [getattr(value, name, None) for name in kind.__slots__]  # one reference more: copied rather than not
    elif hasattr(value, "__dict__"):
        parts = vars(value).values()
    else:
        base = getattr(value, "base", None)  # of an array that is a view
        return base is None or getrefcount(base) <= _UNSHARED
    if _PLAIN.issuperset(map(type, parts)):
        return True
    for part in parts:
        if type(part) in _PLAIN:
            continue
        if depth == 0 or (getrefcount(part) > _UNSHARED and not stays(part)) or not _is_part_alone(part, depth):
            return False
    return True


def _is_part_alone(part: Any, depth: int) -> bool:
    return stays(part) or _is_alone(part, depth - 1)


def _returned_count() -> int:
    """What `one` counts for an object that nobody else has."""

    def made() -> Any:
        return [0]

    result = made()
    count = getrefcount(result)
    return count


def _yielded_count() -> int:
    """What `_own_yielded` counts for an object that nobody else has."""
    counts: list[int] = []

    class Probe:
        def look(self, result: Any) -> None:
            count = getrefcount(result)
            counts.append(count)

    list(map(Probe().look, ([0] for _ in (0,))))
    return counts[0]


_RETURNED = _returned_count()
_YIELDED = _yielded_count()
