"""Records of text files where lines may be bad: what csv and json lines share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.contracts.file_formats import FileRecordReader, InputFile
from tidegate.formats.malformed import MalformedLine, MalformedLineError, OnMalformed
from tidegate.formats.text_lines import Charset, LineCursor, LineNumbers


class BadLines:
    """Carries out what the user chose for bad lines of one file."""

    def __init__(self, file: InputFile, action: OnMalformed) -> None:
        self._file = file
        self._action = action
        self._numbers: LineNumbers | None = None

    def handle(self, position: int, raw: bytes, reason: str, charset: Charset, out: list[Any]) -> None:
        """A bad line that begins at `position`: raises, or adds what there is to add to `out`."""
        if self._action is OnMalformed.SKIP:
            return
        if self._numbers is None:
            self._numbers = LineNumbers(self._file, charset)
        text = raw.decode(charset.name, "replace").removesuffix("\r")
        line = MalformedLine(self._file.path, self._numbers.at(position), text, reason)
        if self._action is OnMalformed.FAIL:
            raise MalformedLineError(line)
        out.append(line)

    def close(self) -> None:
        if self._numbers is not None:
            self._numbers.close()


def decode_line(raw: bytes, charset: Charset, first: bool) -> str:
    """Raises ValueError (UnicodeDecodeError) when it is not text."""
    text = raw.decode(charset.name)
    return text.removeprefix("\ufeff") if first else text


def reason_of(error: Exception, charset: Charset) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not text in the charset {charset.name} ({error.reason})"
    return str(error)


class OneLineRecords(FileRecordReader[Any]):
    """One record per line, by a function of the text; empty lines are left out. The offset is a byte position."""

    def __init__(
        self,
        file: InputFile,
        charset: Charset,
        parse: Callable[[str], Any],
        action: OnMalformed,
        start: int,
        end: int,
        offset: int | None,
    ) -> None:
        self._lines = LineCursor(file, charset, start, end, offset)
        self._parse = parse
        self._bad = BadLines(file, action)

    def read(self, max_records: int) -> list[Any] | None:
        lines = self._lines.next_lines(max_records)
        if lines is None:
            return None
        position = self._lines.began
        charset, parse = self._lines.charset, self._parse
        width = len(charset.newline)
        out: list[Any] = []
        for raw in lines:
            try:
                text = decode_line(raw, charset, position == 0).strip()
                if text:
                    out.append(parse(text))
            except ValueError as error:
                self._bad.handle(position, raw, reason_of(error, charset), charset, out)
            position += len(raw) + width
        return out

    def offset(self) -> int | None:
        return self._lines.position if self._lines.found_start else None

    def close(self) -> None:
        self._lines.close()
        self._bad.close()
