"""Values of Python as Arrow columns and back, led by an Arrow type: exact, or refused.

Arrow alone would turn some values into others without a word: 1.5 into 1, a moment into its day, 5 into a day, a text
into its bytes, 1e300 into infinity where there are 32 bits. Here that is a TypeError or ValueError. What is taken is
the same value in another class: 2.0 as 2, an int as a decimal, a datetime with a zone as the moment in UTC. A column of
32 bits takes any finite number that it has a neighbour for: that is what its type means.

Columns are made column by column, also inside of structs: no dict per record.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import TidegateError
from tidegate.common.time import Instant
from tidegate.common.type_schema import ROW, TUPLE, TypeSchema
from tidegate.common.types import Row, make_row
from tidegate.common.value_conversion import shorten
from tidegate.formats.text_values import instant_of, timestamp_of

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]  # a value of None never gets here

UNFIT = (TypeError, ValueError, OverflowError, ArithmeticError, KeyError, AttributeError)
"""What `ColumnBuilder.column` raises; pyarrow's errors are ValueErrors and TypeErrors."""


class RecordMismatchError(TidegateError):
    """A record does not fit the schema; the message has the column, the value and the record, shortened."""


def shown(value: Any) -> str:
    return f"{shorten(value)} ({type(value).__name__})"


# ---------------------------------------------------------------- values to columns


