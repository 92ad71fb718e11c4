"""Lines of text files, with exact byte positions: plain and compressed, in any charset.

A line belongs to the byte range in which it begins. A position counts bytes of the text itself, so in a compressed file
it is found again only by decompressing what lies before it.
"""

from __future__ import annotations

import codecs
import io
from typing import Any, BinaryIO

from tidegate.common.errors import ConfigurationError
from tidegate.common.typeinfo import Types
from tidegate.contracts.file_formats import FileFormat, FileRecordReader, InputFile, InputFileError, input_errors
from tidegate.formats.hadoop_snappy import HadoopSnappyReader

CHUNK = 1 << 20  # bytes that one call reads; a multiple of 4, so that wide characters are never cut
MAX_LINE = 256 << 20
_ARROW_CODECS = {".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4"}
_COMPRESSED = (".gz", ".gzip", ".bz2", ".xz", ".snappy", *_ARROW_CODECS)
_UNREADABLE = (".sz", ".lzo", ".deflate", ".br", ".7z", ".zip")


def is_compressed(path: str) -> bool:
    return path.lower().endswith(_COMPRESSED)


class Charset:
    """How lines are told apart and decoded. Wide charsets (UTF-16, UTF-32) have newlines of several bytes."""

    def __init__(self, name: str) -> None:
        try:
            self.name = codecs.lookup(name).name
        except (LookupError, TypeError):
            raise ConfigurationError(f"Unknown charset {name!r}; use a name such as 'UTF-8' or 'ISO-8859-1'.") from None
        self._undecided = self.name in ("utf-16", "utf-32")  # the byte order mark says which
        self._set_newline()

    def _set_newline(self) -> None:
        name = f"{self.name}-be" if self._undecided else "utf-8" if self.name == "utf-8-sig" else self.name
        self.newline = "\n".encode(name)

    @property
    def is_wide(self) -> bool:
        return len(self.newline) > 1

    def for_file(self, stream: BinaryIO) -> Charset:
        """The charset with the byte order of this file. Moves the stream."""
        if not self._undecided:
            return self
        mark = stream.read(len(self.newline))
        little = mark == (codecs.BOM_UTF16_LE if self.name == "utf-16" else codecs.BOM_UTF32_LE)
        return Charset(f"{self.name}-{'le' if little else 'be'}")


def open_text(file: InputFile) -> BinaryIO:
    """The bytes of the text, decompressed as the name of the file says."""
    path = file.path.lower()
    if path.endswith(_UNREADABLE):
        raise InputFileError(
            f"{file.path}: text that is compressed as '{path[path.rindex('.') :]}' cannot be read; compress it with "
            "gzip, bzip2, xz, zstd, lz4 or snappy (as Hadoop does), or leave the file out by its name"
        )
    raw = file.open()
    opened: Any = raw
    if path.endswith((".gz", ".gzip")):
        import gzip

        opened = gzip.GzipFile(fileobj=raw)
    elif path.endswith(".bz2"):
        import bz2

        opened = bz2.BZ2File(raw)
    elif path.endswith(".xz"):
        import lzma

        opened = lzma.LZMAFile(raw)  # noqa: SIM115 (closed by the cursor)
    elif path.endswith(".snappy"):
        opened = io.BufferedReader(HadoopSnappyReader(raw), CHUNK)
    elif (codec := _ARROW_CODECS.get(path[path.rfind(".") :])) is not None:
        import pyarrow as pa

        opened = pa.CompressedInputStream(pa.PythonFile(raw, "r"), codec)
    found: BinaryIO = opened
    return found


def _find_last(data: bytes, newline: bytes) -> int:
    """Where the last newline at a whole character begins, -1 when there is none."""
    width = len(newline)
    found = data.rfind(newline)
    while found % width and found >= 0:
        found = data.rfind(newline, 0, found + width - 1)
    return found


