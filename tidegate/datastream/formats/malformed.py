"""What becomes of a line that a format cannot read: it fails the job, is left out, or becomes a record of its own.

::

    lines = CsvReaderFormat.for_schema(schema).on_malformed(OnMalformed.SIDE_OUTPUT)
    stream = env.from_source(FileSource.for_record_stream_format(lines, path).build(), ...)
    rows, bad = split_malformed(stream)

A source has no side outputs, so the bad lines come among the rows, as `MalformedLine`; `split_malformed` parts the two.
Assign timestamps behind it, not in the source: an assigner would be asked about the bad lines too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.value_conversion import shorten
from tidegate.datastream.functions import ProcessFunction
from tidegate.datastream.output_tag import OutputTag

if TYPE_CHECKING:
    from tidegate.datastream.data_stream import DataStream


class OnMalformed(enum.Enum):
    FAIL = "fail"  # with file and line number; the default
    SKIP = "skip"
    SIDE_OUTPUT = "side output"  # as a MalformedLine among the records


@dataclass(frozen=True)
class MalformedLine:
    path: str
    line_number: int  # from 1; of a record of several lines, the first
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line_number}: {self.reason}: {shorten(self.text)}"


class MalformedLineError(TidegateError):
    """A line cannot be read; the message has file and line number."""

    def __init__(self, line: MalformedLine) -> None:
        super().__init__(
            f"{line}. Correct the file, or have the format leave such lines out or set them apart: "
            "on_malformed(OnMalformed.SKIP) or on_malformed(OnMalformed.SIDE_OUTPUT)."
        )
        self.line = line

    def __reduce__(self) -> tuple[Any, ...]:
        return MalformedLineError, (self.line,)


def checked_action(action: object) -> OnMalformed:
    if not isinstance(action, OnMalformed):
        names = ", ".join(f"OnMalformed.{member.name}" for member in OnMalformed)
        raise ConfigurationError(f"on_malformed: takes one of {names}, got {action!r}")
    return action


class _SetApart(ProcessFunction):
    def __init__(self, tag: OutputTag) -> None:
        self._tag = tag

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if isinstance(value, MalformedLine):
            yield self._tag, value
        else:
            yield value


def split_malformed(stream: DataStream) -> tuple[DataStream, DataStream]:
    """(the good records, the `MalformedLine`s) of a stream read with `OnMalformed.SIDE_OUTPUT`."""
    tag = OutputTag("tidegate.malformed-lines")
    good = stream.process(_SetApart(tag)).name("Set malformed lines apart")
    return good, good.get_side_output(tag)
