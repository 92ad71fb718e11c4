"""Csv messages of one line. Users import both schemas from `tidegate.formats.csv`."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.serialization import DeserializationSchema, SerializationSchema
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation
from tidegate.common.types import Row, make_row
from tidegate.common.value_conversion import shorten
from tidegate.formats.csv_files import CsvLines, column_parsers
from tidegate.formats.csv_schema import CsvColumn, CsvDialect, one_character


def _columns(type_info: RowTypeInfo) -> tuple[CsvColumn, ...]:
    names, types = type_info.get_field_names(), type_info.get_field_types()
    return tuple(CsvColumn(n, t) for n, t in zip(names, types, strict=True))


def _checked_row_type(type_info: object, where: str) -> RowTypeInfo:
    if not isinstance(type_info, RowTypeInfo):
        raise ConfigurationError(f"{where}: takes a row type (Types.ROW_NAMED or Types.ROW), got {type_info!r}")
    return type_info


class _DialectBuilder:
    """What the builders of both schemas set alike."""

    def __init__(self, type_info: RowTypeInfo) -> None:
        self._type_info = _checked_row_type(type_info, type(self).__qualname__)
        self._dialect = CsvDialect()

    def _change(self, **changes: Any) -> Any:
        self._dialect = replace(self._dialect, **changes)
        return self

    def set_field_delimiter(self, delimiter: str) -> Any:
        return self._change(separator=one_character(delimiter, "set_field_delimiter"))

    def set_array_element_delimiter(self, delimiter: str) -> Any:
        return self._change(element_separator=delimiter)

    def set_quote_character(self, c: str) -> Any:
        return self._change(quote=one_character(c, "set_quote_character"))

    def set_escape_character(self, c: str) -> Any:
        return self._change(escape=one_character(c, "set_escape_character"))

    def set_null_literal(self, s: str) -> Any:
        return self._change(null=s)


class CsvRowDeserializationSchema(DeserializationSchema):
    """A message of one csv line to a Row."""

    def __init__(self, type_info: RowTypeInfo, dialect: CsvDialect, ignore_parse_errors: bool) -> None:
        self._type_info = type_info
        self._dialect = dialect
        self._ignore = ignore_parse_errors
        self._named = type_info._named
        self._fields = column_parsers(_columns(type_info), dialect)

    class Builder(_DialectBuilder):
        def __init__(self, type_info: RowTypeInfo) -> None:
            super().__init__(type_info)
            self._ignore = False

        def set_allow_comments(self) -> CsvRowDeserializationSchema.Builder:
            """Messages that begin with '#' are left out."""
            self._change(comments=True)
            return self

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> CsvRowDeserializationSchema.Builder:
            """Leave messages out that do not fit, instead of failing."""
            self._ignore = bool(ignore_parse_errors)
            return self

        def build(self) -> CsvRowDeserializationSchema:
            return CsvRowDeserializationSchema(self._type_info, self._dialect, self._ignore)

    def deserialize(self, message: bytes) -> Row | None:
        try:
            return self._row(bytes(message).decode())
        except (csv.Error, ValueError) as error:
            if self._ignore:
                return None
            raise TidegateError(
                f"not a csv line of {self._type_info}: {error}: {shorten(bytes(message))}. "
                "set_ignore_parse_errors(True) leaves such messages out."
            ) from error

    def _row(self, text: str) -> Row | None:
        if self._dialect.comments and text.startswith("#"):
            return None
        lines: Iterator[str] = iter(text.splitlines(keepends=True) or [""])
        records = [r for r in csv.reader(lines, strict=True, **self._dialect.options()) if r] or [[""]]
        if len(records) != 1:
            raise ValueError(f"{len(records)} records in one message")
        fields = records[0]
        if len(fields) != len(self._fields):
            raise ValueError(f"{len(fields)} fields instead of {len(self._fields)}")
        names = self._type_info.get_field_names()
        values = []
        for name, parse, field in zip(names, self._fields, fields, strict=True):
            try:
                values.append(parse(field))
            except ValueError as error:
                raise ValueError(f"field '{name}': {error}") from None
        return make_row(tuple(names) if self._named else None, values)

    def get_produced_type(self) -> TypeInformation:
        return self._type_info

    def __getstate__(self) -> tuple[Any, ...]:
        return self._type_info, self._dialect, self._ignore

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]


class CsvRowSerializationSchema(SerializationSchema):
    """A Row to a message of one csv line."""

    def __init__(self, type_info: RowTypeInfo, dialect: CsvDialect) -> None:
        self._type_info = type_info
        self._dialect = dialect
        self._lines = CsvLines(type_info, _columns(type_info), dialect)

    class Builder(_DialectBuilder):
        def set_line_delimiter(self, delimiter: str) -> CsvRowSerializationSchema.Builder:
            """What a message ends with: a newline by default; '' for nothing."""
            if delimiter not in ("\n", "\r", "\r\n", ""):
                raise ConfigurationError(f"set_line_delimiter: has to be a newline or '', got {delimiter!r}")
            self._change(line_separator=delimiter)
            return self

        def disable_quote_character(self) -> CsvRowSerializationSchema.Builder:
            self._change(quote=None)
            return self

        def build(self) -> CsvRowSerializationSchema:
            return CsvRowSerializationSchema(self._type_info, self._dialect)

    def serialize(self, value: Any) -> bytes:
        self._lines.add(value)
        return self._lines.take().encode()

    def __getstate__(self) -> tuple[Any, ...]:
        return self._type_info, self._dialect

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]
