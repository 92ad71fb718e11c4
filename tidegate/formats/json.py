"""Json: messages, and files of one object per line."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec

from tidegate.common.errors import ConfigurationError, TidegateError, present
from tidegate.common.serialization import DeserializationSchema, SerializationSchema
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation, value_converter
from tidegate.common.types import Row
from tidegate.common.value_conversion import shorten
from tidegate.contracts.file_formats import InputFile
from tidegate.formats.json_values import from_json, needs_exact_numbers, to_json, type_of_json_schema
from tidegate.formats.line_records import OneLineRecords
from tidegate.formats.malformed import OnMalformed, checked_action
from tidegate.formats.text_lines import Charset, StreamFormat, is_compressed

__all__ = ["JsonReaderFormat", "JsonRowDeserializationSchema", "JsonRowSerializationSchema"]


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no json value")


def _exact(text: str | bytes) -> Any:
    return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)


def _checked_row_type(type_info: object, where: str) -> RowTypeInfo:
    if not isinstance(type_info, RowTypeInfo):
        raise ConfigurationError(f"{where}: takes a row type (Types.ROW_NAMED), got {type_info!r}")
    return type_info


class _RowParser:
    """Text of a json object to a Row. Raises ValueError when it is none, or does not fit the type."""

    def __init__(self, type_info: RowTypeInfo, fail_on_missing_field: bool) -> None:
        decoder = msgspec.json.Decoder()
        self._decode: Callable[[str | bytes], Any] = _exact if needs_exact_numbers(type_info) else decoder.decode
        self._convert = from_json(type_info, fail_on_missing_field)

    def __call__(self, text: str | bytes) -> Any:
        try:
            value = self._decode(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if value is None:
            raise ValueError("null is not an object")
        return self._convert(value)


class JsonRowDeserializationSchema(DeserializationSchema):
    """A message of one json object to a Row. Fields that the type does not have are left out."""

    def __init__(self, type_info: RowTypeInfo, fail_on_missing_field: bool, ignore_parse_errors: bool) -> None:
        self._type_info = type_info
        self._fail_on_missing_field = fail_on_missing_field
        self._ignore = ignore_parse_errors
        self._parse = _RowParser(type_info, fail_on_missing_field)

    @staticmethod
    def builder() -> JsonRowDeserializationSchema.Builder:
        return JsonRowDeserializationSchema.Builder()

    class Builder:
        def __init__(self) -> None:
            self._type_info: RowTypeInfo | None = None
            self._fail_on_missing_field = False
            self._ignore = False

        def type_info(self, type_info: RowTypeInfo) -> JsonRowDeserializationSchema.Builder:
            self._type_info = _checked_row_type(type_info, "type_info")
            return self

        def json_schema(self, json_schema: str) -> JsonRowDeserializationSchema.Builder:
            """The type by a JSON Schema, as text."""
            if not isinstance(json_schema, str):
                raise TypeError(f"json_schema: takes a JSON Schema as text, got {json_schema!r}")
            try:
                schema = json.loads(json_schema)
            except ValueError as error:
                raise ConfigurationError(f"json_schema: this is not json: {error}") from error
            self._type_info = _checked_row_type(type_of_json_schema(schema), "json_schema")
            return self

        def fail_on_missing_field(self) -> JsonRowDeserializationSchema.Builder:
            """A message without one of the fields fails. By default the field is None."""
            self._fail_on_missing_field = True
            return self

        def ignore_parse_errors(self) -> JsonRowDeserializationSchema.Builder:
            """Leave messages out that are no json or do not fit, instead of failing."""
            self._ignore = True
            return self

        def build(self) -> JsonRowDeserializationSchema:
            if self._type_info is None:
                raise ConfigurationError("JsonRowDeserializationSchema: give the type: type_info or json_schema")
            if self._ignore and self._fail_on_missing_field:
                raise ConfigurationError(
                    "JsonRowDeserializationSchema: fail_on_missing_field and ignore_parse_errors contradict each other"
                )
            return JsonRowDeserializationSchema(self._type_info, self._fail_on_missing_field, self._ignore)

    def deserialize(self, message: bytes) -> Row | None:
        try:
            row: Row = self._parse(bytes(message))
            return row
        except ValueError as error:
            if self._ignore:
                return None
            raise TidegateError(
                f"not a json object of {self._type_info}: {error}: {shorten(bytes(message))}. "
                "ignore_parse_errors() leaves such messages out."
            ) from error

    def get_produced_type(self) -> TypeInformation:
        return self._type_info

    def __getstate__(self) -> tuple[Any, ...]:
        return self._type_info, self._fail_on_missing_field, self._ignore

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]


class JsonRowSerializationSchema(SerializationSchema):
    """A Row to a message of one json object."""

    def __init__(self, type_info: RowTypeInfo) -> None:
        self._type_info = type_info
        self._check = present(value_converter(type_info), "the converter of rows")
        self._convert = present(to_json(type_info), "the json writer of rows")
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    @staticmethod
    def builder() -> JsonRowSerializationSchema.Builder:
        return JsonRowSerializationSchema.Builder()

    class Builder:
        def __init__(self) -> None:
            self._type_info: RowTypeInfo | None = None

        def with_type_info(self, type_info: RowTypeInfo) -> JsonRowSerializationSchema.Builder:
            self._type_info = _checked_row_type(type_info, "with_type_info")
            return self

        def build(self) -> JsonRowSerializationSchema:
            if self._type_info is None:
                raise ConfigurationError(
                    "JsonRowSerializationSchema: give the type: with_type_info(Types.ROW_NAMED(...))"
                )
            return JsonRowSerializationSchema(self._type_info)

    def serialize(self, value: Any) -> bytes:
        row = self._check(value)
        if row is None:
            return b"null"
        return self._encoder.encode(self._convert(row))

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._type_info,)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]


class JsonReaderFormat(StreamFormat):
    """Rows of files with one json object per line. Tidegate's own."""

    def __init__(self, type_info: RowTypeInfo, fail_on_missing_field: bool, charset_name: str) -> None:
        self._type_info = _checked_row_type(type_info, "JsonReaderFormat.for_type")
        self._fail_on_missing_field = bool(fail_on_missing_field)
        self._charset = Charset(charset_name)
        self._action = OnMalformed.FAIL
        from_json(type_info, False)  # says early what json cannot hold

    @staticmethod
    def for_type(
        type_info: RowTypeInfo, fail_on_missing_field: bool = False, charset_name: str = "UTF-8"
    ) -> JsonReaderFormat:
        return JsonReaderFormat(type_info, fail_on_missing_field, charset_name)

    def on_malformed(self, action: OnMalformed) -> JsonReaderFormat:
        """What becomes of lines that do not fit: FAIL (default), SKIP or SIDE_OUTPUT (see `formats.malformed`)."""
        self._action = checked_action(action)
        return self

    def is_splittable(self, path: str) -> bool:
        return not is_compressed(path) and not self._charset.is_wide

    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> OneLineRecords:
        parse = _RowParser(self._type_info, self._fail_on_missing_field)
        return OneLineRecords(file, self._charset, parse, self._action, start, end, offset)

    def get_produced_type(self) -> TypeInformation | None:
        return None if self._action is OnMalformed.SIDE_OUTPUT else self._type_info
