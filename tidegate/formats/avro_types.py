"""Avro schemas: as declared types, as Arrow types, and records on their way between them.

A record is a dict, as fastavro reads and writes it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation, Types
from tidegate.common.types import Row, make_row, values_of_fields
from tidegate.common.value_conversion import Conversion, mismatch, shorten

if TYPE_CHECKING:
    import pyarrow as pa


class AvroSchema:
    """Made with `AvroSchema.parse_string` or `AvroSchema.parse_file`."""

    def __init__(self, text: str) -> None:
        from fastavro.schema import SchemaParseException, UnknownType, expand_schema, parse_schema

        try:
            raw = json.loads(text)
            self._parsed: Any = parse_schema(raw)
            self.expanded: Any = expand_schema(raw)  # names replaced by what they stand for
        except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
            raise ConfigurationError(f"not an Avro schema: {type(error).__name__}: {error}: {shorten(text)}") from error
        self._text = text

    @staticmethod
    def parse_string(json_schema: str) -> AvroSchema:
        if not isinstance(json_schema, str):
            raise TypeError(f"AvroSchema.parse_string: takes the schema as json text, got {json_schema!r}")
        return AvroSchema(json_schema)

    @staticmethod
    def parse_file(file_path: str) -> AvroSchema:
        try:
            return AvroSchema(Path(file_path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"AvroSchema.parse_file: cannot read {file_path}: {error}") from error

    @property
    def parsed(self) -> Any:
        """The schema in the form that fastavro takes."""
        return self._parsed

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The fields of a record schema."""
        if not isinstance(self.expanded, dict) or self.expanded.get("type") not in ("record", "error"):
            raise ConfigurationError(f"the Avro schema has to be that of a record, got {shorten(self._text)}")
        fields: list[dict[str, Any]] = self.expanded["fields"]
        return fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroSchema) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroSchema, (self._text,)

    def __str__(self) -> str:
        return self._text


class GenericRecordAvroTypeInfo(TypeInformation):
    """Records of an Avro schema, as dicts. A Row with names is turned into one."""

    def __init__(self, schema: AvroSchema) -> None:
        if not isinstance(schema, AvroSchema):
            raise TypeError(f"GenericRecordAvroTypeInfo: takes an AvroSchema, got {schema!r}")
        self.schema = schema

    def conversion(self) -> Conversion:
        def convert(value: Any) -> Any:
            if value is None or isinstance(value, dict):
                return value
            if isinstance(value, Row) and value._fields is not None:
                return value.as_dict(True)
            raise mismatch("Avro record", value, "a dict or a Row with names")

        return Conversion(convert, dict)

    def __str__(self) -> str:
        return f"GenericRecord({self.schema})"


def _unwrapped(schema: Any) -> tuple[Any, str]:
    """The schema without "or null", and the name of its type."""
    if isinstance(schema, list):
        others = [s for s in schema if s != "null"]
        if len(others) != 1:
            raise ConfigurationError(f"an Avro union of several types has no column type: {shorten(schema)}")
        return _unwrapped(others[0])
    if isinstance(schema, dict):
        inner = schema["type"]
        return _unwrapped(inner) if isinstance(inner, (dict, list)) else (schema, inner)
    return schema, schema


def _logical(schema: Any) -> str:
    return str(schema.get("logicalType", "")) if isinstance(schema, dict) else ""


# ---------------------------------------------------------------- rows


def row_type_of(schema: AvroSchema) -> RowTypeInfo:
    return _row_type(schema.fields)


def _row_type(fields: list[dict[str, Any]]) -> RowTypeInfo:
    return Types.ROW_NAMED([f["name"] for f in fields], [_type_info(f["type"]) for f in fields])


def _type_info(schema: Any) -> TypeInformation:
    schema, kind = _unwrapped(schema)
    logical = _logical(schema)
    if logical == "date":
        return Types.SQL_DATE()
    if logical.startswith("time-"):
        return Types.SQL_TIME()
    if logical.startswith(("timestamp-", "local-timestamp-")):
        return Types.SQL_TIMESTAMP()
    if logical == "decimal":
        return Types.BIG_DEC()
    if kind in ("record", "error"):
        return _row_type(schema["fields"])
    if kind == "array":
        return Types.OBJECT_ARRAY(_type_info(schema["items"]))
    if kind == "map":
        return Types.MAP(Types.STRING(), _type_info(schema["values"]))
    scalars = {
        "boolean": Types.BOOLEAN,
        "int": Types.INT,
        "long": Types.LONG,
        "float": Types.FLOAT,
        "double": Types.DOUBLE,
        "string": Types.STRING,
        "enum": Types.STRING,
    }
    if kind in ("bytes", "fixed"):
        return Types.PRIMITIVE_ARRAY(Types.BYTE())
    if kind in scalars:
        return scalars[kind]()
    raise ConfigurationError(f"the Avro type {shorten(schema)} has no row type (recursive types have none)")


