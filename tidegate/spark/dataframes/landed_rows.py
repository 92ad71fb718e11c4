"""Reading landed files, from an exact row on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import TidegateError
from tidegate.connectors.files.input_files import InputFiles
from tidegate.formats.arrow_rows import RowsOfColumns
from tidegate.formats.columnar import ColumnarReader

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.spark.dataframes.landing import LandedFile
    from tidegate.storage.location import StorageLocation

_BATCH_ROWS = 4096


class LandedRows:
    """The rows of the files of one staging folder."""

    def __init__(self, folder: StorageLocation, schema: pa.Schema) -> None:
        self._folder = folder
        self._files = InputFiles([folder])
        self._rows = RowsOfColumns(schema)

    def open(self, file: LandedFile, row: int) -> ColumnarReader:
        """A reader positioned before row number `row`."""
        import pyarrow.parquet as pq

        base = self._folder.local_path if self._folder.is_local else self._folder.uri
        path = f"{base}/{file.name}"
        if self._files.status(path) is None:
            raise TidegateError(
                f"{path} is gone: it holds {file.rows} landed rows that this job has still to read. Was the staging "
                "folder deleted, or is the job started from a snapshot of a run whose staging folder was?"
            )
        source = self._files.open_arrow(path)
        try:
            parquet = pq.ParquetFile(source)
            groups = [(i, parquet.metadata.row_group(i).num_rows) for i in range(parquet.metadata.num_row_groups)]
        except BaseException:
            source.close()
            raise

        def batches(numbers: list[int]) -> Iterator[Any]:
            if numbers:
                yield from parquet.iter_batches(_BATCH_ROWS, row_groups=numbers, use_threads=False)

        return ColumnarReader(groups, batches, self._rows.rows, source.close, row)
