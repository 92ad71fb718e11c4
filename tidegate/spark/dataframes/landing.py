"""Landing a DataFrame: each partition becomes one Parquet file, written by the executors through Arrow.

A task that Spark runs twice writes two files; the driver hears of one, and only what the driver heard of counts. The
order of rows within a partition is kept.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import present
from tidegate.spark.dataframes.mapped_columns import map_in_arrow
from tidegate.storage.files import OutputFile, open_files
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_GROUP_BYTES = 16 << 20  # of columns in memory before they are written as one row group
_GROUP_ROWS = 65_536  # a reader that starts at an offset reads its row group from the beginning


@dataclass(frozen=True, order=True)
class LandedFile:
    partition: int
    name: str  # relative to the staging folder
    rows: int


def land(df: DataFrame, folder: StorageLocation, prefix: str, schema: pa.Schema) -> tuple[LandedFile, ...]:
    """Run the DataFrame's query and store its rows below `folder`/`prefix`. Empty partitions have no file."""
    writer = PartitionWriter(folder, prefix, schema)
    rows = map_in_arrow(df, writer, "partition int, name string, rows bigint").collect()
    return tuple(sorted(LandedFile(row.partition, row.name, row.rows) for row in rows))


class PartitionWriter:
    """Runs in a Spark task, once per partition."""

    def __init__(self, folder: StorageLocation, prefix: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._prefix = prefix
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        partition = present(TaskContext.get(), "the context of the Spark task").partitionId()
        name = f"{self._prefix}part-{partition:05d}-{uuid.uuid4().hex}.parquet"
        rows = self._write(name, batches)
        if rows:
            yield pa.RecordBatch.from_pydict(
                {"partition": pa.array([partition], pa.int32()), "name": [name], "rows": pa.array([rows], pa.int64())}
            )

    def _write(self, name: str, batches: Iterator[pa.RecordBatch]) -> int:
        output: OutputFile | None = None
        groups: GroupedParquet | None = None
        rows = 0
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if output is None or groups is None:
                    output = open_files(self._folder).create(name)
                    groups = GroupedParquet(output, self._schema)
                groups.write(batch.cast(self._schema))
                rows += batch.num_rows
            if output is not None and groups is not None:
                groups.close()
                output.commit()
        except BaseException:
            if output is not None:
                output.discard()
            raise
        return rows


class GroupedParquet:
    """A Parquet file of row groups of bounded size."""

    def __init__(self, output: Any, schema: pa.Schema) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = schema
        self._writer = pq.ParquetWriter(pa.PythonFile(_Sink(output), mode="w"), schema)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        # Not `nbytes`, which looks into offsets and crashes on those that Spark 3.5 leaves out of empty nested lists.
        self._bytes += batch.get_total_buffer_size()
        self._rows += batch.num_rows
        if self._bytes >= _GROUP_BYTES or self._rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema), row_group_size=self._rows)
            self._batches, self._bytes, self._rows = [], 0, 0

    def close(self) -> None:
        self._flush()
        with contextlib.closing(self._writer):
            pass


class _Sink:
    """What `pyarrow.PythonFile` wants of a file; the file itself is ended by whoever opened it."""

    closed = False

    def __init__(self, output: Any) -> None:
        self._output = output

    def write(self, data: bytes) -> int:
        self._output.write(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...
