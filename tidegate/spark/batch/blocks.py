"""Records on their way from task to task: opaque blocks of many, made and read only here.

A block is a header (which consumer, what kind, which input, which group of keys) and a payload. The output channels of
a task gather records; when they hold more than the task's memory for that, all of them are cut to blocks.
"""

from __future__ import annotations

import pickle
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.network.elements import MIN_WATERMARK, ControlElement, Watermark
from tidegate.network.serialization import dump_values
from tidegate.spark.batch.order import TooManyBlocksError, pack_key

_HEADER = struct.Struct("<HBBI")
_END = struct.Struct("<Iq")
HEADER_SIZE = _HEADER.size
MAX_CONSUMERS = 1 << 16

REPORT, ROWS, STAMPED, END, COMBINED = 0, 1, 2, 3, 4
NO_GROUP = 0xFFFFFFFF
"""Group of records that need not be grouped by key."""

_FIRST_LIMIT = 64  # records in all channels of a task, before their size is known
_MAX_LIMIT = 1 << 14  # more would leave the processor's cache before they are pickled, which takes three times as long
_MAX_PER_CHANNEL = 1 << 16
MAX_BLOCK_BYTES = 1 << 19
"""Spark's sorter looks at its memory after every 32 blocks, and Java takes twice as much for larger objects."""


class Header(NamedTuple):
    consumer: int  # which of the producer's consumers it is for
    kind: int
    input_index: int  # 0 or 1
    group: int


def read_header(block: bytes) -> Header:
    return Header._make(_HEADER.unpack_from(block))


def read_records(block: bytes, kind: int) -> RecordBatch:
    """Of a ROWS or STAMPED block."""
    payload = memoryview(block)[HEADER_SIZE:]
    if kind == ROWS:
        return RecordBatch(pickle.loads(payload))
    values, timestamps = pickle.loads(payload)
    return RecordBatch(values, timestamps)


def read_combined(block: bytes) -> tuple[list[Any], list[Any]]:
    """Values, and the key of each."""
    values, keys = pickle.loads(memoryview(block)[HEADER_SIZE:])
    return values, keys


def read_end(block: bytes) -> tuple[int, int]:
    """(edge, watermark) of an END block."""
    edge, watermark = _END.unpack_from(block, HEADER_SIZE)
    return edge, watermark


def is_for(consumer: int, block: bytes) -> bool:
    return block[0] | block[1] << 8 == consumer


def only_for(consumer: int, pairs: Iterator[bytes]) -> Iterator[bytes]:
    """Of alternating keys and blocks, those for one consumer."""
    for key in pairs:
        block = next(pairs)
        if is_for(consumer, block):
            yield bytes(key)
            yield bytes(block)


class BlockSeries:
    """Numbers the blocks of one producer for one place of one consumer."""

    __slots__ = ("_consumer_name", "_count", "_first", "_header", "_limit", "_target")

    def __init__(self, header: Header, first: int, limit: int, target: int, consumer_name: str) -> None:
        self._header = {kind: _HEADER.pack(*header._replace(kind=kind)) for kind in range(5)}
        self._first = first
        self._limit = limit
        self._target = target
        self._count = 0
        self._consumer_name = consumer_name

    def next(self, kind: int, payload: bytes | memoryview) -> tuple[bytes, bytes]:
        """The pair of key and block."""
        if self._count == self._limit:
            raise TooManyBlocksError(
                f"a task has more than {self._limit} blocks of records for one subtask of '{self._consumer_name}'; "
                "raise execution.batch.buffer-size, or the parallelism"
            )
        key = pack_key(self._first + self._count, self._target)
        self._count += 1
        return key, b"".join((self._header[kind], payload))

    @property
    def target(self) -> int:
        return self._target


