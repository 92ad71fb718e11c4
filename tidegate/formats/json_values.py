"""Values of declared types as json values, both ways."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.type_schema import DATE, LIST, TIME, TIMESTAMP, TUPLE, kind_of
from tidegate.common.typeinfo import MapTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from tidegate.common.types import make_row
from tidegate.common.value_conversion import shorten
from tidegate.formats.text_values import (
    parse_date,
    parse_instant,
    parse_time,
    parse_timestamp,
    write_instant,
)

Conversion = Callable[[Any], Any]  # a value of None never gets here

_INTEGERS = ("BYTE", "SHORT", "INT", "LONG", "BIG_INT")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def needs_exact_numbers(type_info: TypeInformation) -> bool:
    """Whether numbers have to be read with all their digits."""
    if kind_of(type_info) in ("BIG_INT", "BIG_DEC"):
        return True
    return any(needs_exact_numbers(part) for part in _parts(type_info))


def _parts(type_info: TypeInformation) -> list[TypeInformation]:
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        return type_info.get_field_types()
    if isinstance(type_info, MapTypeInfo):
        return [type_info.key_type, type_info.value_type]
    element = getattr(type_info, "element_type", None)
    return [element] if isinstance(element, TypeInformation) else []


def _wrong(value: Any, wanted: str) -> ValueError:
    return ValueError(f"{shorten(value)} is not {wanted}")


# ---------------------------------------------------------------- from json


def from_json(type_info: TypeInformation, fail_on_missing_field: bool) -> Conversion:
    """Raises ValueError for a value that does not fit."""
    kind = kind_of(type_info)
    if isinstance(type_info, RowTypeInfo):
        return _row_from_json(type_info, fail_on_missing_field)
    if isinstance(type_info, TupleTypeInfo):
        return _tuple_from_json(type_info, fail_on_missing_field)
    if isinstance(type_info, MapTypeInfo):
        return _map_from_json(type_info, fail_on_missing_field)
    if kind == LIST:
        element = from_json(_parts(type_info)[0], fail_on_missing_field)

        def to_list(value: Any) -> Any:
            if not isinstance(value, list):
                raise _wrong(value, "an array")
            return [None if v is None else element(v) for v in value]

        return to_list
    found = _SCALARS.get(kind)
    if found is None:
        raise ConfigurationError(f"json has no form for the type {type_info}")
    return found


def _row_from_json(type_info: RowTypeInfo, strict: bool) -> Conversion:
    names = tuple(type_info.get_field_names())
    fields = [(name, from_json(t, strict)) for name, t in zip(names, type_info.get_field_types(), strict=True)]
    row_names = names if type_info._named else None

    def to_row(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        values = []
        for name, convert in fields:
            found = value.get(name)
            if found is not None:
                try:
                    found = convert(found)
                except ValueError as error:
                    raise ValueError(f"field '{name}': {error}") from None
            elif strict and name not in value:
                raise ValueError(f"the field '{name}' is missing")
            values.append(found)
        return make_row(row_names, values)

    return to_row


def _tuple_from_json(type_info: TupleTypeInfo, strict: bool) -> Conversion:
    parts = [from_json(t, strict) for t in type_info.get_field_types()]

    def to_tuple(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(parts):
            raise _wrong(value, f"an array of {len(parts)} values")
        return tuple(None if v is None else convert(v) for convert, v in zip(parts, value, strict=True))

    return to_tuple


def _map_from_json(type_info: MapTypeInfo, strict: bool) -> Conversion:
    _check_keys(type_info)
    convert = from_json(type_info.value_type, strict)

    def to_map(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        return {k: None if v is None else convert(v) for k, v in value.items()}

    return to_map


def _check_keys(type_info: MapTypeInfo) -> None:
    if type_info.key_type != Types.STRING():
        raise ConfigurationError(f"json has only text as keys of a map, so it has no form for the type {type_info}")


def _to_int(value: Any) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, (float, Decimal)) and value == int(value):
        return int(value)
    raise _wrong(value, "a whole number")


def _to_float(value: Any) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise _wrong(value, "a number")


def _to_decimal(value: Any) -> Any:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    raise _wrong(value, "a number")


def _to_bool(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    raise _wrong(value, "true or false")


def _to_text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    raise _wrong(value, "a text")


def _to_character(value: Any) -> Any:
    if isinstance(value, str) and len(value) == 1:
        return value
    raise _wrong(value, "one character")


def _text_first(parse: Callable[[str], Any]) -> Conversion:
    return lambda value: parse(_to_text(value))


_SCALARS: dict[str, Conversion] = {
    **dict.fromkeys(_INTEGERS, _to_int),
    "FLOAT": _to_float,
    "DOUBLE": _to_float,
    "BIG_DEC": _to_decimal,
    "BOOLEAN": _to_bool,
    "STRING": _to_text,
    "CHAR": _to_character,
    "INSTANT": _text_first(parse_instant),
    DATE: _text_first(parse_date),
    TIME: _text_first(parse_time),
    TIMESTAMP: _text_first(parse_timestamp),
    "BYTES": _text_first(lambda text: base64.b64decode(text, validate=True)),
}


# ---------------------------------------------------------------- to json


def to_json(type_info: TypeInformation) -> Conversion | None:
    """To what the json encoder takes, of a value that was converted to the type; None when nothing needs doing."""
    kind = kind_of(type_info)
    if isinstance(type_info, RowTypeInfo):
        names = type_info.get_field_names()
        parts = [to_json(t) for t in type_info.get_field_types()]
        return lambda row: {
            name: value if value is None or convert is None else convert(value)
            for name, convert, value in zip(names, parts, row, strict=True)
        }
    if kind == TUPLE:
        inside = [to_json(t) for t in _parts(type_info)]
        return lambda value: [
            v if v is None or convert is None else convert(v) for convert, v in zip(inside, value, strict=True)
        ]
    if isinstance(type_info, MapTypeInfo):
        _check_keys(type_info)
        inner = to_json(type_info.value_type)
        return None if inner is None else lambda value: {k: None if v is None else inner(v) for k, v in value.items()}
    if kind == LIST:
        element = to_json(_parts(type_info)[0])
        return None if element is None else lambda value: [None if v is None else element(v) for v in value]
    if kind not in _SCALARS:
        raise ConfigurationError(f"json has no form for the type {type_info}")
    return _TO_JSON.get(kind)


def _finite(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _utc_text(value: Any) -> str:
    return f"{parse_timestamp(value.isoformat()).isoformat()}Z"


_TO_JSON: dict[str, Conversion] = {
    "FLOAT": _finite,
    "DOUBLE": _finite,
    "BIG_INT": Decimal,  # the encoder takes integers of at most 64 bits, and decimals of any length
    "INSTANT": write_instant,
    DATE: lambda value: value.isoformat(),
    TIME: lambda value: value.isoformat(),
    TIMESTAMP: _utc_text,
    "BYTES": lambda value: base64.b64encode(bytes(value)).decode(),
}

# ---------------------------------------------------------------- JSON Schema


def type_of_json_schema(schema: Any, where: str = "the schema") -> TypeInformation:
    """The type that a JSON Schema describes: objects, arrays, texts (also date, time, date-time, base64), numbers,
    booleans."""
    if not isinstance(schema, dict):
        raise ConfigurationError(f"{where} has to be an object of JSON Schema, got {shorten(schema)}")
    kind = schema.get("type")
    if isinstance(kind, list):  # ["string", "null"]
        kinds = [k for k in kind if k != "null"]
        kind = kinds[0] if len(kinds) == 1 else kind
    if kind == "object" or (kind is None and "properties" in schema):
        properties = schema.get("properties", {})
        types = [type_of_json_schema(inner, f"'{name}' of {where}") for name, inner in properties.items()]
        return Types.ROW_NAMED(list(properties), types)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return Types.OBJECT_ARRAY(type_of_json_schema(schema["items"], f"the items of {where}"))
    if kind == "string":
        if schema.get("contentEncoding") == "base64":
            return Types.PRIMITIVE_ARRAY(Types.BYTE())
        formats = {"date": Types.SQL_DATE, "time": Types.SQL_TIME, "date-time": Types.SQL_TIMESTAMP}
        return formats.get(schema.get("format", ""), Types.STRING)()
    simple = {"integer": Types.BIG_INT, "number": Types.BIG_DEC, "boolean": Types.BOOLEAN}
    if isinstance(kind, str) and kind in simple:
        return simple[kind]()
    raise ConfigurationError(
        f"{where}: {shorten(schema)} is not supported; use type object, array (with items), string, integer, number or "
        "boolean, or give the type itself with type_info(...)"
    )
