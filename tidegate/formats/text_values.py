"""Values of declared types as text, both ways: for csv, and the dates and times of json."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.time import Instant
from tidegate.common.type_schema import DATE, LIST, ROW, TIME, TIMESTAMP, TUPLE, kind_of
from tidegate.common.typeinfo import TypeInformation
from tidegate.common.types import make_row

Parser = Callable[[str], Any]
Writer = Callable[[Any], str]


# ---------------------------------------------------------------- scalars


def parse_boolean(text: str) -> bool:
    lower = text.strip().lower()
    if lower == "true":
        return True
    if lower == "false":
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def parse_integer(text: str) -> int:
    if "_" in text:  # Python's own digit separator
        raise ValueError(f"{text!r} is not a whole number")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def parse_float(text: str) -> float:
    if "_" in text:
        raise ValueError(f"{text!r} is not a number")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def parse_decimal(text: str) -> Decimal:
    try:
        return Decimal(text.strip())
    except InvalidOperation:
        raise ValueError(f"{text!r} is not a decimal number") from None


def parse_character(text: str) -> str:
    if len(text) != 1:
        raise ValueError(f"{text!r} is not one character")
    return text


def parse_date(text: str) -> datetime.date:
    return datetime.date.fromisoformat(text.strip())


def parse_time(text: str) -> datetime.time:
    return datetime.time.fromisoformat(text.strip()).replace(tzinfo=None)


def parse_timestamp(text: str) -> datetime.datetime:
    """Reads a timestamp without a zone; one that has a zone is turned to UTC."""
    found = datetime.datetime.fromisoformat(text.strip())
    return found if found.tzinfo is None else found.astimezone(datetime.UTC).replace(tzinfo=None)


_EPOCH = datetime.datetime(1970, 1, 1)


def parse_instant(text: str) -> Instant:
    return instant_of(parse_timestamp(text))


def instant_of(moment: datetime.datetime) -> Instant:
    """Of a datetime without a zone, in UTC."""
    micros = (moment - _EPOCH) // datetime.timedelta(microseconds=1)
    return Instant(micros // 1_000_000, micros % 1_000_000 * 1000)


def timestamp_of(instant: Instant) -> datetime.datetime:
    """The timestamp without a zone, in UTC, to the microsecond."""
    return _EPOCH + datetime.timedelta(seconds=instant.seconds, microseconds=instant.nanos // 1000)


def _utc(moment: datetime.datetime) -> datetime.datetime:
    return moment if moment.tzinfo is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)


def write_timestamp(moment: datetime.datetime) -> str:
    return _utc(moment).isoformat(sep=" ")


def write_instant(instant: Instant) -> str:
    return f"{timestamp_of(instant).isoformat()}Z"


_PARSERS: dict[str, Parser] = {
    "STRING": lambda text: text,
    "CHAR": parse_character,
    "BOOLEAN": parse_boolean,
    "BYTE": parse_integer,
    "SHORT": parse_integer,
    "INT": parse_integer,
    "LONG": parse_integer,
    "BIG_INT": parse_integer,
    "FLOAT": parse_float,
    "DOUBLE": parse_float,
    "BIG_DEC": parse_decimal,
    "INSTANT": parse_instant,
    DATE: parse_date,
    TIME: parse_time,
    TIMESTAMP: parse_timestamp,
    "BYTES": lambda text: base64.b64decode(text, validate=True),
}
_WRITERS: dict[str, Writer] = {
    "BOOLEAN": lambda value: "true" if value else "false",
    "FLOAT": lambda value: repr(float(value)),
    "DOUBLE": lambda value: repr(float(value)),
    "INSTANT": write_instant,
    DATE: lambda value: str(value.isoformat()),
    TIME: lambda value: str(value.isoformat()),
    TIMESTAMP: write_timestamp,
    "BYTES": lambda value: base64.b64encode(bytes(value)).decode(),
}


# ---------------------------------------------------------------- fields of a line


def _inner_types(type_info: TypeInformation) -> list[TypeInformation]:
    """The types of the values inside a field that holds several."""
    fields = getattr(type_info, "get_field_types", None)
    return fields() if fields is not None else [type_info.element_type]  # type: ignore[attr-defined]


def field_parser(type_info: TypeInformation, separator: str, null: str | None, where: str) -> Parser:
    """Text of one field to its value. The null text gives None; so does an empty field that is not text."""
    kind = kind_of(type_info)
    plain = kind in ("STRING", "CHAR")
    if kind in (LIST, ROW, TUPLE):
        return _many_parser(type_info, kind, separator, null, where)
    parse = _PARSERS.get(kind)
    if parse is None:
        raise ConfigurationError(f"{where}: csv has no form for the type {type_info}")
    if kind == "STRING" and null is None:
        return parse

    def convert(text: str) -> Any:
        if text == null or (not plain and not text.strip()):
            return None
        return parse(text)

    return convert


def _many_parser(type_info: TypeInformation, kind: str, separator: str, null: str | None, where: str) -> Parser:
    if not separator:
        raise ConfigurationError(f"{where}: {type_info} needs a separator of elements, and it was disabled")
    inner = [field_parser(t, "", null, where) for t in _inner_types(type_info)]
    names = tuple(type_info.get_field_names()) if kind == ROW and type_info._named else None  # type: ignore[attr-defined]

    def convert(text: str) -> Any:
        if text == null:
            return None
        pieces = text.split(separator) if text else []
        if kind == LIST:
            return [inner[0](piece) for piece in pieces]
        if len(pieces) != len(inner):
            raise ValueError(f"{text!r} has {len(pieces)} elements instead of {len(inner)}")
        values = [parse(piece) for parse, piece in zip(inner, pieces, strict=True)]
        return make_row(names, values) if kind == ROW else tuple(values)

    return convert


def field_writer(type_info: TypeInformation, separator: str, null: str, where: str) -> Writer:
    kind = kind_of(type_info)
    if kind in (LIST, ROW, TUPLE):
        if not separator:
            raise ConfigurationError(f"{where}: {type_info} needs a separator of elements, and it was disabled")
        inner = [field_writer(t, "", null, where) for t in _inner_types(type_info)]

        def write_many(value: Any) -> str:
            if value is None:
                return null
            writers = inner * len(value) if kind == LIST else inner
            return separator.join(write(v) for write, v in zip(writers, value, strict=True))

        return write_many
    if kind not in _PARSERS:
        raise ConfigurationError(f"{where}: csv has no form for the type {type_info}")
    write = _WRITERS.get(kind, str)
    return lambda value: null if value is None else write(value)
