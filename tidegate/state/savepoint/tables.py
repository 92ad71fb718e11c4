"""Parquet files of a savepoint: columns in, one checked file out, and back. Knows nothing of values and pickles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.common.errors import SnapshotDamagedError
from tidegate.storage.checksums import checksum
from tidegate.storage.files import Files, write_file
from tidegate.storage.handles import FileRange

if TYPE_CHECKING:
    import pyarrow as pa


class TableWriter:
    """Writes the batches of one table as few files of bounded size. `finish` returns their handles."""

    MAX_BYTES = 32 << 20  # of columns in memory, before they are encoded

    def __init__(self, files: Files, folder: str, part: str, schema: pa.Schema) -> None:
        self._files = files
        self._folder = folder
        self._part = part
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self.written: list[tuple[FileRange, int]] = []  # (handle, rows)

    def add(self, columns: list[pa.Array]) -> None:
        import pyarrow as pa

        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= self.MAX_BYTES:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._bytes = [], 0
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
        path = f"{self._folder}/part-{self._part}-{len(self.written)}.parquet"
        write_file(self._files, path, data)
        self.written.append((FileRange(path, 0, len(data), checksum(data)), table.num_rows))


def read_table(data: bytes, where: str) -> pa.Table:
    """`data`: the whole file, verified.

    Without Arrow's threads (`pq.read_table` uses them always): one that still holds `data` when the interpreter ends
    cannot release it any more, and aborts the process.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except Exception as error:
        raise SnapshotDamagedError(f"{where} is not a table of a savepoint: {error}") from error


def columns_of(table: pa.Table, names: list[str], where: str) -> list[list[Any]]:
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise SnapshotDamagedError(f"{where} has no column {', '.join(missing)}: it is not a table of a savepoint")
    try:
        return [table.column(name).to_pylist() for name in names]
    except Exception as error:  # text that is no UTF-8, a name that is there twice, a date beyond all calendars
        raise SnapshotDamagedError(f"{where} holds values that cannot be read: {error}") from error
