"""The driver's side of a Structured Streaming source: the query that lands micro-batches, watched during the job."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.spark.dataframes.landing import land
from tidegate.spark.dataframes.staged_batches import QueryFailure, StagedBatches
from tidegate.spark.dataframes.staging import spark_path
from tidegate.spark.spark_errors import summarize

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("tidegate.spark")

MAX_UNREAD = 32  # landed batches that no lane has got to; then the query waits
_WATCH_S = 0.1
_CLEAN_EVERY = 5  # times `_WATCH_S`


@dataclass(frozen=True)
class QuerySettings:
    staging: str | None
    output_mode: str
    trigger: str | None


class _StoppingError(TidegateError):
    """Ends the batch that is being landed: one that returned would count as landed for Spark."""


class LandingQuery:
    """`start`, then `watch` or `stop`. The query is started again when an attempt of the job failed because of it and
    the job has gone on to the next attempt: the job's restart strategy decides for both."""

    def __init__(
        self, sdf: DataFrame, staged: StagedBatches, schema: pa.Schema, settings: QuerySettings, lanes: int
    ) -> None:
        self._sdf = sdf
        self._staged = staged
        self._schema = schema
        self._settings = settings
        self._lanes = lanes
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._committed = -1  # the latest batch that Spark has committed, as far as known here
        self._read = 0  # the lowest batch that a lane still reads
        self._failed_attempt: int | None = None
        self._landing_error: str | None = None  # Spark wraps what its callbacks raise beyond recognition

    def start(self) -> None:
        self._staged.clear_failure()
        self._landing_error = None
        self._read = min(p.read for p in self._staged.read_progress(self._lanes))
        writer = self._sdf.writeStream.outputMode(self._settings.output_mode).foreachBatch(self._land)
        location = spark_path(self._staged.folder, "spark")
        try:
            if self._settings.trigger is not None:
                writer = writer.trigger(processingTime=self._settings.trigger)
            self._query = writer.option("checkpointLocation", location).start()
        except Exception as error:
            raise ConfigurationError(
                f"from_spark_stream: Spark does not start the query: {summarize(error)}"
            ) from error

    def stop(self) -> None:
        """Returns when the query is at rest. May be called twice."""
        self._stopping.set()
        query, self._query = self._query, None
        if query is not None:
            with contextlib.suppress(Exception):  # the session may be gone, and the query with it
                query.stop()

    def watch(self, client: Any, ended: Callable[[], None]) -> None:
        """Until the job has ended: then stop, and call `ended`. Returns at once."""
        over = threading.Event()
        client.get_job_execution_result().add_done_callback(lambda _: over.set())

        def run() -> None:
            looks = 0
            while not over.wait(_WATCH_S):
                try:
                    self._look(client.attempt(), clean=looks % _CLEAN_EVERY == 0)
                except Exception as error:  # storage that is out of reach now may be back at the next look
                    log.warning("the staging folder %s: %s", self._staged.folder, error)
                looks += 1
            self.stop()
            ended()

        threading.Thread(target=run, name="tidegate-landing-query", daemon=True).start()

    # ------------------------------------------------------------ the watching thread

    def _look(self, attempt: int, clean: bool) -> None:
        if self._failed_attempt is not None:
            if attempt > self._failed_attempt:
                self._start_again(attempt)
        elif self._query is not None and not self._query.isActive:
            self._fail(attempt, self._landing_error or _why(self._query))
        progress = self._staged.read_progress(self._lanes)
        self._read = min(p.read for p in progress)
        if clean:
            self._clean(min(p.done for p in progress))

    def _start_again(self, attempt: int) -> None:
        self._failed_attempt = None
        try:
            self.start()
        except ConfigurationError as error:
            self._fail(attempt, str(error))

    def _fail(self, attempt: int, message: str) -> None:
        self._failed_attempt = attempt
        self._staged.write_failure(QueryFailure(attempt, message))

    def _clean(self, done: int) -> None:
        for batch in self._staged.landed():
            if batch < done and batch <= self._committed:
                self._staged.delete(batch)

    # ------------------------------------------------------------ Spark's thread

    def _land(self, df: DataFrame, batch: int) -> None:
        self._committed = max(self._committed, batch - 1)  # Spark commits a batch before it begins the next
        if self._staged.is_landed(batch):
            return
        while batch - self._read >= MAX_UNREAD and not self._stopping.wait(_WATCH_S):
            pass
        if self._stopping.is_set():
            raise _StoppingError("the job has ended")
        try:
            files = land(df, self._staged.folder, self._staged.data_prefix(batch), self._schema)
            self._staged.write_manifest(batch, files)
        except Exception as error:
            self._landing_error = f"batch {batch} could not be landed: {summarize(error)}"
            raise


def _why(query: StreamingQuery) -> str:
    error = query.exception()
    return "it was stopped" if error is None else summarize(error)