class ColumnBuilder:
    """Makes columns. What a struct, a list and a scalar may be made of is for subclasses to narrow or widen."""

    def column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Raises one of UNFIT when a value does not fit."""
        import pyarrow as pa

        if not pa.types.is_nested(kind):
            return self._scalar_column(values, kind)
        missing = [v is None for v in values]
        present = [v for v in values if v is not None]
        mask = pa.array(missing, pa.bool_()) if len(present) < len(missing) else None
        if pa.types.is_struct(kind):
            columns = self.fields(present, tuple(field.name for field in kind))
            parts = [self.column(_spread(c, missing), kind.field(i).type) for i, c in enumerate(columns)]
            return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
        if not (pa.types.is_map(kind) or pa.types.is_list(kind)):
            return pa.array(values, kind)
        present = list(map(_checked_dict if pa.types.is_map(kind) else self.elements, present))
        offsets = _offsets(present, missing)
        if pa.types.is_map(kind):
            keys = self.column([k for v in present for k in v], kind.key_type)
            items = self.column([i for v in present for i in v.values()], kind.item_type)
            # With the type given as well a mask is refused, without it the names of the inner fields are lost.
            made = pa.MapArray.from_arrays(offsets, keys, items, mask=mask)
            return made.cast(kind) if made.type != kind else made
        elements = self.column(list(chain.from_iterable(present)), kind.value_type)
        return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=mask)

    def _scalar_column(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        taken = self.scalars(values, kind)
        made = pa.array(taken, kind)
        if kind == pa.float32() and pc.any(pc.is_inf(made)).as_py():
            lost = [v for v, f in zip(values, made.to_pylist(), strict=True) if f in (_INF, -_INF) and v != f]
            if lost:
                raise OverflowError(f"{lost[0]!r} is too large for 32 bits")
        return made

    def scalars(self, values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
        """As `pyarrow.array` takes them."""
        classes = set(map(type, values)) - {type(None)}
        self.check_classes(classes, kind)
        wanted, convert = _scalar_rule(kind)
        if classes <= wanted:
            return values
        return [None if v is None else convert(v) for v in values]

    def check_classes(self, classes: set[type], kind: pa.DataType) -> None:
        """Raises TypeError for classes whose values are not even to be converted. Here: none."""

    def fields(self, records: list[Any], names: tuple[str, ...]) -> list[Sequence[Any]]:
        """Records, none of them None, as one column per field."""
        rows = [values_of(record, names) for record in records]
        return list(zip(*rows, strict=True)) if rows else [()] * len(names)

    def elements(self, value: Any) -> Sequence[Any]:
        """Of a list."""
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise TypeError(f"a list is wanted for an array, got {shown(value)}")
        return value


def values_of(record: Any, names: tuple[str, ...]) -> Sequence[Any]:
    """In the order of the names. A dict, and a Row (also one of PySpark) with these names in any order, are taken by
    name, all else by position."""
    values: Sequence[Any]
    own: Sequence[str] | None
    if type(record) is Row:
        values, own = record._values, record._fields
    elif isinstance(record, dict):
        return _by_name(record, names, record)
    elif isinstance(record, tuple | list):
        values, own = record, getattr(record, "__fields__", None) or getattr(record, "_fields", None)
    else:
        raise TypeError(f"the schema has {_columns(names)}, but the record is {shown(record)}")
    if len(values) != len(names):
        raise TypeError(f"the schema has {_columns(names)}, but the record has {len(values)} values: {shorten(record)}")
    if own is None or tuple(own) == names or set(names) != set(own):
        return values
    return _by_name(dict(zip(own, values, strict=True)), names, record)


def _columns(names: tuple[str, ...]) -> str:
    return f"{len(names)} columns ({', '.join(names)})"


def _by_name(values: dict[Any, Any], names: tuple[str, ...], record: Any) -> list[Any]:
    unknown = sorted(map(str, values.keys() - set(names)))
    if unknown:
        raise TypeError(f"the schema has no column {', '.join(unknown)}: {shorten(record)}")
    return [values.get(name) for name in names]


def _spread(present: Sequence[Any], missing: list[bool]) -> Sequence[Any]:
    if len(present) == len(missing):
        return present
    left = iter(present)
    return [None if none else next(left) for none in missing]


def _offsets(present: list[Any], missing: list[bool]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    lengths = np.zeros(len(missing) + 1, dtype=np.int64)
    lengths[1:][~np.array(missing, dtype=bool)] = list(map(len, present))
    return pa.array(np.cumsum(lengths), pa.int32())


def _checked_dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a dict is wanted for a map, got {shown(value)}")
    return value


# ---------------------------------------------------------------- scalars

_INF = float("inf")


def _scalar_rule(kind: pa.DataType) -> tuple[set[type], Convert]:
    """The classes that `pyarrow.array` makes the right thing of, and what is done with values of others."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind):
        return {int}, _whole
    if types.is_decimal(kind):
        return {decimal.Decimal}, lambda value: decimal.Decimal(value) if type(value) is int else value
    if types.is_string(kind):
        return {str}, _instance_of(str)
    if types.is_binary(kind):
        return {bytes}, _bytes
    if types.is_date(kind):
        return {datetime.date}, _day
    if types.is_time(kind):
        return set(), _time_of_day
    if types.is_timestamp(kind):
        return {datetime.datetime}, _moment
    if types.is_duration(kind):
        return {datetime.timedelta}, _instance_of(datetime.timedelta)
    return {float, bool}, lambda value: value


def _instance_of(wanted: type) -> Convert:
    def check(value: Any) -> Any:
        if not isinstance(value, wanted):
            raise TypeError(f"a {wanted.__name__} is wanted, got {shown(value)}")
        return value

    return check


def _whole(value: Any) -> Any:
    if isinstance(value, float | decimal.Decimal) and value % 1 != 0:
        raise TypeError(f"a whole number is wanted, got {shown(value)}")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview | list | tuple):
        raise TypeError(f"bytes are wanted, got {shown(value)}")
    return bytes(value)


def _day(value: Any) -> datetime.date:
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise TypeError(f"a date is wanted, got {shown(value)}; a datetime has date()")
    return value


def _time_of_day(value: Any) -> datetime.time:
    if not isinstance(value, datetime.time) or value.tzinfo is not None:
        raise TypeError(f"a time without a zone is wanted, got {shown(value)}")
    return value


