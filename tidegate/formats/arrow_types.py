"""Declared types as Arrow types, and values on their way in and out: for parquet and orc."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.time import Instant
from tidegate.common.type_schema import DATE, LIST, TIME, TIMESTAMP
from tidegate.common.typeinfo import MapTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from tidegate.common.types import make_row
from tidegate.formats.text_values import kind_of, timestamp_of

if TYPE_CHECKING:
    import pyarrow as pa

Conversion = Callable[[Any], Any]  # a value of None never gets here

DECIMAL_SCALE = 18  # digits behind the point of a BIG_DEC


def arrow_type(type_info: TypeInformation) -> pa.DataType:
    """ConfigurationError for a type without columns."""
    import pyarrow as pa

    kind = kind_of(type_info)
    scalars = {
        "STRING": pa.string(),
        "CHAR": pa.string(),
        "BOOLEAN": pa.bool_(),
        "BYTE": pa.int8(),
        "SHORT": pa.int16(),
        "INT": pa.int32(),
        "LONG": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "BIG_INT": pa.decimal128(38, 0),
        "BIG_DEC": pa.decimal128(38, DECIMAL_SCALE),
        "INSTANT": pa.timestamp("us", "UTC"),
        "BYTES": pa.binary(),
        DATE: pa.date32(),
        TIME: pa.time64("us"),
        TIMESTAMP: pa.timestamp("us"),
    }
    if kind in scalars:
        return scalars[kind]
    if isinstance(type_info, RowTypeInfo):
        return pa.struct(_fields(type_info))
    if isinstance(type_info, TupleTypeInfo):
        types = type_info.get_field_types()
        return pa.struct([pa.field(f"f{i}", arrow_type(t)) for i, t in enumerate(types)])
    if isinstance(type_info, MapTypeInfo):
        return pa.map_(arrow_type(type_info.key_type), arrow_type(type_info.value_type))
    if kind == LIST:
        return pa.list_(arrow_type(type_info.element_type))  # type: ignore[attr-defined]
    raise ConfigurationError(f"a column of a file cannot have the type {type_info}; declare what it holds")


def _fields(type_info: RowTypeInfo) -> list[pa.Field]:
    import pyarrow as pa

    names, types = type_info.get_field_names(), type_info.get_field_types()
    return [pa.field(name, arrow_type(t)) for name, t in zip(names, types, strict=True)]


def arrow_schema(type_info: RowTypeInfo) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(_fields(type_info))


# ---------------------------------------------------------------- values


def _optional(convert: Conversion | None) -> Conversion | None:
    if convert is None:
        return None
    return lambda value: None if value is None else convert(value)


def to_arrow(type_info: TypeInformation) -> Conversion | None:
    """What `pyarrow.array` takes, of a value of the type; None when the value will do."""
    kind = kind_of(type_info)
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        types = type_info.get_field_types()
        names = (
            type_info.get_field_names() if isinstance(type_info, RowTypeInfo) else [f"f{i}" for i in range(len(types))]
        )
        parts = [_optional(to_arrow(t)) for t in types]
        return lambda row: {
            name: value if convert is None else convert(value)
            for name, convert, value in zip(names, parts, row, strict=True)
        }
    if isinstance(type_info, MapTypeInfo):
        key, value = _optional(to_arrow(type_info.key_type)), _optional(to_arrow(type_info.value_type))
        return lambda pairs: [
            (k if key is None else key(k), v if value is None else value(v)) for k, v in pairs.items()
        ]
    if kind == LIST:
        element = _optional(to_arrow(type_info.element_type))  # type: ignore[attr-defined]
        return None if element is None else lambda values: [element(v) for v in values]
    return _TO_ARROW.get(kind)


def from_arrow(type_info: TypeInformation) -> Conversion | None:
    """The value of the type, of what `to_pylist` gives; None when that is it."""
    kind = kind_of(type_info)
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        types = type_info.get_field_types()
        is_row = isinstance(type_info, RowTypeInfo)
        names = tuple(type_info.get_field_names()) if isinstance(type_info, RowTypeInfo) else ()
        fields = names if isinstance(type_info, RowTypeInfo) and type_info._named else None
        parts = [_optional(from_arrow(t)) for t in types]

        def to_row(struct: dict[str, Any]) -> Any:
            found = [v if c is None else c(v) for c, v in zip(parts, struct.values(), strict=True)]
            return make_row(fields, found) if is_row else tuple(found)

        return to_row
    if isinstance(type_info, MapTypeInfo):
        key, value = _optional(from_arrow(type_info.key_type)), _optional(from_arrow(type_info.value_type))
        return lambda pairs: {(k if key is None else key(k)): (v if value is None else value(v)) for k, v in pairs}
    if kind == LIST:
        element = _optional(from_arrow(type_info.element_type))  # type: ignore[attr-defined]
        return None if element is None else lambda values: [element(v) for v in values]
    return _FROM_ARROW.get(kind)


def _naive(moment: datetime.datetime) -> datetime.datetime:
    return moment if moment.tzinfo is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)


def _instant(moment: datetime.datetime) -> Instant:
    micros = (_naive(moment) - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    return Instant(micros // 1_000_000, micros % 1_000_000 * 1000)


def _trimmed(value: decimal.Decimal) -> decimal.Decimal:
    """Without the zeros that fill it up to the scale of the column."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent >= 0:
        return value
    while exponent < 0 and digits[-1] == 0:
        digits, exponent = digits[:-1] or (0,), exponent + 1
    return decimal.Decimal((sign, digits, exponent))


