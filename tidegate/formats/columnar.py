"""What the columnar formats share: a writer that collects rows, and a reader that hands out the rows of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from tidegate.common.serialization import BulkWriter
from tidegate.contracts.file_formats import FileRecordReader

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 4096  # that are turned into columns at a time
_GROUP_BYTES = 32 << 20  # of columns in memory, before they are encoded as one row group or stripe


class TableOutput(Protocol):
    """A `ParquetWriter` or `ORCWriter`, behind one method each."""

    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class ColumnarWriter(BulkWriter):
    """`to_batch` makes columns of a list of records. Memory is bounded: rows become columns soon, and columns become a
    row group of the file at 32 MiB. A file without records is a valid file too."""

    def __init__(
        self,
        stream: BinaryIO,
        schema: pa.Schema,
        to_batch: Callable[[list[Any]], pa.RecordBatch],
        open_output: Callable[[Any, pa.Schema], TableOutput],
    ) -> None:
        import pyarrow as pa

        self._to_batch = to_batch
        self._schema = schema
        self._output = open_output(pa.PythonFile(stream, mode="w"), schema)
        self._records: list[Any] = []
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add_element(self, element: Any) -> None:
        records = self._records
        records.append(element)
        if len(records) >= _ROWS:
            self._collect()

    def _collect(self) -> None:
        if not self._records:
            return
        records, self._records = self._records, []
        batch = self._to_batch(records)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        if self._batches:
            batches, self._batches, self._bytes = self._batches, [], 0
            self._output.write(pa.Table.from_batches(batches, self._schema))

    def flush(self) -> None:
        self._collect()
        self._write()

    def finish(self) -> None:
        self.flush()
        self._output.close()


class ColumnarReader(FileRecordReader[Any]):
    """The rows of some groups (row groups, stripes) of a file. The offset is the number of rows before it.

    `groups` are (number, rows); a group that claims more rows than it has is read and passed over row by row instead of
    at once. `batches` reads the groups of the given numbers, in order."""

    def __init__(
        self,
        groups: list[tuple[int, int]],
        batches: Callable[[list[int]], Iterator[pa.RecordBatch]],
        to_records: Callable[[pa.RecordBatch], list[Any]],
        close: Callable[[], None],
        offset: int | None,
    ) -> None:
        self._to_records = to_records
        self._close = close
        self._position = skip = offset or 0
        while groups and groups[0][1] <= skip:
            skip -= groups[0][1]
            groups = groups[1:]
        self._skip = skip  # rows to leave out of the first group
        self._batches = batches([number for number, _ in groups])
        self._batch: pa.RecordBatch | None = None
        self._next = 0  # row in `_batch`

    def read(self, max_records: int) -> list[Any] | None:
        batch = self._batch
        if batch is None:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._next = min(self._skip, batch.num_rows)
            self._skip -= self._next
        records = self._to_records(batch.slice(self._next, max_records))
        self._next += len(records)
        self._position += len(records)
        self._batch = None if self._next >= batch.num_rows else batch
        return records

    def offset(self) -> int:
        return self._position

    def close(self) -> None:
        self._close()