def _moment(value: Any) -> datetime.datetime:
    if isinstance(value, Instant):
        if value.nanos % 1000:
            raise ValueError(f"microseconds are wanted, got {shown(value)} with nanoseconds")
        return timestamp_of(value)
    if not isinstance(value, datetime.datetime):
        raise TypeError(f"a datetime is wanted for a timestamp, got {shown(value)}")
    return value


# ---------------------------------------------------------------- columns to values


class ColumnValues:
    """The Python values of one column: structs as rows, maps as dicts, moments as datetimes without a zone, in UTC.

    `declared` says it closer: tuples, rows without names, Instants, whole numbers and decimals without the zeros that
    fill them up."""

    def __init__(self, field: pa.Field, declared: TypeSchema | None = None) -> None:
        self._name = field.name
        self._type = _without_zones(field.type)
        self._convert = _from_arrow(field.type, declared)

    def of(self, column: pa.Array) -> list[Any]:
        """RecordMismatchError when the column is of another type, or has a value that Python cannot hold."""
        column = cast_column(column, self._name, self._type)
        try:
            values: list[Any] = column.to_pylist()
        except (OverflowError, ValueError) as error:
            raise RecordMismatchError(
                f"column '{self._name}' of type {column.type} has a value that Python cannot hold: {error}"
            ) from error
        convert = self._convert
        return values if convert is None else [None if v is None else convert(v) for v in values]


def cast_column(column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise RecordMismatchError(f"column '{name}' is {column.type}, not {kind}: {error}") from error


def _without_zones(kind: pa.DataType) -> pa.DataType:
    """The type that is read instead: `to_pylist` of it gives datetimes without zones, which are UTC."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_zones(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_zones(kind.key_type), _without_zones(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_without_zones(kind.value_type))
    return kind


def _from_arrow(kind: pa.DataType, declared: TypeSchema | None) -> Convert | None:
    """Of what `to_pylist` gives, never None; None when that is the value."""
    import pyarrow as pa

    def part(number: int, inner: pa.DataType) -> Convert | None:
        known = declared.parts if declared is not None else ()
        return _optional(_from_arrow(inner, known[number] if known else None))

    if pa.types.is_struct(kind):
        parts = [part(i, field.type) for i, field in enumerate(kind)]
        names = tuple(field.name for field in kind)
        fields = None if declared is not None and declared.kind == ROW and not declared.names else names
        is_tuple = declared is not None and declared.kind == TUPLE

        def to_record(struct: dict[str, Any]) -> Any:
            found = [v if c is None else c(v) for c, v in zip(parts, struct.values(), strict=True)]
            return tuple(found) if is_tuple else make_row(fields, found)

        return to_record
    if pa.types.is_map(kind):
        key, item = part(0, kind.key_type), part(1, kind.item_type)
        return lambda pairs: {
            _hashable(k if key is None else key(k)): (v if item is None else item(v)) for k, v in pairs
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = part(0, kind.value_type)
        return None if element is None else lambda values: [element(v) for v in values]
    return None if declared is None else _SCALARS_BACK.get(declared.kind)


def _hashable(key: Any) -> Any:
    """A key of a map may be an array or a struct with one; a dict cannot have a list for a key."""
    if isinstance(key, list):
        return tuple(_hashable(part) for part in key)
    if isinstance(key, Row):
        return make_row(key._fields, [_hashable(part) for part in key._values])
    return key


def _optional(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def trimmed(value: decimal.Decimal) -> decimal.Decimal:
    """Without the zeros that fill it up to the scale of the column."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent >= 0:
        return value
    while exponent < 0 and digits[-1] == 0:
        digits, exponent = digits[:-1] or (0,), exponent + 1
    return decimal.Decimal((sign, digits, exponent))


_SCALARS_BACK: dict[str, Convert] = {"BIG_INT": int, "BIG_DEC": trimmed, "INSTANT": instant_of}
