"""Turns what a user's function returns into the declared type, or says clearly why it does not fit.

Runs once per record of an operator with a declared output type, so every conversion has a fast way for a value that
is right already: one comparison of exact Python types, for a tuple or row of all fields at once. Measured with two
fields (Python 3.11): a right tuple 0.22 to 0.29 µs, against about 0.65 µs through the loop over the fields.
Ranges are not checked: Python's integers do not overflow.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from tidegate.common.types import Row, RowKind, make_row

_shortener = reprlib.Repr()
_shortener.maxstring = _shortener.maxother = 80
_shortener.maxdict = 4


class Conversion(NamedTuple):
    """How to convert to one type. `None` (Python's) is a value of every type and stays as it is."""

    convert: Callable[[Any], Any]
    exact: type | None = None  # a value of exactly this class needs no conversion; None: always call `convert`


def mismatch(expected: str, value: Any, hint: str = "") -> TypeError:
    where = f" ({hint})" if hint else ""
    return TypeError(f"Expected a value of type {expected}, got {type(value).__name__}: {shorten(value)}{where}")


def shorten(value: Any) -> str:
    """`repr` of at most about 80 characters, for error messages; never raises."""
    try:
        return _shortener.repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _field_mismatch(expected: str, field: str, error: TypeError) -> TypeError:
    return TypeError(f"In field {field!r} of {expected}: {error}")


# ---------------------------------------------------------------- scalars


def to_integer(name: str) -> Conversion:
    def convert(value: Any) -> Any:
        if type(value) is int or value is None:
            return value
        try:
            return int(operator.index(value))  # bool and numpy integers
        except TypeError:
            pass
        is_integer = getattr(value, "is_integer", None)  # float and numpy floats
        if is_integer is not None and is_integer():
            return int(value)
        raise mismatch(name, value)

    return Conversion(convert, int)


def to_float(name: str) -> Conversion:
    def convert(value: Any) -> Any:
        if type(value) is float or value is None:
            return value
        if isinstance(value, int | float):
            return float(value)
        if not isinstance(value, str | bytes | Decimal) and hasattr(value, "__float__"):  # numpy scalars
            return float(value)
        raise mismatch(name, value)

    return Conversion(convert, float)


def to_string(name: str) -> Conversion:
    def convert(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        raise mismatch(name, value, "use str(...) to turn it into text")

    return Conversion(convert, str)


def to_character(name: str) -> Conversion:
    def convert(value: Any) -> Any:
        if value is None or (isinstance(value, str) and len(value) == 1):
            return value
        raise mismatch(name, value, "one character wanted")

    return Conversion(convert)


def to_boolean(name: str) -> Conversion:
    def convert(value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
            return bool(value)
        raise mismatch(name, value)

    return Conversion(convert, bool)


def to_decimal(name: str) -> Conversion:
    def convert(value: Any) -> Any:
        if value is None or isinstance(value, Decimal):
            return value
        if isinstance(value, int):
            return Decimal(value)
        raise mismatch(name, value)

    return Conversion(convert, Decimal)


def to_instance(
    name: str, kind: type, also: type | None = None, other: Callable[[Any], Any] | None = None, hint: str = ""
) -> Conversion:
    """Values of the class `kind` stay as they are; those of the class `also` go through `other`."""

    def convert(value: Any) -> Any:
        if type(value) is kind or value is None:
            return value
        if also is not None and other is not None and isinstance(value, also):
            return other(value)
        if isinstance(value, kind):
            return value
        raise mismatch(name, value, hint)

    return Conversion(convert, kind)


# ---------------------------------------------------------------- collections


def to_list(name: str, element: Conversion | None, *, bytes_allowed: bool = False) -> Conversion:
    """list, tuple, array.array and numpy arrays become a list; bytes stay bytes where they are allowed."""

    def convert(value: Any) -> Any:
        if value is None or (bytes_allowed and isinstance(value, bytes | bytearray)):
            return value
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise mismatch(name, value)
        if element is None:
            return value if type(value) is list else list(value)
        one = element.convert
        try:
            return [one(v) for v in value]
        except TypeError as error:
            raise TypeError(f"In {name}: {error}") from None

    return Conversion(convert)


def to_map(name: str, key: Conversion | None, value_part: Conversion | None) -> Conversion:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise mismatch(name, value)
        if key is None and value_part is None:
            return value
        try:
            return {
                (k if key is None else key.convert(k)): (v if value_part is None else value_part.convert(v))
                for k, v in value.items()
            }
        except TypeError as error:
            raise TypeError(f"In {name}: {error}") from None

    return Conversion(convert)


# ---------------------------------------------------------------- tuples and rows


def _exact_types(parts: Sequence[Conversion | None]) -> tuple[type, ...] | None:
    """The exact types of fields that need no conversion, when every field has one."""
    exact = [p.exact for p in parts if p is not None and p.exact is not None]
    return tuple(exact) if len(exact) == len(parts) else None


def _convert_fields(
    expected: str, names: Sequence[str], parts: Sequence[Conversion | None], values: Sequence[Any], original: Any
) -> list[Any]:
    if len(values) != len(parts):
        raise mismatch(expected, original, f"{len(parts)} fields wanted, got {len(values)}")
    converted = list(values)
    for i, part in enumerate(parts):
        if part is not None:
            try:
                converted[i] = part.convert(converted[i])
            except TypeError as error:
                raise _field_mismatch(expected, names[i], error) from None
    return converted


def to_tuple(name: str, parts: Sequence[Conversion | None]) -> Conversion:
    """Converts a tuple, a list or a Row to a tuple."""
    exact = _exact_types(parts)
    names = [f"f{i}" for i in range(len(parts))]

    def convert(value: Any) -> Any:
        if type(value) is tuple:
            if exact is not None and tuple(map(type, value)) == exact:
                return value
        elif value is None:
            return None
        elif not isinstance(value, tuple | list | Row):
            raise mismatch(name, value)
        return tuple(_convert_fields(name, names, parts, tuple(value), value))

    return Conversion(convert)


def to_row(name: str, names: tuple[str, ...], named: bool, parts: Sequence[Conversion | None]) -> Conversion:
    """Row, tuple, list, dict and objects with attributes become a Row with the names of the type: f0, f1, ... when none
    were declared (`named` is false). A row that has names keeps them then.

    A dict or object, and a row whose names are the declared ones in another order, are taken by name; all else by
    position. Fields that a dict lacks are None.
    """
    exact = _exact_types(parts)
    name_set = frozenset(names)

    def by_name(value: dict[Any, Any]) -> list[Any]:
        if not name_set.issuperset(value) and not name_set.issubset(value):
            unknown = sorted(map(str, set(value) - name_set))
            missing = [n for n in names if n not in value]
            raise mismatch(name, value, f"unknown fields {unknown}, missing fields {missing}")
        return [value.get(n) for n in names]

    def convert(value: Any) -> Any:
        if type(value) is tuple and exact is not None and tuple(map(type, value)) == exact:
            return make_row(names, list(value))
        result_fields = names
        kind = RowKind.INSERT
        values: Sequence[Any]
        if type(value) is Row:
            own = value._fields
            values = value._values
            if own == names or (own is not None and not named):
                if exact is not None and tuple(map(type, values)) == exact:
                    return value
                result_fields = own
            elif own is not None:
                values = value.values_in_order(names)
            kind = value._row_kind
        elif value is None:
            return None
        elif isinstance(value, dict):
            values = by_name(value)
        elif isinstance(value, tuple | list | Row):
            values = list(value)
        elif name_set.intersection(getattr(value, "__dict__", ())):
            values = by_name(vars(value))
        else:
            raise mismatch(name, value)
        return make_row(result_fields, _convert_fields(name, names, parts, values, value), kind)

    return Conversion(convert)
