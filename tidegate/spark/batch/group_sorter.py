"""The records of one group of keys in the order of their timestamps. Spills to a local file what is too much."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Iterator
from operator import itemgetter
from typing import IO, Any

from tidegate.common.errors import InternalError
from tidegate.contracts.batches import RecordBatch
from tidegate.network.serialization import dump_values

_IN_MEMORY = 200_000  # records
_BATCH = 4096

Entry = tuple[int, int, Any]
"""Timestamp, input, value."""


class GroupSorter:
    """`add` any number of batches, then `drain` once. Records of equal timestamps keep the order in which they came,
    so the first input's come first."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._entries: list[Entry] = []
        self._spilled: IO[bytes] | None = None
        self._runs: list[list[int]] = []  # offsets of the parts of each sorted run in the file

    @property
    def empty(self) -> bool:
        return not self._entries and not self._runs

    def add(self, batch: RecordBatch, input_index: int) -> None:
        stamps = batch.timestamps or []
        self._entries += [(t, input_index, v) for t, v in zip(stamps, batch.values, strict=True)]
        if len(self._entries) >= self._in_memory:
            self._spill()

    def drain(self) -> Iterator[tuple[int, RecordBatch]]:
        """(input, records), in order. Empty afterwards."""
        entries, self._entries = self._entries, []
        entries.sort(key=itemgetter(0))
        try:
            if not self._runs:
                yield from _batches(iter(entries))
            else:
                runs = [self._read(offsets) for offsets in self._runs]
                yield from _batches(heapq.merge(*runs, entries, key=itemgetter(0)))
        finally:
            self._runs = []
            if self._spilled is not None:
                self._spilled.close()
                self._spilled = None

    def _spill(self) -> None:
        entries, self._entries = self._entries, []
        entries.sort(key=itemgetter(0))
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile(prefix="tidegate-sort-")  # noqa: SIM115 - closed by drain
        offsets = []
        for start in range(0, len(entries), _BATCH):
            offsets.append(self._spilled.tell())
            self._spilled.write(dump_values(entries[start : start + _BATCH]))
        self._runs.append(offsets)

    def _read(self, offsets: list[int]) -> Iterator[Entry]:
        if self._spilled is None:
            raise InternalError("sorted runs without the file that they are in")
        for offset in offsets:
            self._spilled.seek(offset)
            yield from pickle.load(self._spilled)


def _batches(entries: Iterator[Entry]) -> Iterator[tuple[int, RecordBatch]]:
    values: list[Any] = []
    stamps: list[int] = []
    current = -1
    for timestamp, input_index, value in entries:
        if values and (input_index != current or len(values) == _BATCH):
            yield current, RecordBatch(values, stamps)
            values, stamps = [], []
        current = input_index
        values.append(value)
        stamps.append(timestamp)
    if values:
        yield current, RecordBatch(values, stamps)