def _split(data: bytes, newline: bytes) -> list[bytes]:
    width = len(newline)
    if width == 1:
        return data.split(newline)
    lines, start, at = [], 0, data.find(newline)
    while at >= 0:
        if at % width:
            at = data.find(newline, at + 1)
            continue
        lines.append(data[start:at])
        start = at + width
        at = data.find(newline, start)
    lines.append(data[start:])
    return lines


class LineCursor:
    """The lines that begin in [start, end) of a file, as bytes. Each call reads at most one chunk."""

    def __init__(self, file: InputFile, charset: Charset, start: int, end: int, position: int | None) -> None:
        self._file = file
        self._compressed = is_compressed(file.path)
        self._end = None if self._compressed else end
        self._stream = open_text(file)
        with input_errors("read", file.path):
            self.charset = charset.for_file(self._stream)
            if charset.is_wide:
                self._stream.seek(0)
        self._newline = self.charset.newline
        self._lines: list[bytes] = []
        self._next = 0  # index in `_lines`
        self._tail = bytearray()  # the beginning of a line whose end was not read yet
        self._ended = False
        self._searching = position is None and start > 0  # for the end of the line that belongs to the part before
        if position is None:
            position = start - len(self._newline) if self._searching else start
        self.position: int = position  # of the line that `next_lines` returns next
        self.began: int = position  # of the first line that it returned last
        self._skip = 0  # bytes to read before `position`
        if self._compressed:
            self._skip = self.position
        else:
            with input_errors("read", file.path):
                self._stream.seek(self.position)
        self._read_to = self.position - self._skip

    @property
    def found_start(self) -> bool:
        return not self._searching

    def next_lines(self, limit: int) -> list[bytes] | None:
        """Lines without their newlines; [] when none is complete yet; None when there are no more."""
        if self._next >= len(self._lines) and not self._fill():
            return None
        lines = self._lines[self._next : self._next + limit] if not self._searching else []
        width = len(self._newline)
        if self._end is not None and lines:
            begins = self.position
            if begins >= self._end:
                return None
            if begins + sum(map(len, lines)) + width * len(lines) > self._end:
                for count, line in enumerate(lines):
                    if begins >= self._end:
                        lines = lines[:count]
                        break
                    begins += len(line) + width
        self._next += len(lines)
        self.began = self.position
        # The last line of a file may have no newline.
        self.position = min(self.position + sum(map(len, lines)) + width * len(lines), self._read_to)
        return lines

    def _fill(self) -> bool:
        """Read a chunk. False at the end."""
        if self._ended or (self._end is not None and self.position >= self._end and not self._searching):
            return False
        data = self._read()
        if self._skip:
            self._skip -= len(data)
            if data:
                return True
            self._skip = 0
        self._lines, self._next = [], 0
        if not data:
            self._ended = True
            if self._tail and not self._searching:
                self._lines = [bytes(self._tail)]
                self._tail.clear()
            self._searching = False
            return bool(self._lines)
        newline = self._newline
        cut = _find_last(data, newline)
        if cut < 0:
            self._tail += data
            self._check_length()
            return True
        block = bytes(self._tail) + data[:cut]
        self._tail = bytearray(data[cut + len(newline) :])
        self._lines = _split(block, newline)
        if self._searching:
            self._searching = False
            self._next = 1
            self.position += len(self._lines[0]) + len(newline)
        return True

    def _check_length(self) -> None:
        if self._searching:
            self.position += len(self._tail)
            self._tail.clear()
        elif len(self._tail) > MAX_LINE:
            raise InputFileError(
                f"{self._file.path}: the line at byte {self.position} is longer than {MAX_LINE >> 20} MiB; is this a "
                "text file with newlines?"
            )

    def _read(self) -> bytes:
        wanted = min(CHUNK, self._skip) if self._skip else CHUNK
        with input_errors("read", self._file.path):
            data = _read_fully(self._stream, wanted)
        self._read_to += len(data)
        if not data and not self._compressed and self._read_to < self._file.size:
            raise InputFileError(
                f"{self._file.path} has changed while it was read: it ends at byte {self._read_to}, and had "
                f"{self._file.size} bytes when it was found. A file must not be changed once the job may see it."
            )
        return data

    def close(self) -> None:
        self._stream.close()