_TO_ARROW: dict[str, Conversion] = {
    "BIG_INT": decimal.Decimal,
    "INSTANT": lambda value: timestamp_of(value).replace(tzinfo=datetime.UTC),
    TIMESTAMP: _naive,
    "BYTES": bytes,
}
_FROM_ARROW: dict[str, Conversion] = {
    "BIG_INT": int,
    "BIG_DEC": _trimmed,
    "INSTANT": _instant,
    TIMESTAMP: _naive,
}


class ColumnsOfRows:
    """Turns rows into Arrow columns and back."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        self.schema = arrow_schema(row_type)
        self._names = tuple(row_type.get_field_names())
        self._row_names = self._names if row_type._named else None
        self._to = [_optional(to_arrow(t)) for t in row_type.get_field_types()]
        self._from = [_optional(from_arrow(t)) for t in row_type.get_field_types()]

    def batch(self, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        """Of at least one row; a row is the list of its values."""
        import pyarrow as pa

        arrays = []
        for field, convert, column in zip(self.schema, self._to, zip(*rows, strict=True), strict=True):
            values = list(column) if convert is None else [convert(v) for v in column]
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise TidegateError(
                    f"column '{field.name}' of type {field.type} cannot hold one of {len(values)} values: {error}"
                ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def rows(self, batch: pa.RecordBatch) -> list[Any]:
        """Columns are found by name and cast to their type; those that are missing are None."""
        columns = []
        for field, convert in zip(self.schema, self._from, strict=True):
            index = batch.schema.get_field_index(field.name)
            if index < 0:
                columns.append([None] * batch.num_rows)
                continue
            values = column_values(batch.column(index), field)
            columns.append(values if convert is None else [convert(v) for v in values])
        names = self._row_names
        return [make_row(names, list(values)) for values in zip(*columns, strict=True)]


def column_values(column: pa.Array, field: pa.Field) -> list[Any]:
    import pyarrow as pa

    if column.type != field.type:
        try:
            column = column.cast(field.type)
        except pa.ArrowException as error:
            raise TidegateError(f"column '{field.name}' is {column.type}, not {field.type}: {error}") from error
    values: list[Any] = column.to_pylist()
    return values
