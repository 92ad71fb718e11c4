"""Python values as Arrow columns: typed where the values fit, with pickled bytes beside what does not.

A text column takes strings as they are and anything else as its `repr`, shortened. Beside every column stand pickled
bytes: null where the column says everything.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.common.type_schema import TypeSchema
from tidegate.common.types import Row
from tidegate.formats.arrow_types import Place, arrow_type, is_typed
from tidegate.snapshots.stand_ins import StandIn, dumps
from tidegate.state.savepoint.values import ShownColumns, text_of
from tidegate.state.savepoint.values import encode as encode_values

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_DEPTH = 6
_SAMPLE = 500


class Column(NamedTuple):
    type: Any  # pa.DataType
    partial: bool = False  # it may show less than there is inside of a value: the bytes are needed always


def text_column() -> Column:
    import pyarrow as pa

    return Column(pa.string())


# ---------------------------------------------------------------- types


def declared_column(schema: TypeSchema | None) -> Column | None:
    """None when nothing was declared that a column could have."""
    import pyarrow as pa

    if schema is None:
        return None
    kind, typed = arrow_type(schema, Place.STATE_TABLE), is_typed(schema, Place.STATE_TABLE)
    return Column(kind, not typed) if typed or pa.types.is_nested(kind) else None


def inferred_column(values: Sequence[Any]) -> Column:
    """From some of the values: a text when they are of several types, or of one that has no column."""
    step = max(1, len(values) // _SAMPLE)
    some = values[::step]
    found = _inferred(some.tolist() if hasattr(some, "tolist") else some, 0)  # an array of NumPy has its own numbers
    return text_column() if found is None else Column(found)


def _inferred(values: Iterable[Any], depth: int) -> pa.DataType | None:
    import pyarrow as pa

    some = [v for v in values if v is not None]
    kinds = set(map(type, some))
    if len(kinds) != 1 or depth > _MAX_DEPTH:
        return None
    (kind,) = kinds
    simple: dict[type, pa.DataType] = {
        float: pa.float64(),
        str: pa.string(),
        bool: pa.bool_(),
        bytes: pa.binary(),
        datetime.date: pa.date32(),
    }
    if kind in simple:
        return simple[kind]
    if kind is int:
        return pa.int64() if all(-(1 << 63) <= v < 1 << 63 for v in some) else None
    if kind is datetime.datetime:
        zoned = {v.tzinfo is not None for v in some}
        return pa.timestamp("us", "UTC" if zoned == {True} else None) if len(zoned) == 1 else None
    if kind is list:
        element = _inferred(chain.from_iterable(some), depth + 1)
        return None if element is None else pa.list_(element)
    if kind is dict:
        key = _inferred(chain.from_iterable(some), depth + 1)
        item = _inferred(chain.from_iterable(v.values() for v in some), depth + 1)
        return None if key is None or item is None else pa.map_(key, item)
    names = _field_names(kind, some)
    if not names:
        return None
    parts = [_inferred(column, depth + 1) for column in ShownColumns(None, whole=True).fields(some, names)]
    return None if None in parts else pa.struct(list(zip(names, parts, strict=True)))


def _field_names(kind: type, values: list[Any]) -> tuple[str, ...] | None:
    """Of values that are all of this class; None when they are no records, or not all alike."""
    if issubclass(kind, StandIn):
        return None
    if kind is Row:
        shapes = {(v._fields, len(v)) for v in values}
        fields, length = next(iter(shapes))
        return (fields or _numbered(length)) if len(shapes) == 1 else None
    if issubclass(kind, tuple):
        lengths = set(map(len, values))
        return (getattr(kind, "_fields", None) or _numbered(lengths.pop())) if len(lengths) == 1 else None
    if dataclasses.is_dataclass(kind):
        return tuple(f.name for f in dataclasses.fields(kind))
    return None


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"f{i}" for i in range(count))


# ---------------------------------------------------------------- values


def encode(values: Any, column: Column) -> tuple[pa.Array, pa.Array]:
    """(the column, the pickled bytes). `values`: a list, or an array of NumPy. Never fails."""
    import pyarrow as pa

    if hasattr(values, "tolist"):
        if pa.from_numpy_dtype(values.dtype) == column.type:
            return pa.array(values, column.type), pa.nulls(len(values), pa.binary())
        values = values.tolist()
    if pa.types.is_string(column.type):
        if _are_texts(values):
            return pa.array(values, column.type), pa.nulls(len(values), pa.binary())
        return encode_values(values, column.type, ShownColumns(_text, whole=True), _are_texts, dumps)
    builder = ShownColumns(_text if column.partial else None, whole=not column.partial)
    return encode_values(values, column.type, builder, lambda some: not column.partial, dumps)


def _text(value: Any) -> str | None:
    return value if type(value) is str and _are_texts([value]) else text_of(value)


def _are_texts(values: Sequence[Any]) -> bool:
    """Strings without half of a surrogate pair, which no column takes."""
    if not set(map(type, values)) <= {str, type(None)}:
        return False
    try:
        "".join(v for v in values if v is not None).encode()
    except UnicodeError:
        return False
    return True