def _read_fully(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) == length or not data:
        return data
    parts = [data]
    left = length - len(data)
    while left and (data := stream.read(left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


class LineNumbers:
    """Line numbers of positions, asked for in rising order. Reads the file a second time, but only when a line is bad:
    good ones cost nothing."""

    def __init__(self, file: InputFile, charset: Charset) -> None:
        self._file = file
        self._newline = charset.newline
        self._stream: BinaryIO | None = None
        self._position = 0
        self._number = 1

    def at(self, position: int) -> int:
        with input_errors("read", self._file.path):
            if self._stream is None:
                self._stream = open_text(self._file)
            width = len(self._newline)
            while self._position < position:
                data = _read_fully(self._stream, min(CHUNK, position - self._position))
                if not data:
                    break
                self._position += len(data)
                self._number += data.count(self._newline) if width == 1 else len(_split(data, self._newline)) - 1
        return self._number

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class StreamFormat(FileFormat):
    """Files that are read record by record."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8", errors: str = "strict") -> StreamFormat:
        """Lines as strings, without what ends them (a newline, or carriage return and newline), in any charset of
        Python. Files that are called `*.gz`, `*.bz2`, `*.xz`, `*.zst` or `*.lz4` are decompressed. `errors` says what
        becomes of bytes that are not text in that charset: "strict" fails with file and line, "replace" puts U+FFFD,
        as Java does."""
        return TextLineFormat(charset_name, errors)


class TextLineFormat(StreamFormat):
    """Made by `StreamFormat.text_line_format`."""

    def __init__(self, charset_name: str = "UTF-8", errors: str = "strict") -> None:
        self._charset = Charset(charset_name)
        try:
            codecs.lookup_error(errors)
        except (LookupError, TypeError):
            raise ConfigurationError(f"text_line_format(errors): unknown {errors!r}; use strict or replace") from None
        self._errors = errors

    def is_splittable(self, path: str) -> bool:
        return not is_compressed(path) and not self._charset.is_wide

    def create_reader(self, file: InputFile, start: int, end: int, offset: Any | None) -> TextLineReader:
        return TextLineReader(file, self._charset, self._errors, start, end, offset)

    def get_produced_type(self) -> Any:
        return Types.STRING()

    def __repr__(self) -> str:
        return f"StreamFormat.text_line_format({self._charset.name!r})"


class TextLineReader(FileRecordReader[str]):
    def __init__(
        self, file: InputFile, charset: Charset, errors: str, start: int, end: int, offset: int | None
    ) -> None:
        self._file = file
        self._errors = errors
        self._lines = LineCursor(file, charset, start, end, offset)

    def read(self, max_records: int) -> list[str] | None:
        lines = self._lines.next_lines(max_records)
        if not lines:
            return None if lines is None else []
        begins = self._lines.began
        charset = self._lines.charset
        try:
            text = charset.newline.join(lines).decode(charset.name, self._errors)
        except UnicodeDecodeError as error:
            raise self._undecodable(lines, begins, error) from error
        values = text.split("\n")
        if "\r" in text:
            values = [value.removesuffix("\r") for value in values]
        if begins == 0 and values[0].startswith("\ufeff"):
            values[0] = values[0][1:]
        return values

    def _undecodable(self, lines: list[bytes], begins: int, error: UnicodeDecodeError) -> Exception:
        charset = self._lines.charset
        before = charset.newline.join(lines)[: error.start]
        numbers = LineNumbers(self._file, charset)
        try:
            number = numbers.at(begins) + len(_split(before, charset.newline)) - 1
        finally:
            numbers.close()
        return InputFileError(
            f"{self._file.path}, line {number}: not text in the charset {charset.name}: {error.reason} (byte "
            f"0x{error.object[error.start]:02x}). Give text_line_format the charset of the file, or errors='replace'."
        )

    def offset(self) -> int | None:
        return self._lines.position if self._lines.found_start else None

    def close(self) -> None:
        self._lines.close()