class BlockOutput:
    """Everything that one task emits. `take` hands out the finished pairs; the owner calls it between slices of work,
    so that memory stays bounded."""

    def __init__(self, budget_bytes: int, fail: Callable[[str, BaseException, list[Any]], NoReturn]) -> None:
        self._budget = budget_bytes
        self._fail = fail
        self.channels: list[BlockChannel] = []
        self.buffered = 0  # records in all channels
        self.records = 0  # that have left
        self._bytes = 0
        self.limit = _FIRST_LIMIT  # of `buffered`
        self._per_block = _MAX_PER_CHANNEL  # records that fill about half of the largest block
        self._finished: deque[bytes] = deque()  # keys and blocks in turn

    def settle(self) -> None:
        """Cut blocks when the channels hold too much."""
        if self.buffered >= self.limit:
            self.flush()
            per_record = max(1.0, self._bytes / max(1, self.records))
            self.limit = max(8, min(_MAX_LIMIT, int(self._budget / per_record)))
            self._per_block = max(1, int(MAX_BLOCK_BYTES / 2 / per_record))

    def flush(self) -> None:
        for channel in self.channels:
            channel.flush()

    def push(self, pair: tuple[bytes, bytes]) -> None:
        self._finished += pair

    def cut(
        self, series: BlockSeries, kind: int, name: str, values: list[Any], beside: list[Any] | None = None
    ) -> None:
        """`name`: of the operator that emitted the records. `beside`: what goes with each value, the timestamps of
        STAMPED, the keys of COMBINED."""
        if len(values) > self._per_block:
            self._cut_apart(series, kind, name, values, beside, self._per_block)
            return
        try:
            payload = dump_values(values if beside is None else (values, beside))
        except Exception as error:
            self._fail(name, error, values)
        if len(payload) > MAX_BLOCK_BYTES and len(values) > 1:  # these are larger than those before them
            self._cut_apart(series, kind, name, values, beside, len(values) // 2)
            return
        self._bytes += len(payload)
        self.records += len(values)
        self.push(series.next(kind, payload))

    def _cut_apart(
        self, series: BlockSeries, kind: int, name: str, values: list[Any], beside: list[Any] | None, size: int
    ) -> None:
        for start in range(0, len(values), size):
            part = slice(start, start + size)
            self.cut(series, kind, name, values[part], None if beside is None else beside[part])

    def take(self) -> Iterator[bytes]:
        finished = self._finished
        while finished:
            yield finished.popleft()


class BlockChannel:
    """Stands where a task of a streaming job has an `OutputChannel`: takes records for one place of one consumer.
    Blocks hold rows, so this is the border for batches of other kinds.

    `values` and `stamps` are the same lists for the channel's life. `stamps` is empty, or as long as `values`."""

    __slots__ = ("_name", "_output", "series", "stamps", "values", "watermark")

    def __init__(self, output: BlockOutput, series: BlockSeries, operator_name: str) -> None:
        self._output = output
        self.series = series
        self._name = operator_name
        self.values: list[Any] = []
        self.stamps: list[int] = []
        self.watermark = MIN_WATERMARK  # the highest that was sent
        output.channels.append(self)

    def add(self, batch: Batch, now_ms: float) -> None:
        rows = batch.rows()
        if self.values and (rows.timestamps is None) is bool(self.stamps):
            self.flush()
        self.values += rows.values
        if rows.timestamps is not None:
            self.stamps += rows.timestamps
        self._output.buffered += len(rows)
        if len(self.values) >= _MAX_PER_CHANNEL:
            self.flush()

    def add_control(self, element: ControlElement) -> None:
        """Time stands still in a batch job; where it had come to is told at the end, if anybody asks."""
        if isinstance(element, Watermark):
            self.watermark = max(self.watermark, element.timestamp)

    def flush(self) -> None:
        if self.values:
            kind = STAMPED if self.stamps else ROWS
            self._output.buffered -= len(self.values)
            self._output.cut(self.series, kind, self._name, self.values, self.stamps or None)
            self.values.clear()
            self.stamps.clear()

    def end(self, edge_id: int, series: BlockSeries) -> None:
        self._output.push(series.next(END, _END.pack(edge_id, self.watermark)))
