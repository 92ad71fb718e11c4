"""A Structured Streaming DataFrame as an unbounded source, exactly once.

A query of Spark lands the micro-batches in a staging folder (`landing_query`), and lanes read them in order
(`staged_reader`); the folder is described in `staged_batches`. Both sides keep their own place: Spark in its checkpoint
beside the batches, the job in its checkpoints. Neither needs to be told of the other's restarts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, ResourceError, of_type, present
from tidegate.common.types import Row
from tidegate.contracts.connectors import Boundedness, Source, SourceContext, SourceSplit, SplitReader
from tidegate.contracts.driver_side import DriverSide
from tidegate.spark.dataframes.landed_rows import LandedRows
from tidegate.spark.dataframes.landing_query import LandingQuery, QuerySettings
from tidegate.spark.dataframes.schemas import arrow_schema_of, row_type_of
from tidegate.spark.dataframes.staged_batches import StagedBatches
from tidegate.spark.dataframes.staged_reader import BatchWatch, LaneReader, LaneSplit
from tidegate.spark.dataframes.staging import can_be_resumed, delete_folder, new_folder, staging_base
from tidegate.spark.session import _slots
from tidegate.storage.location import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidegate.common.job_client import JobClient

__all__ = ["QuerySettings", "SparkStreamSource"]

log = logging.getLogger("tidegate.spark")

_LANES = 16  # at the least: a job can be rescaled up to this parallelism
WHERE = "from_spark_stream"


class SparkStreamSource(Source[Row], DriverSide):
    """Made by `StreamExecutionEnvironment.from_spark_stream`. The DataFrame and its query stay on the driver."""

    gives_timestamps = False
    fed_meanwhile = True
    """What is there to read is brought by a query of its own while the job runs."""

    def __init__(self, sdf: DataFrame, configuration: Configuration, settings: QuerySettings, name: str) -> None:
        self._sdf: DataFrame | None = sdf
        self._configuration: Configuration | None = configuration
        self._settings = settings
        self._name = name
        self._row_type = row_type_of(sdf.schema, WHERE)
        self._schema: pa.Schema = arrow_schema_of(sdf.schema, WHERE)
        self._folder: StorageLocation | None = None
        self._staging_id = ""
        self._query: LandingQuery | None = None
        self._watch: BatchWatch | None = None  # of this process

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    # ------------------------------------------------------------ on the driver

    @property
    def _dataframe(self) -> DataFrame:
        return present(self._sdf, "the DataFrame of a source, which is known on the driver only,")

    @property
    def _job_configuration(self) -> Configuration:
        return present(self._configuration, "the configuration, which is known on the driver only,")

    def create_splits(self, parallelism: int) -> Sequence[LaneSplit]:
        sdf = self._dataframe
        self._folder = folder = self._choose_folder(sdf)
        staged = StagedBatches(folder)
        self._staging_id, lanes = staged.open_id(max(parallelism, _LANES))
        self._query = LandingQuery(sdf, staged, self._schema, self._settings, lanes)
        return [LaneSplit(f"lane-{i}", i, lanes, str(folder), self._staging_id) for i in range(lanes)]

    def _choose_folder(self, sdf: DataFrame) -> StorageLocation:
        """The user's; else one of the job's own when its id is fixed, so that the next program finds it; else new."""
        if self._settings.staging is not None:
            return StorageLocation.parse(self._settings.staging)
        configuration = self._job_configuration
        fixed = options.read(configuration, options.JOB_ID)
        base = staging_base(configuration, sdf.sparkSession, WHERE)
        if fixed is None or base is None:
            return new_folder(configuration, sdf.sparkSession, "spark-stream", WHERE)
        return base.child(f"spark-stream-{fixed}-{re.sub(r'[^A-Za-z0-9_-]+', '-', self._name)}")

    def check_start(self, num_slots: int) -> None:
        """Also starts the query: what Spark has against it is then known before the job begins."""
        context = self._dataframe.sparkSession.sparkContext
        available = _slots(context)
        if available <= num_slots:
            raise ResourceError(
                f"{WHERE}: the job takes {num_slots} slots, and the query that feeds it needs at least one more, but "
                f"Spark at {context.master} can run {available} tasks at once. Lower the parallelism to at most "
                f"{max(1, available - 1)}, or give Spark more cores"
            )
        present(self._query, "the query that lands batches").start()

    def job_started(self, client: JobClient) -> None:
        query = present(self._query, "the query that lands batches")
        folder = present(self._folder, "the folder of the batches")
        at_submission, own = Configuration(self._job_configuration), self._settings.staging is None
        self._query = self._folder = None

        def ended() -> None:
            if own and not can_be_resumed(client, at_submission):
                delete_folder(folder)
            else:
                log.info("%s is kept: job %s can go on from it", folder, client.get_job_id())

        query.watch(client, ended)

    def job_refused(self) -> None:
        query, self._query = self._query, None
        folder, self._folder = self._folder, None
        if query is not None:
            query.stop()
        if folder is not None and self._settings.staging is None and not self._has_batches(folder):
            delete_folder(folder)

    def _has_batches(self, folder: StorageLocation) -> bool:
        """A folder of a fixed job id may be that of the run before."""
        fixed = options.read(self._job_configuration, options.JOB_ID) is not None
        return fixed and bool(StagedBatches(folder).landed())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_sdf": None, "_configuration": None, "_query": None, "_watch": None}

    # ------------------------------------------------------------ in the workers

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Row]:
        split, folder = of_type(LaneSplit, split), present(self._folder, "the folder of the batches")
        if split.staging_id != self._staging_id:
            raise ConfigurationError(
                f"the snapshot was taken while batches were landed in {split.folder}, and now they are landed in "
                f"{folder}: go on with from_spark_stream(..., staging='{split.folder}')"
            )
        if self._watch is None:
            self._watch = BatchWatch(StagedBatches(folder))
        return LaneReader(split, offset, self._watch, LandedRows(folder, self._schema), context)

    def get_produced_type(self) -> Any:
        return self._row_type

    def __repr__(self) -> str:
        return f"SparkStreamSource({', '.join(self._schema.names)})"
