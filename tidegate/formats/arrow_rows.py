"""Records as Arrow columns and back, led by an Arrow schema: for DataFrames, landed batches and Delta tables.

`arrow_types` does the same for a declared type. Here the schema says more than a declared type can (the precision of a
decimal, a column that must not be null), and the message about a value that does not fit shows the record.

Values: a struct is a `Row`, a map a dict, a list a list, a timestamp a datetime without a zone, in UTC when the column
has a zone. On the way to columns a datetime without a zone is taken as UTC, one with a zone is converted.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import TidegateError
from tidegate.common.time import Instant
from tidegate.common.types import Row, make_row
from tidegate.common.value_conversion import shorten
from tidegate.formats.text_values import timestamp_of

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]


class RecordMismatchError(TidegateError):
    """A record does not fit the schema; the message has the column, the value and the record, shortened."""


# ---------------------------------------------------------------- columns to rows


class RowsOfColumns:
    """Named Rows of record batches with exactly the columns of the schema, in this order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = tuple(schema.names)
        self._columns = [ColumnValues(field) for field in schema]

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        columns = [self._columns[i].of(batch.column(i)) for i in range(batch.num_columns)]
        names = self._names
        if not columns:
            return [make_row((), []) for _ in range(batch.num_rows)]
        return [make_row(names, list(values)) for values in zip(*columns, strict=True)]


class ColumnValues:
    """The Python values of one column: structs as rows, maps as dicts, moments as datetimes without a zone, in UTC."""

    def __init__(self, field: pa.Field) -> None:
        self._name = field.name
        self._type = _without_zones(field.type)
        self._convert = _from_arrow(field.type)

    def of(self, column: pa.Array) -> list[Any]:
        if column.type != self._type:
            column = column.cast(self._type)
        try:
            values: list[Any] = column.to_pylist()
        except (OverflowError, ValueError) as error:
            raise RecordMismatchError(
                f"column '{self._name}' of type {column.type} has a value that Python cannot hold: {error}"
            ) from error
        convert = self._convert
        return values if convert is None else [None if v is None else convert(v) for v in values]


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


