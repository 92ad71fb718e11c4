"""Csv files: the reader format and the bulk writer. Users import both from `tidegate.formats.csv`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from tidegate.common.errors import TidegateError, present
from tidegate.common.serialization import BulkWriter, BulkWriterFactory
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation, value_converter
from tidegate.common.types import Row, make_row
from tidegate.common.value_conversion import shorten
from tidegate.contracts.file_formats import FileRecordReader, InputFile
from tidegate.formats.csv_schema import CsvColumn, CsvDialect, CsvSchema
from tidegate.formats.line_records import BadLines, decode_line, reason_of
from tidegate.formats.malformed import OnMalformed, checked_action
from tidegate.formats.text_lines import MAX_LINE, Charset, LineCursor, StreamFormat
from tidegate.formats.text_values import Parser, field_parser, field_writer

_Header = bool | tuple[str, ...]
_MAX_FIELD = 16 << 20  # characters: where a quote that is never closed ends


def column_parsers(columns: tuple[CsvColumn, ...], dialect: CsvDialect) -> list[Parser]:
    return [
        field_parser(c.type_info, c.element_separator or dialect.element_separator, dialect.null, f"column '{c.name}'")
        for c in columns
    ]


def column_writers(columns: tuple[CsvColumn, ...], dialect: CsvDialect) -> list[Callable[[Any], str]]:
    null = dialect.null or ""
    return [
        field_writer(c.type_info, c.element_separator or dialect.element_separator, null, f"column '{c.name}'")
        for c in columns
    ]


class _Fields:
    """The fields of one record as a Row. Raises ValueError when they do not fit."""

    def __init__(self, schema: CsvSchema) -> None:
        self._names = schema.names
        self._parsers = column_parsers(schema.columns, schema.dialect)
        self._more_allowed = schema.any_property_name is not None
        self._order: list[int | None] | None = None  # of a header that is not the columns: where each column is
        self._width = len(self._names)

    def reorder(self, header: tuple[str, ...]) -> None:
        """From here on a record has the fields of this header: each column is found by its name, one that the header
        lacks is None, and fields that are no column are left out."""
        self._width = len(header)
        if header != self._names:
            self._order = [header.index(name) if name in header else None for name in self._names]

    def row(self, fields: list[str]) -> Row:
        if self._order is not None:
            if len(fields) < self._width or (len(fields) > self._width and not self._more_allowed):
                raise ValueError(f"{len(fields)} fields where the header has {self._width}")
            return self._parsed([None if i is None else fields[i] for i in self._order])
        if len(fields) != len(self._parsers):
            if len(fields) < len(self._parsers) or not self._more_allowed:
                raise ValueError(f"{len(fields)} fields instead of {len(self._parsers)}")
            fields = fields[: len(self._parsers)]
        return self._parsed(fields)

    def _parsed(self, fields: Sequence[str | None]) -> Row:
        parsers = self._parsers
        try:
            return make_row(
                self._names, [None if f is None else parse(f) for parse, f in zip(parsers, fields, strict=True)]
            )
        except ValueError:
            for name, parse, field in zip(self._names, parsers, fields, strict=True):
                try:
                    if field is not None:
                        parse(field)
                except ValueError as error:
                    raise ValueError(f"column '{name}': {error}") from None
            raise


# ---------------------------------------------------------------- reading files


class CsvReaderFormat(StreamFormat):
    """Rows of csv files. A file is read by one reader, since a quoted field may hold newlines."""

    def __init__(self, schema: CsvSchema, charset_name: str = "UTF-8") -> None:
        if not isinstance(schema, CsvSchema):
            raise TypeError(f"CsvReaderFormat: takes a CsvSchema, got {schema!r}")
        _Fields(schema)  # says early what csv cannot hold
        self._schema = schema
        self._charset = Charset(charset_name)
        self._action = OnMalformed.FAIL

    @staticmethod
    def for_schema(schema: CsvSchema, charset_name: str = "UTF-8") -> CsvReaderFormat:
        return CsvReaderFormat(schema, charset_name)

    def on_malformed(self, action: OnMalformed) -> CsvReaderFormat:
        """What becomes of lines that do not fit: FAIL (default), SKIP or SIDE_OUTPUT (see `formats.malformed`)."""
        self._action = checked_action(action)
        return self

    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> _CsvReader:
        return _CsvReader(file, self._schema, self._charset, self._action, end, offset)

    def get_produced_type(self) -> TypeInformation | None:
        return None if self._action is OnMalformed.SIDE_OUTPUT else self._schema.row_type()


class _Feed:
    """The lines that Python's csv reader pulls: those that were read, and when a record goes on, more."""

    def __init__(self, lines: LineCursor, comments: bool) -> None:
        self._lines = lines
        self._comments = comments
        self.raw: list[bytes] = []
        self.next = 0  # index in `raw`
        self.position = lines.position  # of raw[next]
        self.at_start = False  # of a record: comments and empty lines are left out there

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        while True:
            if self.next >= len(self.raw) and not self._pull():
                raise StopIteration
            raw = self.raw[self.next]
            first = self.position == 0
            self.next += 1
            self.position += len(raw) + len(self._lines.charset.newline)
            text = decode_line(raw, self._lines.charset, first)
            if self.at_start:
                if not text.strip("\r") or (self._comments and text.startswith("#")):
                    if self.next >= len(self.raw):
                        raise StopIteration
                    continue
                self.at_start = False
            return text + "\n"

    def _pull(self) -> bool:
        """More lines for a record that is not complete."""
        if self.at_start or sum(map(len, self.raw)) > MAX_LINE:
            return False
        while True:
            lines = self._lines.next_lines(64)
            if lines is None:
                return False
            if lines:
                self.raw += lines
                return True

    def refill(self, limit: int) -> bool | None:
        """Between records: True when there are lines, False when not yet, None at the end."""
        if self.next < len(self.raw):
            return True
        lines = self._lines.next_lines(limit)
        if lines is None:
            return None
        self.raw, self.next = lines, 0
        return bool(lines)

    def go_back(self, index: int, position: int) -> None:
        """To behind the first line of a record that began at `index`: the next record may begin there."""
        self.next = index + 1
        self.position = position + len(self.raw[index]) + len(self._lines.charset.newline)


