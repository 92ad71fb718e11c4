"""What becomes of a line that a format cannot read: it fails the job, is left out, or becomes a record of its own.

::

    lines = CsvReaderFormat.for_schema(schema).on_malformed(OnMalformed.SIDE_OUTPUT)
    stream = env.from_source(FileSource.for_record_stream_format(lines, path).build(), ...)
    rows, bad = split_malformed(stream)

A source has no side outputs, so the bad lines come among the rows, as `MalformedLine`; `split_malformed` parts the two.
Assign timestamps behind it, not in the source: an assigner would be asked about the bad lines too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.contracts.functions import ProcessFunction
from tidegate.contracts.output_tag import OutputTag
from tidegate.datastream.stream import DataStream
from tidegate.formats.malformed import MalformedLine, MalformedLineError, OnMalformed

__all__ = ["MalformedLine", "MalformedLineError", "OnMalformed", "split_malformed"]


class _SetApart(ProcessFunction):
    def __init__(self, tag: OutputTag) -> None:
        self._tag = tag

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if isinstance(value, MalformedLine):
            yield self._tag, value
        else:
            yield value


def split_malformed(stream: DataStream) -> tuple[DataStream, DataStream]:
    """Returns two streams, the good records and the `MalformedLine`s, of a stream read with
    `OnMalformed.SIDE_OUTPUT`."""
    tag = OutputTag("tidegate.malformed-lines")
    good = stream.process(_SetApart(tag)).name("Set malformed lines apart")
    return good, good.get_side_output(tag)
