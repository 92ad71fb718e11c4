"""A DataFrame as a bounded source.

STREAMING: the DataFrame is landed once, when the job is submitted; its splits are lists of the landed files, kept in
every checkpoint. So a restart reads the same rows in the same order, whatever the DataFrame's query would give the
second time. BATCH reads the DataFrame itself (`batch_rdd`), and nothing is landed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.common.configuration import Configuration
from tidegate.common.errors import of_type, present
from tidegate.common.types import Row
from tidegate.contracts.connectors import Source, SourceContext, SourceSplit, SplitReader
from tidegate.contracts.driver_side import DriverSide
from tidegate.formats.arrow_rows import RowsOfColumns
from tidegate.spark.dataframes.landed_rows import LandedRows
from tidegate.spark.dataframes.landing import LandedFile, land
from tidegate.spark.dataframes.mapped_columns import map_in_arrow
from tidegate.spark.dataframes.schemas import arrow_schema_of, row_type_of
from tidegate.spark.dataframes.staging import can_be_resumed, delete_folder, new_folder
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.common.job_client import JobClient
    from tidegate.formats.columnar import ColumnarReader

log = logging.getLogger("tidegate.spark")

_SPLITS = 16  # at the least, when there are so many partitions: a job can be rescaled up to this parallelism


@dataclass(frozen=True)
class DataFrameSplit(SourceSplit):
    folder: str
    files: tuple[LandedFile, ...]


class DataFrameSource(Source[Row], DriverSide):
    """Made by `StreamExecutionEnvironment.from_spark`. The DataFrame stays on the driver."""

    gives_timestamps = False

    def __init__(self, df: DataFrame, configuration: Configuration) -> None:
        self._df: DataFrame | None = df
        self._configuration: Configuration | None = configuration
        self._row_type = row_type_of(df.schema, "from_spark")
        self._schema: pa.Schema = arrow_schema_of(df.schema, "from_spark")
        self._folder: StorageLocation | None = None

    # ------------------------------------------------------------ on the driver

    @property
    def dataframe(self) -> DataFrame:
        return present(self._df, "the DataFrame of a source, which is known on the driver only,")

    @property
    def arrow_schema(self) -> pa.Schema:
        return self._schema

    def create_splits(self, parallelism: int) -> Sequence[DataFrameSplit]:
        df = self.dataframe
        configuration = present(self._configuration, "the configuration, which is known on the driver only,")
        self._folder = folder = new_folder(configuration, df.sparkSession, "dataframe", "from_spark")
        files = land(df, folder, "", self._schema)
        count = min(len(files), max(parallelism, _SPLITS))
        shown = str(folder)
        return [DataFrameSplit(f"files-{i}", shown, files[i::count]) for i in range(count)]

    def batch_rdd(self, session: SparkSession) -> RDD[bytes]:
        """BATCH: the DataFrame's partitions as blocks, an Arrow stream of one record batch each. Nothing is run."""
        from pyspark.serializers import NoOpSerializer

        blocks = map_in_arrow(self.dataframe, ArrowToBlocks(self._schema), "block binary").rdd
        raw: RDD[bytes] = blocks.map(_only_value)._reserialize(NoOpSerializer())
        return raw

    def job_started(self, client: JobClient) -> None:
        folder, configuration = self._folder, self._configuration
        self._folder = None
        if folder is None or configuration is None:
            return
        at_submission = Configuration(configuration)

        def ended(_: Any) -> None:
            if can_be_resumed(client, at_submission):
                log.info("%s is kept: a snapshot of job %s needs it", folder, client.get_job_id())
            else:
                delete_folder(folder)

        client.get_job_execution_result().add_done_callback(ended)

    def job_refused(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            delete_folder(folder)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_df": None, "_configuration": None}

    # ------------------------------------------------------------ in the workers

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Row]:
        split, folder = of_type(DataFrameSplit, split), self._folder
        if folder is None or str(folder) != split.folder:  # a split of a snapshot may lie in that of an earlier run
            folder = StorageLocation.parse(split.folder)
        return _FilesReader(LandedRows(folder, self._schema), split.files, offset or (0, 0))

    def read_block(self, block: bytes) -> list[Row]:
        import pyarrow as pa

        rows = RowsOfColumns(self._schema)
        with pa.ipc.open_stream(block) as stream:
            return [row for batch in stream for row in rows.rows(batch)]

    def get_produced_type(self) -> Any:
        return self._row_type

    def __repr__(self) -> str:
        return f"DataFrameSource({', '.join(self._schema.names)})"


class ArrowToBlocks:
    """In a Spark task: record batches become opaque blocks."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            if batch.num_rows:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, self._schema) as stream:
                    stream.write_batch(batch.cast(self._schema))
                yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["block"])


def _only_value(row: Any) -> bytes:
    return bytes(row[0])


class _FilesReader(SplitReader[Row]):
    """The offset is the number of the file and the rows of it that were read."""

    def __init__(self, rows: LandedRows, files: tuple[LandedFile, ...], offset: tuple[int, int]) -> None:
        self._rows = rows
        self._files = files
        self._file, self._row = offset
        self._open: ColumnarReader | None = None

    def poll(self, max_records: int) -> list[Row] | None:
        while self._file < len(self._files):
            if self._open is None:
                self._open = self._rows.open(self._files[self._file], self._row)
            rows = self._open.read(max_records)
            if rows is not None:
                self._row += len(rows)
                return rows
            self.close()
            self._file, self._row = self._file + 1, 0
        return None

    def offset(self) -> tuple[int, int]:
        return self._file, self._row

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()