class _CsvReader(FileRecordReader[Any]):
    """The offset is (byte position, lines at the beginning that are still to be skipped, header). The header is True
    while it is not read yet, then its fields; False when there is none (or, in older snapshots, when it was read)."""

    def __init__(
        self,
        file: InputFile,
        schema: CsvSchema,
        charset: Charset,
        action: OnMalformed,
        end: int,
        offset: tuple[int, int, _Header] | None,
    ) -> None:
        self._header: _Header
        position, self._skip, self._header = offset or (0, int(schema.skip_first_data_row), schema.use_header)
        self._schema = schema
        self._path = file.path
        self._lines = LineCursor(file, charset, 0, end, position)
        self._bad = BadLines(file, action)
        self._feed = _Feed(self._lines, schema.dialect.comments)
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD))
        self._records = csv.reader(self._feed, strict=True, **schema.dialect.options())
        self._fields = _Fields(schema)
        self._row = self._fields.row
        if isinstance(self._header, tuple):
            self._fields.reorder(self._header)

    def read(self, max_records: int) -> list[Any] | None:
        feed = self._feed
        more = feed.refill(max_records)
        if more is None:
            return None
        out: list[Any] = []
        while len(out) < max_records and feed.next < len(feed.raw):
            index, position = feed.next, feed.position
            feed.at_start = True
            try:
                fields = next(self._records)
                if self._header is True:
                    self._take_header(tuple(fields))
                elif self._skip:
                    self._skip -= 1
                else:
                    out.append(self._row(fields))
            except StopIteration:
                break
            except (csv.Error, ValueError) as error:
                while self._is_filler(feed.raw[index]):
                    position += len(feed.raw[index]) + len(self._lines.charset.newline)
                    index += 1
                raw = feed.raw[index]
                feed.go_back(index, position)
                self._bad.handle(position, raw, reason_of(error, self._lines.charset), self._lines.charset, out)
        return out

    def _is_filler(self, raw: bytes) -> bool:
        """Whether the line is empty or a comment. Such a line is left out, unless it continues a quoted field."""
        text = raw.decode(self._lines.charset.name, "replace").strip("\r")
        return not text or (self._schema.dialect.comments and text.startswith("#"))

    def _take_header(self, fields: tuple[str, ...]) -> None:
        self._header = fields
        names = self._schema.names
        wrong = ""
        if self._schema.strict_headers and fields != names:
            wrong = "the header has to be the columns of the schema in their order (set_strict_headers)"
        elif len(set(fields)) < len(fields):
            wrong = "a name stands twice in the header"
        elif not set(fields) & set(names):
            wrong = "no column of the schema is in the header; a file without one needs set_use_header(False)"
        if wrong:
            raise HeaderMismatchError(
                f"{self._path}: the header is {', '.join(fields)}, the columns of the schema are {', '.join(names)}: "
                f"{wrong}"
            )
        self._fields.reorder(fields)

    def offset(self) -> tuple[int, int, _Header]:
        return min(self._feed.position, self._lines.position), self._skip, self._header

    def close(self) -> None:
        self._lines.close()
        self._bad.close()


