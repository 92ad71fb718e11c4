"""Elements on their way from subtask to subtask within a batch: rows of Spark's shuffle, made and read only here.

A row is for one subtask and holds some elements of one channel (records, watermarks, the end of data) in order, exactly
what the channel of a streaming job would carry. Rows are numbered by their channel: Spark's shuffle keeps no order.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

from tidegate.common.ids import ChannelAddress
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.serialization import Element, SerializedElement, deserialize, serialize

TICK, ELEMENTS, REPORT = b"T", b"E", b"R"
"""The first byte of a row says what it is."""

_ROW_BYTES = 1 << 21

Row = tuple[int, bytes]
"""(place, payload)"""


class BatchChannel(OutputChannel):
    """Takes everything: the shuffle is behind it."""

    __slots__ = ()

    @property
    def backlogged(self) -> bool:
        return False


class RowWriter:
    """Cuts what is in the output channels of a task into rows. `take` hands out the finished ones."""

    def __init__(self, channels: Sequence[tuple[BatchChannel, int]]) -> None:
        """`channels`: each with the place of its receiver."""
        self._outputs = [_Output(channel, place) for channel, place in channels]

    def take(self) -> Iterator[Row]:
        """Call it between pieces of work, so that memory stays bounded."""
        for output in self._outputs:
            if output.channel.queue:
                yield from output.cut(last=False)

    def finish(self) -> Iterator[Row]:
        for output in self._outputs:
            output.channel.flush()
            yield from output.cut(last=True)


class _Output:
    def __init__(self, channel: BatchChannel, place: int) -> None:
        self.channel = channel
        self._place = place
        self._count = 0
        self._elements: list[tuple[int, bytes]] = []
        self._size = 0

    def cut(self, last: bool) -> Iterator[Row]:
        queue = self.channel.queue
        while queue:
            made: SerializedElement = serialize(queue.popleft())
            self._elements.append((made.kind, made.payload))
            self._size += len(made.payload)
            if self._size >= _ROW_BYTES:
                yield self._row()
        self.channel.queued_batches = 0
        if last and self._elements:
            yield self._row()

    def _row(self) -> Row:
        address = self.channel.address
        payload = pickle.dumps((address.edge, address.upstream, self._count, self._elements), 5)
        self._elements, self._size = [], 0
        self._count += 1
        return self._place, ELEMENTS + payload


def fill_inputs(inputs: Iterable[InputChannel], payloads: Iterable[bytes]) -> None:
    """Queue the elements of all rows of a subtask on its input channels."""
    rows = sorted((pickle.loads(memoryview(payload)[1:]) for payload in payloads), key=lambda row: row[:3])
    found: dict[tuple[int, int], list[Element]] = {}
    for edge, upstream, _, elements in rows:
        found.setdefault((edge, upstream), []).extend(deserialize(kind, data) for kind, data in elements)
    for channel in inputs:
        address: ChannelAddress = channel.address
        elements = found.pop((address.edge, address.upstream), None)
        if elements:
            channel.restore(elements)
