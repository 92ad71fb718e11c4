"""From a job graph to a running batch job: every check that can be made before Spark is asked is made here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.worker_files import WorkerFiles
from tidegate.graph.job_graph import JobGraph
from tidegate.spark.batch.client import BatchJobClient
from tidegate.spark.batch.compilation import plan_configured, width, with_splits
from tidegate.spark.batch.job import BatchJob, batch_jobs_are_running
from tidegate.spark.batch.job_savepoint import planned_savepoint
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.session import obtain_session
from tidegate.spark.streaming.job_manager import jobs_are_running
from tidegate.spark.worker_files import distribute
from tidegate.taskmanager.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidegate.batch")


def submit_batch(
    graph: JobGraph,
    configuration: Configuration,
    spark: SparkSession | None = None,
    python_files: list[str] | None = None,
    worker_files: WorkerFiles | None = None,
) -> BatchJobClient:
    """Start the job and return its client. Raises, with nothing left behind, when the job cannot be started."""
    files = WorkerFiles() if worker_files is None else worker_files
    if options.read(configuration, options.RECOVERY_PATH):
        raise ConfigurationError(
            f"{options.RECOVERY_PATH.key} is set, but a BATCH job starts from nothing: all its input is there from the "
            "beginning. Leave it out, or run the job in STREAMING mode"
        )
    graph = with_splits(graph)
    savepoint = planned_savepoint(configuration, SystemClock().now_ms())
    plan = plan_configured(graph, configuration, files, savepoint)
    if options.read(configuration, options.CHECKPOINT_INTERVAL):
        log.info("job %s: there are no checkpoints in BATCH mode, those settings have no effect", graph.name)
    busy = jobs_are_running() or batch_jobs_are_running()
    session = obtain_session(configuration, spark, width(graph), busy=busy)
    distribute(session, files)
    job = BatchJob(session, plan, CodeBundle.collect(python_files or []), configuration, savepoint)
    job.start()
    return job.client
