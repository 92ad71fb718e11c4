"""sum, min, max, min_by and max_by as reduce functions over one field of a record.

A record is a tuple (also a named one), a list, a Row, or a plain value, of which field 0 is the value itself. The
result has the container type of the record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.types import Row

Reduce = Callable[[Any, Any], Any]


def checked_position(method: str, position: Any) -> int | str:
    """Checks a field's index (from 0) or name, and returns it."""
    if isinstance(position, bool) or not isinstance(position, (int, str)):
        raise TypeError(
            f"{method}: the field has to be an index or a name, got {type(position).__name__}: {position!r}"
        )
    if isinstance(position, int) and position < 0:
        raise ConfigurationError(f"{method}: the index of the field has to be at least 0, got {position}")
    if position == "":
        raise ConfigurationError(f"{method}: the name of the field is empty")
    return position


# Plain tuples and an index are what most programs have, and each reduce function below begins with them: as fast as a
# lambda of the user's, where the way over `field_of` takes two to five times as long. It is also taken for what goes
# wrong with a tuple, since it knows what to say.


def sum_of(position: int | str) -> Reduce:
    def reduce(first: Any, second: Any) -> Any:
        return with_field(first, position, field_of(first, position) + field_of(second, position))

    if not isinstance(position, int):
        return reduce

    def reduce_tuples(first: Any, second: Any) -> Any:
        if type(first) is tuple and type(second) is tuple:
            try:
                fields = [*first]
                fields[position] = fields[position] + second[position]  # a new value: += could change one in place
                return tuple(fields)
            except IndexError:
                pass
        return reduce(first, second)

    return reduce_tuples


def min_of(position: int | str) -> Reduce:
    """The smallest value of the field; the other fields are those of the first record."""

    def reduce(first: Any, second: Any) -> Any:
        candidate = field_of(second, position)
        return with_field(first, position, candidate) if candidate < field_of(first, position) else first

    if not isinstance(position, int):
        return reduce

    def reduce_tuples(first: Any, second: Any) -> Any:
        if type(first) is tuple and type(second) is tuple:
            try:
                candidate = second[position]
                if not candidate < first[position]:
                    return first
                fields = [*first]
                fields[position] = candidate
                return tuple(fields)
            except IndexError:
                pass
        return reduce(first, second)

    return reduce_tuples


def max_of(position: int | str) -> Reduce:
    """The largest value of the field; the other fields are those of the first record."""

    def reduce(first: Any, second: Any) -> Any:
        candidate = field_of(second, position)
        return with_field(first, position, candidate) if candidate > field_of(first, position) else first

    if not isinstance(position, int):
        return reduce

    def reduce_tuples(first: Any, second: Any) -> Any:
        if type(first) is tuple and type(second) is tuple:
            try:
                candidate = second[position]
                if not candidate > first[position]:
                    return first
                fields = [*first]
                fields[position] = candidate
                return tuple(fields)
            except IndexError:
                pass
        return reduce(first, second)

    return reduce_tuples


def min_by(position: int | str) -> Reduce:
    """The whole record with the smallest value of the field; of equal ones the first."""
    index: Any = position  # a name raises TypeError for a tuple

    def reduce(first: Any, second: Any) -> Any:
        if type(first) is tuple and type(second) is tuple:
            try:
                return second if second[index] < first[index] else first
            except (IndexError, TypeError):
                pass
        return second if field_of(second, position) < field_of(first, position) else first

    return reduce


def max_by(position: int | str) -> Reduce:
    """The whole record with the largest value of the field; of equal ones the first."""
    index: Any = position  # a name raises TypeError for a tuple

    def reduce(first: Any, second: Any) -> Any:
        if type(first) is tuple and type(second) is tuple:
            try:
                return second if second[index] > first[index] else first
            except (IndexError, TypeError):
                pass
        return second if field_of(second, position) > field_of(first, position) else first

    return reduce


def field_of(record: Any, position: int | str) -> Any:
    if isinstance(record, (tuple, list, Row)):
        return record[_index(record, position)]
    if position == 0:
        return record
    raise TypeError(_no_field(record, position))


def with_field(record: Any, position: int | str, value: Any) -> Any:
    """A copy of the record with one field replaced."""
    if isinstance(record, tuple):
        index = _index(record, position)
        fields = (*record[:index], value, *record[index + 1 :])
        return fields if type(record) is tuple else type(record)._make(fields)  # type: ignore[attr-defined]
    if isinstance(record, (Row, list)):
        result = copy.copy(record)
        result[_index(record, position)] = value
        return result
    return value


def _index(record: Any, position: int | str) -> int:
    if isinstance(position, int):
        if position < len(record):
            return position
    else:
        names = getattr(record, "_fields", None) or ()
        if position in names:
            return int(names.index(position))
    raise TypeError(_no_field(record, position))


def _no_field(record: Any, position: int | str) -> str:
    text = repr(record)
    text = text if len(text) <= 80 else text[:77] + "..."
    return (
        f"the record {text} of type {type(record).__name__} has no field {position!r}; sum, min, max, min_by and "
        "max_by work on tuples, lists and Rows by index, on Rows and named tuples by name, and on plain "
        "values with index 0"
    )