def record_to_row(schema: Any) -> Callable[[Any], Any]:
    """Makes a converter of dicts to Rows, at every depth."""
    return _converter(schema, _make_row)


def row_to_record(schema: Any) -> Callable[[Any], Any]:
    """Makes a converter of Rows (or tuples, lists, dicts) to dicts, at every depth."""
    return _converter(schema, _make_dict)


def _make_row(fields: list[dict[str, Any]], inner: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    names = tuple(f["name"] for f in fields)
    return lambda record: make_row(names, [convert(record[name]) for name, convert in zip(names, inner, strict=True)])


def _make_dict(fields: list[dict[str, Any]], inner: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    names = tuple(f["name"] for f in fields)

    def convert(row: Any) -> Any:
        values = values_of_fields(row, names)
        if len(values) != len(names):
            raise mismatch(f"Row({', '.join(names)})", row, f"{len(names)} fields wanted, got {len(values)}")
        return {name: one(value) for name, one, value in zip(names, inner, values, strict=True)}

    return convert


def _converter(schema: Any, of_fields: Any) -> Callable[[Any], Any]:
    schema, kind = _unwrapped(schema)
    if kind in ("record", "error"):
        convert = of_fields(schema["fields"], [_converter(f["type"], of_fields) for f in schema["fields"]])
        return lambda value: None if value is None else convert(value)
    if kind == "array":
        item = _converter(schema["items"], of_fields)
        return lambda value: None if value is None else [item(v) for v in value]
    if kind == "map":
        of_value = _converter(schema["values"], of_fields)
        return lambda value: None if value is None else {k: of_value(v) for k, v in value.items()}
    logical = _logical(schema)
    if logical.startswith("timestamp-"):
        return _without_zone if of_fields is _make_row else _with_zone
    return lambda value: value


def _without_zone(moment: Any) -> Any:
    if isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
        return moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return moment


def _with_zone(moment: Any) -> Any:
    """A datetime without a zone is UTC here, but the machine's own time for fastavro."""
    if isinstance(moment, datetime.datetime) and moment.tzinfo is None:
        return moment.replace(tzinfo=datetime.UTC)
    return moment


# ---------------------------------------------------------------- columns


def arrow_schema_of(schema: AvroSchema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([_arrow_field(f) for f in schema.fields])


def _arrow_field(field: dict[str, Any]) -> pa.Field:
    import pyarrow as pa

    nullable = isinstance(field["type"], list) and "null" in field["type"]
    return pa.field(field["name"], _arrow_type(field["type"]), nullable)


def _arrow_type(schema: Any) -> pa.DataType:
    import pyarrow as pa

    schema, kind = _unwrapped(schema)
    logical = _logical(schema)
    logicals = {
        "date": pa.date32(),
        "time-millis": pa.time32("ms"),
        "time-micros": pa.time64("us"),
        "timestamp-millis": pa.timestamp("ms", "UTC"),
        "timestamp-micros": pa.timestamp("us", "UTC"),
        "local-timestamp-millis": pa.timestamp("ms"),
        "local-timestamp-micros": pa.timestamp("us"),
    }
    if logical in logicals:
        return logicals[logical]
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind in ("record", "error"):
        return pa.struct([_arrow_field(f) for f in schema["fields"]])
    if kind == "array":
        return pa.list_(_arrow_type(schema["items"]))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"]))
    if kind == "fixed":
        return pa.binary(schema["size"])
    scalars = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "string": pa.string(),
        "enum": pa.string(),
    }
    if kind in scalars:
        return scalars[kind]
    raise ConfigurationError(f"the Avro type {shorten(schema)} has no column type (recursive types have none)")


def record_from_columns(schema: Any) -> Callable[[Any], Any]:
    """Makes a converter of values as `to_pylist` gives them, with maps as lists of pairs, to records."""
    return _maps_converter(schema, lambda pairs: pairs)


def record_to_columns(schema: Any) -> Callable[[Any], Any]:
    """Makes the inverse converter: records with dicts for maps in, lists of pairs for maps out."""
    return _maps_converter(schema, lambda found: found.items())


def _maps_converter(schema: Any, pairs_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    schema, kind = _unwrapped(schema)
    if kind in ("record", "error"):
        inner = {f["name"]: _maps_converter(f["type"], pairs_of) for f in schema["fields"]}
        return lambda value: (
            None if value is None else {name: convert(value.get(name)) for name, convert in inner.items()}
        )
    if kind == "array":
        item = _maps_converter(schema["items"], pairs_of)
        return lambda value: None if value is None else [item(v) for v in value]
    if kind == "map":
        of_value = _maps_converter(schema["values"], pairs_of)
        return lambda value: None if value is None else {k: of_value(v) for k, v in pairs_of(value)}
    return lambda value: value