def _from_arrow(kind: pa.DataType) -> Convert | None:
    """Of what `to_pylist` gives, never None; None when that is the value."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        names = tuple(field.name for field in kind)
        parts = [_optional(_from_arrow(field.type)) for field in kind]
        return lambda struct: make_row(
            names, [v if c is None else c(v) for c, v in zip(parts, struct.values(), strict=True)]
        )
    if pa.types.is_map(kind):
        key, item = _from_arrow(kind.key_type), _optional(_from_arrow(kind.item_type))
        return lambda pairs: {
            _hashable(k if key is None else key(k)): (v if item is None else item(v)) for k, v in pairs
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _optional(_from_arrow(kind.value_type))
        return None if element is None else lambda values: [element(v) for v in values]
    return None


def _hashable(key: Any) -> Any:
    """A key of a map may be an array or a struct with one; a dict cannot have a list for a key."""
    if isinstance(key, list):
        return tuple(_hashable(part) for part in key)
    if isinstance(key, Row):
        return make_row(key._fields, [_hashable(part) for part in key._values])
    return key


def _optional(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


# ---------------------------------------------------------------- records to columns


class ColumnsOfRecords:
    """Record batches of the schema, of Rows, tuples, lists or dicts.

    A dict, and a Row (also one of PySpark) with the schema's names in any order, are taken by name, all else by
    position. `single`: a record is itself the value of the only column.
    """

    def __init__(self, schema: pa.Schema, single: bool = False) -> None:
        self.schema = schema
        self._single = single
        self._names = tuple(schema.names)
        self._name_set = frozenset(self._names)
        self._convert = [_to_arrow(field.type) for field in schema]

    def batch(self, records: Sequence[Any]) -> pa.RecordBatch:
        """RecordMismatchError shows the first record that does not fit."""
        import pyarrow as pa

        if self._single:
            columns: list[Sequence[Any]] = [records]
        else:
            columns = list(zip(*[self._fields(record) for record in records], strict=True)) or [()] * len(self._names)
        arrays = [self._array(i, column, records) for i, column in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _fields(self, record: Any) -> Sequence[Any]:
        values: Sequence[Any]
        own: Sequence[str] | None
        if type(record) is Row:
            values, own = record._values, record._fields
        elif isinstance(record, dict):
            return self._by_name(record, record)
        elif isinstance(record, tuple | list):
            values, own = record, getattr(record, "__fields__", None) or getattr(record, "_fields", None)
        else:
            wanted = f"{len(self._names)} columns ({', '.join(self._names)})"
            raise RecordMismatchError(f"the schema has {wanted}, but the record is {_shown(record)}")
        if len(values) != len(self._names):
            raise RecordMismatchError(
                f"the schema has {len(self._names)} columns ({', '.join(self._names)}), but the record has "
                f"{len(values)} values: {shorten(record)}"
            )
        if own is None or tuple(own) == self._names or self._name_set != set(own):
            return values
        return self._by_name(dict(zip(own, values, strict=True)), record)

    def _by_name(self, values: dict[Any, Any], record: Any) -> list[Any]:
        unknown = sorted(map(str, values.keys() - self._name_set))
        if unknown:
            raise RecordMismatchError(f"the schema has no column {', '.join(unknown)}: {shorten(record)}")
        return [values.get(name) for name in self._names]

    def _array(self, index: int, column: Sequence[Any], records: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        field, convert = self.schema.field(index), self._convert[index]
        try:
            values = column if convert is None else [None if v is None else convert(v) for v in column]
            array = pa.array(values, field.type)
        except _UNFIT as error:
            raise self._misfit(field, convert, column, records, error) from error
        if array.null_count and not field.nullable:
            first = next(i for i, value in enumerate(column) if value is None)
            raise RecordMismatchError(
                f"column '{field.name}' must not be null, but the record is {shorten(records[first])}"
            )
        return array

    def _misfit(
        self, field: pa.Field, convert: Convert | None, column: Sequence[Any], records: Sequence[Any], error: Exception
    ) -> RecordMismatchError:
        import pyarrow as pa

        for value, record in zip(column, records, strict=True):
            try:
                pa.array([value if convert is None or value is None else convert(value)], field.type)
            except _UNFIT as reason:
                return RecordMismatchError(
                    f"column '{field.name}' of type {field.type} cannot hold {_shown(value)}, in the record "
                    f"{shorten(record)}: {reason}"
                )
        return RecordMismatchError(f"column '{field.name}' of type {field.type} cannot be made: {error}")


_UNFIT = (TypeError, ValueError, OverflowError, ArithmeticError, KeyError, AttributeError)  # pyarrow's are ValueErrors


def _shown(value: Any) -> str:
    return f"{shorten(value)} ({type(value).__name__})"


def _to_arrow(kind: pa.DataType) -> Convert | None:
    """What `pyarrow.array` takes, of a value that is not None; None when that is the value."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return _struct_to_arrow(kind)
    if pa.types.is_map(kind):
        key, item = _to_arrow(kind.key_type), _optional(_to_arrow(kind.item_type))
        return lambda pairs: [
            (k if key is None else key(k), v if item is None else item(v)) for k, v in _checked_dict(pairs).items()
        ]
    if pa.types.is_list(kind):
        element = _optional(_to_arrow(kind.value_type))
        return lambda values: [v if element is None else element(v) for v in _checked_list(values)]
    if pa.types.is_timestamp(kind):
        return _moment
    if pa.types.is_integer(kind):
        return lambda value: value if type(value) is int else _whole(value)
    if pa.types.is_decimal(kind):
        return lambda value: decimal.Decimal(value) if type(value) is int else value
    if pa.types.is_binary(kind):
        return _bytes
    if pa.types.is_date(kind):
        return _day
    return None


def _struct_to_arrow(kind: pa.StructType) -> Convert:
    import pyarrow as pa

    names = tuple(field.name for field in kind)
    parts = [_optional(_to_arrow(field.type)) for field in kind]
    fields_of = ColumnsOfRecords(pa.schema(list(kind)))._fields

    def to_dict(record: Any) -> dict[str, Any]:
        values = fields_of(record)
        return {n: v if c is None else c(v) for n, c, v in zip(names, parts, values, strict=True)}

    def convert(record: Any) -> dict[str, Any]:
        try:
            return to_dict(record)
        except RecordMismatchError as error:
            raise TypeError(str(error)) from error

    return convert


def _checked_dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a dict is wanted for a map, got {_shown(value)}")
    return value


def _checked_list(value: Any) -> Sequence[Any]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise TypeError(f"a list is wanted for an array, got {_shown(value)}")
    return value


def _whole(value: Any) -> Any:
    """pyarrow would cut the fraction off without a word."""
    if isinstance(value, float | decimal.Decimal) and value % 1 != 0:
        raise TypeError(f"a whole number is wanted, got {_shown(value)}")
    return value


def _bytes(value: Any) -> bytes:
    """pyarrow would take a text for its bytes in UTF-8."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"bytes are wanted, got {_shown(value)}")
    return bytes(value)


def _day(value: Any) -> datetime.date:
    """pyarrow would take a moment for its day, and a number for the days since 1970."""
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        raise TypeError(f"a date is wanted, got {_shown(value)}; a datetime has date()")
    return value


def _moment(value: Any) -> datetime.datetime:
    if isinstance(value, Instant):
        return timestamp_of(value)
    if not isinstance(value, datetime.datetime):
        raise TypeError(f"a datetime is wanted for a timestamp, got {_shown(value)}")
    return value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
