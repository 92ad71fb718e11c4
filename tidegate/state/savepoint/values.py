"""Values of a savepoint's tables: as typed columns where that says everything, as pickled bytes otherwise."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.common.type_schema import DATE, LIST, MAP, ROW, TIME, TIMESTAMP, TUPLE, TypeSchema
from tidegate.common.types import Row
from tidegate.state.savepoint.tables import INTEGERS, column_type, field_names, is_text
from tidegate.state.serialization import dumps

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TEXT = 200


def _naive(value: Any) -> bool:
    return value.tzinfo is None and not value.fold


# kind -> the one class whose values a column of that type gives back exactly as they were
_EXACT: dict[str, tuple[type, Callable[[Any], bool] | None]] = {
    **dict.fromkeys(INTEGERS, (int, None)),
    "FLOAT": (float, None),
    "DOUBLE": (float, None),
    "STRING": (str, None),
    "CHAR": (str, None),
    "BOOLEAN": (bool, None),
    DATE: (datetime.date, None),
    TIME: (datetime.time, _naive),
    TIMESTAMP: (datetime.datetime, _naive),
}


def holds(kind: pa.DataType, found: type) -> bool:
    """Whether a column of this type takes values of the class as they are. Arrow alone would turn some into others
    without a word: 1.5 into 1, a moment into its day, 5 into a day."""
    import pyarrow as pa

    if pa.types.is_integer(kind):
        return found is not bool and issubclass(found, numbers.Integral)
    if pa.types.is_floating(kind):
        return found is not bool and issubclass(found, numbers.Real)
    if pa.types.is_date(kind):
        return issubclass(found, datetime.date) and not issubclass(found, datetime.datetime)
    if pa.types.is_timestamp(kind):
        return issubclass(found, datetime.datetime)
    if pa.types.is_string(kind):
        return found is str
    return not pa.types.is_binary(kind) or found is not str


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


def encode_column(values: Sequence[Any], schema: TypeSchema) -> tuple[pa.Array, pa.Array]:
    """(the column for people, the pickled bytes); bytes are null where the column says everything."""
    import pyarrow as pa

    kind = column_type(schema)
    exact = _EXACT.get(schema.kind)
    if exact is not None:
        cls, condition = exact
        if set(map(type, values)) <= {cls} and (condition is None or all(map(condition, values))):
            try:
                return pa.array(values, kind), pa.nulls(len(values), pa.binary())
            except (pa.ArrowException, OverflowError, UnicodeError):
                pass  # a number that is too large for the declared type
    pickled = pa.array([dumps(v) for v in values], pa.binary())
    if is_text(schema):
        return pa.array([text_of(v) for v in values], kind), pickled
    plain = [_plain(v, schema) for v in values]
    try:
        return pa.array(plain, kind), pickled
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
        return pa.array([v if _fits(v, kind) else None for v in plain], kind), pickled


def _fits(value: Any, kind: pa.DataType) -> bool:
    import pyarrow as pa

    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
        return False
    return True


def _plain(value: Any, schema: TypeSchema) -> Any:
    """The value as Arrow takes it for the column type; None for what does not fit: only the bytes tell what it is."""
    try:
        return _converted(value, schema)
    except Exception:  # it is not of its declared type, or of a class of the user's that raises anything
        return None


def _converted(value: Any, schema: TypeSchema) -> Any:
    if value is None:
        return None
    if is_text(schema):
        return text_of(value)
    if schema.kind in (ROW, TUPLE):
        names = field_names(schema)
        parts = [value.get(n) for n in names] if isinstance(value, dict) else list(value)
        if isinstance(value, Row) and value._fields is not None and schema.names:
            parts = value.get_fields_by_names(names)
        return {n: _converted(p, s) for n, p, s in zip(names, parts, schema.parts, strict=True)}
    if schema.kind == LIST:
        return [_converted(v, schema.parts[0]) for v in value]
    if schema.kind == MAP:
        key, item = schema.parts
        return [(_converted(k, key), _converted(v, item)) for k, v in value.items()]
    exact = _EXACT.get(schema.kind)
    if exact is not None and type(value) is not exact[0] and not holds(column_type(schema), type(value)):
        raise TypeError(f"{type(value).__name__} is no {schema.kind}")
    return value
