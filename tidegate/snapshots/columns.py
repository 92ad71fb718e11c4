"""Python values as Arrow columns: typed where the values fit, with pickled bytes beside what does not.

A text column takes strings as they are and anything else as its `repr`, shortened. Beside every column stand pickled
bytes: null where the column says everything.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.common.type_schema import DATE, LIST, MAP, ROW, TIMESTAMP, TUPLE, TypeSchema
from tidegate.common.types import Row
from tidegate.snapshots.stand_ins import StandIn, dumps
from tidegate.state.savepoint.tables import column_type, field_names
from tidegate.state.savepoint.values import holds, text_of

if TYPE_CHECKING:
    import pyarrow as pa

_SCALARS = ("STRING", "CHAR", "BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", DATE, TIMESTAMP)
_SEQUENCES = (list, tuple, set, frozenset)
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
    if schema is None or schema.kind not in (*_SCALARS, LIST, MAP, ROW, TUPLE):
        return None
    if schema.kind in (ROW, TUPLE) and not schema.parts:
        return None
    return Column(_declared_type(schema), not _all_typed(schema))


def _declared_type(schema: TypeSchema) -> pa.DataType:
    """`column_type`, but for times of day, which Spark has no type for."""
    import pyarrow as pa

    parts = [_declared_type(part) for part in schema.parts]
    if schema.kind == LIST:
        return pa.list_(parts[0])
    if schema.kind == MAP:
        return pa.map_(parts[0], parts[1])
    if schema.kind in (ROW, TUPLE) and parts:
        return pa.struct(list(zip(field_names(schema), parts, strict=True)))
    return column_type(schema) if schema.kind in _SCALARS else pa.string()


def _all_typed(schema: TypeSchema) -> bool:
    return schema.kind in _SCALARS or (bool(schema.parts) and all(map(_all_typed, schema.parts)))


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
    parts = [_inferred(column, depth + 1) for column in _fields(some, names)]
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

    if hasattr(values, "tolist") and not pa.types.is_integer(column.type):
        values = values.tolist()
    if pa.types.is_string(column.type):
        return _texts(values)
    try:
        typed = _build(values, column.type, not column.partial)
    except _DOES_NOT_FIT():
        return _one_by_one(values, column)
    if column.partial:
        return typed, pa.array([None if v is None else dumps(v) for v in values], pa.binary())
    return typed, pa.nulls(len(values), pa.binary())


def _DOES_NOT_FIT() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError, AttributeError, KeyError)


def _texts(values: Any) -> tuple[pa.Array, pa.Array]:
    import pyarrow as pa

    if set(map(type, values)) <= {str, type(None)}:
        try:
            return pa.array(values, pa.string()), pa.nulls(len(values), pa.binary())
        except UnicodeError:  # half of a surrogate pair
            pass
    texts, pickled = [], []
    for value in values:
        exact = value is None or (type(value) is str and _is_unicode(value))
        texts.append(value if exact else text_of(value))
        pickled.append(None if exact else dumps(value))
    return pa.array(texts, pa.string()), pa.array(pickled, pa.binary())


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


def _one_by_one(values: Any, column: Column) -> tuple[pa.Array, pa.Array]:
    """Some do not fit: null, and the bytes."""
    import pyarrow as pa

    parts, pickled = [], []
    for value in values:
        try:
            part = _build([value], column.type, not column.partial)
            fits = not column.partial or value is None
        except _DOES_NOT_FIT():
            part, fits = pa.nulls(1, column.type), False
        parts.append(part)
        pickled.append(None if fits else dumps(value))
    return pa.concat_arrays(parts), pa.array(pickled, pa.binary())


def _build(values: Any, kind: pa.DataType, whole: bool, inside: bool = False) -> pa.Array:
    """Raises one of `_DOES_NOT_FIT` for a value of another type. `whole`: also for a record that has more fields."""
    import numpy as np
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        return pa.array(values, kind)
    if pa.types.is_string(kind) and inside and not whole:
        return pa.array([v if v is None or type(v) is str else text_of(v) for v in values], kind)
    if not pa.types.is_nested(kind):
        _check_scalars(values, kind)
        return pa.array(values, kind)
    missing = [v is None for v in values]
    present = [v for v, none in zip(values, missing, strict=True) if not none]
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        columns = _fields(present, tuple(names), whole)
        children = [_build(_spread(c, missing), kind.field(i).type, whole, True) for i, c in enumerate(columns)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(missing, pa.bool_()))
    lengths = np.array([0 if v is None else len(v) for v in values], dtype=np.int64)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = pa.array(missing, pa.bool_())
    if pa.types.is_map(kind):
        keys = _build([k for v in present for k in v], kind.key_type, whole, True)
        items = _build([i for v in present for i in v.values()], kind.item_type, whole, True)
        # `from_arrays` with a mask would lose the names of the inner fields
        plain = pa.MapArray.from_arrays(offsets, keys, items, mask=mask if any(missing) else None)
        return plain.cast(kind) if plain.type != kind else plain
    if not set(map(type, present)) <= set(_SEQUENCES):
        raise TypeError("no list")
    elements = _build(list(chain.from_iterable(present)), kind.value_type, whole, True)
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=mask if any(missing) else None)


def _check_scalars(values: Sequence[Any], kind: pa.DataType) -> None:
    if not all(holds(kind, found) for found in set(map(type, values)) - {type(None)}):
        raise TypeError(f"no {kind}")


def _spread(present: Sequence[Any], missing: list[bool]) -> list[Any]:
    if len(present) == len(missing):
        return list(present)
    left = iter(present)
    return [None if none else next(left) for none in missing]


def _fields(values: list[Any], names: tuple[str, ...], whole: bool = True) -> list[list[Any]]:
    """Records as columns."""
    if set(map(type, values)) <= {tuple}:
        if any(len(v) != len(names) for v in values):
            raise ValueError("a tuple of another length")
        return [list(c) for c in zip(*values, strict=True)] if values else [[] for _ in names]
    getters = [_field_getter(v, names, whole) for v in values]
    return [[get(i) for get in getters] for i in range(len(names))]


def _field_getter(value: Any, names: tuple[str, ...], whole: bool) -> Callable[[int], Any]:
    more = False
    if isinstance(value, Row):
        parts, more = value.get_fields_by_names(names), len(value) > len(names)
    elif isinstance(value, dict):
        parts, more = [value.get(n) for n in names], not value.keys() <= set(names)
    elif isinstance(value, tuple | list):
        parts = list(value)
    else:
        parts = [getattr(value, n) for n in names]
        more = dataclasses.is_dataclass(value) and len(dataclasses.fields(value)) > len(names)
    if len(parts) != len(names) or (whole and more):
        raise ValueError("a record of another length")
    return parts.__getitem__
