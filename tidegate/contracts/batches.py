"""The unit of work: records travel and are processed in batches.

A batch is rows (a list of Python values) today. Operators never look at a batch's class beyond this one, so a
columnar batch (an Arrow record batch) can be added beside it: it will be converted only at the border to an
operator that wants rows.
"""

from __future__ import annotations

from typing import Any


class RecordBatch:
    """Rows in order, with one event timestamp (ms since the epoch) per row when the stream has timestamps.

    Treated as immutable once it has been emitted: a local edge hands the same object to the next task. The *list* is
    never changed in place by a receiver.
    """

    __slots__ = ("timestamps", "values")

    def __init__(self, values: list[Any], timestamps: list[int] | None = None) -> None:
        self.values = values
        self.timestamps = timestamps  # None, or exactly one int per value

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> RecordBatch:
        ts = self.timestamps
        return RecordBatch(self.values[start:stop], None if ts is None else ts[start:stop])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordBatch) and self.values == other.values and self.timestamps == other.timestamps

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RecordBatch({len(self.values)} records)"
