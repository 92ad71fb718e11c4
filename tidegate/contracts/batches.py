"""The unit of work: records travel and are processed in batches.

A `Batch` is opaque: whoever moves records (channels, edge outputs, the wire, a task that cuts a batch to slices) uses
its operations and never looks inside. What is inside is the business of its kind. There is one kind today,
`RecordBatch`: rows, a list of Python values. Rows that carry ids and columns (an Arrow record batch) can stand beside
it: a kind is a class here, and an entry in the table of codecs in `network.serialization`.

Functions of the user take rows. So the operators that call them take `RecordBatch`, and `Batch.rows` is called once, at
the border: where a chain takes a batch in, and where a key selector routes one.
"""

from __future__ import annotations

from typing import Any

from tidegate.common.value_sizes import estimated_size

_LARGE = 4096  # bytes: values that the sample says are larger are all looked at


class Batch:
    """Records in order, with one event timestamp (ms since the epoch) per record when the stream has timestamps.

    Treated as immutable once it has been emitted: a local edge hands the same object to the next task, and several
    edges are handed the same object. A plain class rather than an abstract one, because `isinstance` is asked for each
    element of each channel.
    """

    __slots__ = ()

    timestamps: list[int] | None  # None, or exactly one per record

    def __len__(self) -> int:
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> Batch:
        """The records from `start` up to but without `stop`."""
        raise NotImplementedError

    def stride(self, start: int, step: int) -> Batch:
        """Every `step`-th record, beginning with the one at `start`; it may have no record at all."""
        raise NotImplementedError

    def split(self, targets: list[int], count: int) -> list[Batch]:
        """`count` batches, of which number i has the records whose target is i, in order; some may be empty.
        `targets` has one number per record."""
        raise NotImplementedError

    def joins(self, other: Batch) -> bool:
        """Whether the two can become one batch: they are of the same kind, and both have timestamps or neither has."""
        return type(self) is type(other) and (self.timestamps is None) is (other.timestamps is None)

    def join(self, others: list[Batch]) -> Batch:
        """The records of this batch and of all others, each of which it `joins`, in order. None of them changes."""
        raise NotImplementedError

    def estimated_bytes(self) -> int:
        """About how much memory the records take. Asked once or twice for each batch on a channel: has to be cheap."""
        return 0

    def rows(self) -> RecordBatch:
        """The same records as rows."""
        raise NotImplementedError


class RecordBatch(Batch):
    """Rows: a list of Python values. Neither list is ever changed in place by a receiver."""

    __slots__ = ("_bytes", "timestamps", "values")

    def __init__(self, values: list[Any], timestamps: list[int] | None = None) -> None:
        self.values = values
        self.timestamps = timestamps
        self._bytes = -1  # estimated when it is asked for

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> RecordBatch:
        ts = self.timestamps
        return RecordBatch(self.values[start:stop], None if ts is None else ts[start:stop])

    def stride(self, start: int, step: int) -> RecordBatch:
        ts = self.timestamps
        return RecordBatch(self.values[start::step], None if ts is None else ts[start::step])

    def split(self, targets: list[int], count: int) -> list[Batch]:
        values: list[list[Any]] = [[] for _ in range(count)]
        appends = [part.append for part in values]
        for target, v in zip(targets, self.values, strict=True):
            appends[target](v)
        if self.timestamps is None:
            return [RecordBatch(part) for part in values]
        stamps: list[list[int]] = [[] for _ in range(count)]
        for target, t in zip(targets, self.timestamps, strict=True):
            stamps[target].append(t)
        return [RecordBatch(part, times) for part, times in zip(values, stamps, strict=True)]

    def join(self, others: list[Batch]) -> RecordBatch:
        values = self.values.copy()
        timestamps = None if self.timestamps is None else self.timestamps.copy()
        for other in others:
            rows = other.rows()
            values += rows.values
            if timestamps is not None:
                timestamps += rows.timestamps or ()
        return RecordBatch(values, timestamps)

    def estimated_bytes(self) -> int:
        """Small values are judged by three of them, which costs a microsecond or two; large ones one by one."""
        if self._bytes < 0:
            values = self.values
            count = len(values)
            sample = [values[0], values[count // 2], values[-1]] if count > 3 else values
            self._bytes = sum(map(estimated_size, sample))
            if count > 3:
                small = self._bytes < 3 * _LARGE
                self._bytes = self._bytes * count // 3 if small else sum(map(estimated_size, values))
        return self._bytes

    def rows(self) -> RecordBatch:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordBatch) and self.values == other.values and self.timestamps == other.timestamps

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RecordBatch({len(self.values)} records)"
