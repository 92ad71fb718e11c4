"""Declared types as Arrow types: one table for all that makes columns of values, and its exceptions.

`arrow_columns` makes the columns and reads them. The table of docs/connectors.md is held against this one by a test.
"""

from __future__ import annotations

import enum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tidegate.common.errors import ConfigurationError
from tidegate.common.type_schema import ANY, BYTES, DATE, LIST, MAP, ROW, TIME, TIMESTAMP, TUPLE, TypeSchema, schema_of
from tidegate.common.typeinfo import RowTypeInfo

if TYPE_CHECKING:
    import pyarrow as pa


class Place(enum.Enum):
    """What the columns are for."""

    PARQUET = "parquet"
    ORC = "orc"
    DELTA = "Delta"
    DATAFRAME = "DataFrame"
    SAVEPOINT = "savepoint"
    STATE_TABLE = "state table"


_TEXT_PLACES = (Place.SAVEPOINT, Place.STATE_TABLE)
"""They hold any value: one without a type of its own as a text for people, with its pickled bytes beside it."""


class Exceptional(NamedTuple):
    """Where a type differs from the table."""

    kind: str
    places: tuple[Place, ...]
    type: pa.DataType | None  # None: there is no column for it
    why: str


@cache
def _table() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
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
        "BIG_DEC": pa.decimal128(38, 18),
        BYTES: pa.binary(),
        DATE: pa.date32(),
        TIME: pa.time64("us"),
        TIMESTAMP: pa.timestamp("us"),
        "INSTANT": pa.timestamp("us", "UTC"),
    }


@cache
def exceptions() -> tuple[Exceptional, ...]:
    import pyarrow as pa

    exact = "Python's floats have 64 bits, and state comes back as it was"
    moment = "a datetime without a zone is a moment in UTC, and such a column says so"
    return (
        Exceptional("FLOAT", _TEXT_PLACES, pa.float64(), exact),
        Exceptional(TIMESTAMP, (Place.DELTA, Place.DATAFRAME), pa.timestamp("us", "UTC"), moment),
        Exceptional(TIME, (Place.ORC,), None, "orc has no times of day"),
        Exceptional(TIME, (Place.DELTA,), None, "Delta has no times of day"),
        Exceptional(TIME, (Place.DATAFRAME,), None, "not every version of Spark has times of day"),
        Exceptional(TIME, (Place.STATE_TABLE,), pa.string(), "not every version of Spark has times of day"),
    )


@cache
def _scalars(place: Place) -> dict[str, pa.DataType | None]:
    return {**_table(), **{e.kind: e.type for e in exceptions() if place in e.places}}


def arrow_type(schema: TypeSchema, place: Place = Place.PARQUET, column: str = "") -> pa.DataType:
    """ConfigurationError, with the name of the column if it is given, for a type without a column there."""
    import pyarrow as pa

    parts = [arrow_type(part, place, column) for part in schema.parts]
    if schema.kind == LIST:
        return pa.list_(parts[0])
    if schema.kind == MAP:
        return pa.map_(parts[0], parts[1])
    if schema.kind in (ROW, TUPLE) and (parts or place not in _TEXT_PLACES):
        return pa.struct(list(zip(schema.field_names, parts, strict=True)))
    found = _scalars(place).get(schema.kind)
    if found is not None:
        return found
    if place in _TEXT_PLACES:
        return pa.string()
    why = [f"{e.why}; use a text or a number" for e in exceptions() if e.kind == schema.kind and place in e.places]
    raise ConfigurationError(
        f"{f'column {column!r}' if column else 'a column'} of {place.value} cannot have the type {schema}: "
        f"{(why or ['declare what it holds'])[0]}"
    )


def arrow_schema(row_type: RowTypeInfo, place: Place = Place.PARQUET) -> pa.Schema:
    """ConfigurationError for a column that cannot be."""
    import pyarrow as pa

    schema = schema_of(row_type)
    return pa.schema([(n, arrow_type(p, place, n)) for n, p in zip(schema.field_names, schema.parts, strict=True)])


def is_typed(schema: TypeSchema, place: Place) -> bool:
    """Whether its column, and every part of it, has a type: nothing in it is only a text for people."""
    if schema.parts:
        return all(is_typed(part, place) for part in schema.parts)
    return schema.kind in ("STRING", "CHAR") or str(_scalars(place).get(schema.kind, "string")) != "string"


def declared_scalar(kind: pa.DataType) -> TypeSchema:
    """The inverse of the table: ANY for an Arrow type that no scalar has."""
    return TypeSchema(kind=next((name for name, found in _table().items() if found == kind), ANY))