class HeaderMismatchError(TidegateError):
    """A file as a whole does not fit the schema."""


# ---------------------------------------------------------------- writing files


class CsvBulkWriters:
    @staticmethod
    def for_schema(schema: CsvSchema, charset_name: str = "UTF-8") -> BulkWriterFactory:
        """For `FileSink.for_bulk_format`: rows (or tuples, lists, dicts) as lines."""
        if not isinstance(schema, CsvSchema):
            raise TypeError(f"CsvBulkWriters.for_schema: takes a CsvSchema, got {schema!r}")
        return _CsvWriterFactory(schema, charset_name)


class _CsvWriterFactory(BulkWriterFactory):
    def __init__(self, schema: CsvSchema, charset_name: str) -> None:
        self._schema = schema
        self._charset = Charset(charset_name).name
        column_writers(schema.columns, schema.dialect)
        self.concatenable = not schema.use_header  # two files one after the other are a file again

    def create(self, stream: BinaryIO) -> BulkWriter:
        return _CsvWriter(stream, self._schema, self._charset)


class CsvLines:
    """Rows as csv lines in a buffer of text."""

    def __init__(self, row_type: RowTypeInfo, columns: tuple[CsvColumn, ...], dialect: CsvDialect) -> None:
        self._convert = present(value_converter(row_type), "the converter of rows")
        self._fields = column_writers(columns, dialect)
        self._separator = dialect.line_separator
        self._parts: list[str] = []
        # It quotes the characters of its own line terminator, and a field may hold either of them.
        self._writer = csv.writer(self, lineterminator="\r\n", **dialect.options())

    def write(self, line: str) -> None:
        """Called by Python's csv writer, once per line."""
        self._parts.append(line[:-2])
        self._parts.append(self._separator)

    def add(self, value: Any) -> None:
        row = self._convert(value)
        if row is None:
            raise TypeError("a csv line needs a row, got None")
        self.add_fields([write(v) for write, v in zip(self._fields, row._values, strict=True)])

    def add_fields(self, fields: list[str]) -> None:
        try:
            self._writer.writerow(fields)
        except csv.Error as error:
            raise TidegateError(
                f"csv cannot hold {shorten(fields)}: {error}; set an escape or quote character"
            ) from None

    def take(self) -> str:
        parts, self._parts = self._parts, []
        return "".join(parts)


class _CsvWriter(BulkWriter):
    _FLUSH_EVERY = 1000

    def __init__(self, stream: BinaryIO, schema: CsvSchema, charset: str) -> None:
        self._stream = stream
        self._charset = charset
        self._lines = CsvLines(schema.row_type(), schema.columns, schema.dialect)
        self._count = 0
        if schema.use_header:
            self._lines.add_fields(list(schema.names))

    def add_element(self, element: Any) -> None:
        self._lines.add(element)
        self._count += 1
        if self._count % self._FLUSH_EVERY == 0:
            self.flush()

    def flush(self) -> None:
        self._stream.write(self._lines.take().encode(self._charset))

    def finish(self) -> None:
        self.flush()
