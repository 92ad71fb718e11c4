"""Values of state as columns: typed where they fit, with the pickled bytes beside what the column does not say.

A value that does not fit its column is null there, and has its bytes: nothing is rounded, nothing lost. State tables
(`snapshots.columns`) show values by the same means.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.common.time import Instant
from tidegate.common.type_schema import TypeSchema
from tidegate.common.types import Row
from tidegate.formats.arrow_columns import ColumnBuilder, ColumnValues, trimmed
from tidegate.formats.arrow_types import Place, arrow_type, declared_scalar, is_typed
from tidegate.state.serialization import dumps

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TEXT = 200
_SEQUENCES = (list, tuple, set, frozenset)


def text_of(value: Any) -> str | None:
    """For people: a string as it is, anything else as `repr`, shortened."""
    if value is None:
        return None
    if type(value) is str:
        text = value
    else:
        try:
            text = repr(value)
        except Exception as error:  # of the user's class
            text = f"<{type(value).__name__} whose repr() fails: {error!r}>"
    text = text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
    return text.encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- shown


class ShownColumns(ColumnBuilder):
    """Columns that show values of any class: a value of another class than the column's does not fit, even where it
    could be converted. `text`: what text columns take of values that are no strings; None: they do not fit either.
    `whole`: a record with more fields than the column's does not fit."""

    def __init__(self, text: Callable[[Any], str | None] | None, whole: bool) -> None:
        self._text = text
        self._whole = whole

    def scalars(self, values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
        import pyarrow as pa

        if pa.types.is_string(kind) and self._text is not None:
            return list(map(self._text, values))
        return super().scalars(values, kind)

    def check_classes(self, classes: set[type], kind: pa.DataType) -> None:
        if not all(_holds(kind, found) for found in classes):
            raise TypeError(f"no {kind}")

    def elements(self, value: Any) -> Sequence[Any]:
        if type(value) not in _SEQUENCES:
            raise TypeError("no list")
        return value  # type: ignore[no-any-return]

    def fields(self, records: list[Any], names: tuple[str, ...]) -> list[Sequence[Any]]:
        if set(map(type, records)) <= {tuple} and all(len(r) == len(names) for r in records):
            return list(zip(*records, strict=True)) or [()] * len(names)
        rows = [self._parts(record, names) for record in records]
        return list(zip(*rows, strict=True))

    def _parts(self, record: Any, names: tuple[str, ...]) -> list[Any]:
        more = False
        if isinstance(record, Row):
            parts, more = record.get_fields_by_names(names), len(record) > len(names)
        elif isinstance(record, dict):
            parts, more = [record.get(n) for n in names], not record.keys() <= set(names)
        elif isinstance(record, tuple | list):
            parts = list(record)
        else:
            parts = [getattr(record, n) for n in names]
            more = dataclasses.is_dataclass(record) and len(dataclasses.fields(record)) > len(names)
        if len(parts) != len(names) or (self._whole and more):
            raise ValueError("a record of another length")
        return parts


def _holds(kind: pa.DataType, found: type) -> bool:
    """Whether a column of this type shows values of the class as they are."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind) or (types.is_decimal(kind) and kind.scale == 0):
        return found is not bool and issubclass(found, numbers.Integral)
    if types.is_floating(kind):
        return found is not bool and issubclass(found, numbers.Real)
    if types.is_decimal(kind):
        return issubclass(found, decimal.Decimal)
    if types.is_timestamp(kind):
        return issubclass(found, datetime.datetime if kind.tz is None else (datetime.datetime, Instant))
    if types.is_string(kind):
        return found is str
    return not types.is_binary(kind) or issubclass(found, bytes | bytearray | memoryview)


def encode(
    values: Any,
    kind: pa.DataType,
    builder: ColumnBuilder,
    says_all: Callable[[Sequence[Any]], bool],
    dumps: Callable[[Any], bytes],
) -> tuple[pa.Array, pa.Array]:
    """(the column, the pickled bytes): null in the column for what does not fit it, null in the bytes for what it says
    completely. Never fails for a value. `says_all`: whether the column says everything of values that fit it."""
    import pyarrow as pa

    fits = [True] * len(values)
    try:
        column = builder.column(values, kind)
        if says_all(values):
            return column, pa.nulls(len(values), pa.binary())
    except Exception:  # a value of another type, or of a class of the user's that raises anything
        parts = [_one(value, kind, builder) for value in values]
        fits = [part is not None for part in parts]
        column = pa.concat_arrays([pa.nulls(1, kind) if part is None else part for part in parts])
    pickled = [None if v is None or (f and says_all([v])) else dumps(v) for v, f in zip(values, fits, strict=True)]
    return column, pa.array(pickled, pa.binary())


def _one(value: Any, kind: pa.DataType, builder: ColumnBuilder) -> pa.Array | None:
    try:
        return builder.column([value], kind)
    except Exception:
        return None


# ---------------------------------------------------------------- stored


def encode_column(values: Sequence[Any], schema: TypeSchema) -> tuple[pa.Array, pa.Array]:
    """(the column for people, the pickled bytes); bytes are null where the column gives the value back exactly, which
    only scalars can: a column of a list or row does not know which class its values had."""
    typed = is_typed(schema, Place.SAVEPOINT)
    kind = arrow_type(schema, Place.SAVEPOINT)
    builder = ShownColumns(None if typed else text_of, whole=False)
    exact = _exact_class(kind) if typed else None

    def comes_back(some: Sequence[Any]) -> bool:
        if exact is None or not set(map(type, some)) <= {exact[0], type(None)}:
            return False
        condition = exact[1]
        return condition is None or all(v is None or condition(v) for v in some)

    return encode(values, kind, builder, comes_back, dumps)


def decode_column(column: pa.Array, pickles: pa.Array, loads: Callable[[bytes], Any]) -> list[Any]:
    """The values of what `encode_column` made, in this version of the format or an older one."""
    import pyarrow as pa

    if pickles.null_count == 0:
        return list(map(loads, pickles.to_pylist()))
    values = ColumnValues(pa.field("value", column.type), declared_scalar(column.type)).of(column)
    if pickles.null_count == len(pickles):
        return values
    return [v if p is None else loads(p) for v, p in zip(values, pickles.to_pylist(), strict=True)]


def _naive(value: Any) -> bool:
    return value.tzinfo is None and not value.fold


def _canonical(value: decimal.Decimal) -> bool:
    """Whether it comes back with the digits that it was written with: 1.50 would be 1.5, 1E+3 would be 1000."""
    parts = value.as_tuple()
    return parts.exponent in range(-38, 1) and trimmed(value).as_tuple() == parts and (value != 0 or not parts.sign)


def _exact_class(kind: pa.DataType) -> tuple[type, Callable[[Any], bool] | None] | None:
    """The one class whose values a column of this type gives back as they were, and for which of them it does."""
    import pyarrow as pa

    types = pa.types
    if types.is_decimal(kind) and kind.scale:
        return decimal.Decimal, _canonical
    if types.is_timestamp(kind):
        return (datetime.datetime, _naive) if kind.tz is None else (Instant, None)
    for matches, cls, condition in (
        (types.is_integer, int, None),
        (types.is_decimal, int, None),
        (types.is_floating, float, None),
        (types.is_string, str, None),
        (types.is_boolean, bool, None),
        (types.is_binary, bytes, None),
        (types.is_date, datetime.date, None),
        (types.is_time, datetime.time, _naive),
    ):
        if matches(kind):
            return cls, condition
    return None
