"""The MICRO_BATCH runtime: the job as a query of Spark Structured Streaming."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.log_lines import LogSettings
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.driver_sides import StartingJob
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec
from tidegate.graph.picklability import check_picklable
from tidegate.graph.splits import make_splits
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.preparation import runtime_settings
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.running_jobs import jobs_are_running
from tidegate.jobmanager.runtime import Runtime, Submission
from tidegate.jobmanager.state_assignment import adopt_max_parallelism
from tidegate.spark.interrupts import spare_background_jobs
from tidegate.spark.micro_batch.location import Beginning, CheckpointLocation
from tidegate.spark.micro_batch.plan import (
    Limits,
    MicroBatchPlan,
    adopt_key_groups,
    fingerprint,
    key_groups,
    plan_job,
    width,
)
from tidegate.spark.micro_batch.query import check_spark
from tidegate.spark.micro_batch.savepoint_storage import SavepointStorage
from tidegate.spark.session import arrives_here, obtain_session, workers_write_to_the_terminal
from tidegate.spark.start_points import initial_point, start_options
from tidegate.spark.worker_files import code_for, distribute
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.storage.location import StorageLocation
from tidegate.taskmanager.clock import SystemClock

if TYPE_CHECKING:
    from tidegate.spark.micro_batch.job import MicroBatchJob

log = logging.getLogger("tidegate.micro_batch")


class MicroBatchRuntime(Runtime):
    def _start(self, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        configuration, files = submission.configuration, submission.files
        check_spark()
        _check_settings(configuration)
        _check_sources(submission.graph, options.read(configuration, options.MICRO_BATCH_TRIGGER))
        graph = make_splits(submission.graph)
        starting.check_start(width(graph))
        check_picklable(graph)
        limits = Limits(
            max_records=options.read(configuration, options.MICRO_BATCH_MAX_RECORDS),
            buckets=options.read(configuration, options.MICRO_BATCH_BUCKETS),
            max_bytes=options.read(configuration, options.MICRO_BATCH_MAX_BYTES),
        )
        settings = dataclasses.replace(runtime_settings(configuration, None), cached_files=files.paths())
        point = initial_point(configuration, "MICRO_BATCH")
        if point is not None:
            graph = adopt_max_parallelism(graph, point.metadata)
        path, temporary = location_of(configuration, graph)
        location = CheckpointLocation(path, options.read(configuration, options.STORAGE_PERMISSIONS))
        if point is None:
            graph = adopt_key_groups(graph, location.key_groups())
        job_id = location.open(
            graph.job_id,
            graph.name,
            fingerprint(graph, limits),
            SystemClock().now_ms(),
            must_exist=options.read(configuration, options.MICRO_BATCH_LOCATION_MUST_EXIST),
            id_is_fixed=options.read(configuration, options.JOB_ID) is not None,
            beginning=Beginning.of(point),
            key_groups=key_groups(graph),
        )
        try:
            graph = dataclasses.replace(graph, job_id=job_id)
            if point is not None and location.next_batch:
                log.info("job %s goes on in %s; its start from a savepoint is over", graph.name, path)
                point = None
            allow = JobSettings.from_configuration(graph.name, configuration).allow_non_restored_state
            savepoints = SavepointStorage.from_configuration(configuration)
            plan = plan_job(graph, settings, limits, point, allow, start_options(configuration))
            plan = dataclasses.replace(plan, savepoints=savepoints)
            return _run(submission, plan, location, temporary, point).client
        except BaseException:
            location.close()
            if temporary:
                shutil.rmtree(path, ignore_errors=True)
            raise


def _run(
    submission: Submission,
    plan: MicroBatchPlan,
    location: CheckpointLocation,
    temporary: bool,
    point: RestorePoint | None,
) -> MicroBatchJob:
    from tidegate.spark.micro_batch.job import MicroBatchJob  # not before Spark is known to be new enough

    configuration, files = submission.configuration, submission.files
    session = obtain_session(configuration, submission.session, width(plan.graph), busy=jobs_are_running())
    if temporary:
        _check_near(str(session.sparkContext.master or ""))
    if str(session.sparkContext.getConf().get("spark.speculation", "false")).lower() == "true":
        raise ConfigurationError(
            "spark.speculation is on: Spark would run a task twice at once, and what counts of a batch could be the "
            "records of one and the state of the other. Switch it off for MICRO_BATCH jobs"
        )
    if arrives_here(configuration, options.PRINT_ON_DRIVER, session):
        plan = dataclasses.replace(plan, prints_on_driver=True)
    spare_background_jobs()
    distribute(session, files)
    settings = LogSettings.from_configuration(configuration)
    settings.apply_to_driver()
    on_terminal = workers_write_to_the_terminal(session)
    logs = WorkerLogs(plan.graph.job_id, plan.graph.name, settings, on_terminal=on_terminal)
    job = MicroBatchJob(session, plan, code_for(session, files), configuration, location, temporary, logs, point)
    job.start()
    return job


def _check_sources(graph: JobGraph, trigger: str) -> None:
    for vertex in graph.vertices:
        head = vertex.operators[0]
        if not isinstance(head.spec, SourceSpec):
            continue
        if trigger == "AVAILABLE_NOW" and getattr(head.spec.source, "fed_meanwhile", False):
            raise ConfigurationError(
                f"{options.MICRO_BATCH_TRIGGER.key} is AVAILABLE_NOW, but '{head.name}' (from_spark_stream) is fed by "
                "a query of its own while the job runs: what is there when it looks says nothing. Use PROCESSING_TIME "
                "and stop the job with a savepoint, or read what there is now: spark.read in the place of readStream, "
                "and from_spark"
            )


def _check_settings(configuration: Configuration) -> None:
    trigger = options.read(configuration, options.MICRO_BATCH_TRIGGER)
    if trigger in ("CONTINUOUS", "REAL_TIME"):
        raise ConfigurationError(
            f"{options.MICRO_BATCH_TRIGGER.key} is {trigger}: Spark runs no Python operators and no Python state with "
            "that trigger. Use PROCESSING_TIME or AVAILABLE_NOW, or STREAMING mode (execution.runtime-mode), which has "
            "no batches"
        )
    if options.read(configuration, options.BATCH_SAVEPOINT_PATH):
        raise ConfigurationError(
            f"{options.BATCH_SAVEPOINT_PATH.key} is of BATCH mode; a MICRO_BATCH job takes savepoints while it runs "
            "and when it is stopped (JobClient.trigger_savepoint, stop_with_savepoint)"
        )
    if options.read(configuration, options.HA_TYPE) != "NONE":
        log.warning(
            "there is no high availability in MICRO_BATCH mode, those settings have no effect; a program that is "
            "started again with the same %s goes on where it was",
            options.MICRO_BATCH_LOCATION.key,
        )
    if options.read(configuration, options.CHECKPOINT_INTERVAL):
        log.info(
            "every micro-batch is a checkpoint: %s and the other settings of checkpoints have no effect, "
            "%s says how often there is one",
            options.CHECKPOINT_INTERVAL.key,
            options.MICRO_BATCH_INTERVAL.key,
        )


def location_of(configuration: Configuration, graph: JobGraph) -> tuple[str, bool]:
    """The checkpoint location, and whether it goes with the job. Refuses a folder for checkpoints that lies where a
    location cannot: a temporary one in its place would be none of what was asked for."""
    path = options.read(configuration, options.MICRO_BATCH_LOCATION)
    if path:
        return path, False
    directory = options.read(configuration, options.CHECKPOINT_DIR)
    if directory:
        below = StorageLocation.parse(directory)
        if not below.is_local:
            raise ConfigurationError(
                f"{options.CHECKPOINT_DIR.key}: {directory} is not a folder of a file system, and this version of "
                "MICRO_BATCH keeps its checkpoint location in one. Name a folder that the driver and all executors see "
                f"at the same path: {options.MICRO_BATCH_LOCATION.key}"
            )
        return os.path.join(below.local_path, graph.job_id, "micro-batch"), False
    path = tempfile.mkdtemp(prefix="tidegate-micro-batch-location-")
    log.warning(
        "job %s has no checkpoint location (%s): what it keeps is in %s and goes with the job; started again it begins "
        "from nothing",
        graph.name,
        options.MICRO_BATCH_LOCATION.key,
        path,
    )
    return path, True


def _check_near(master: str) -> None:
    """A temporary folder of the driver is there for executors of this machine only: those of a local Spark, which
    include the processes of `local-cluster`. A cluster with all its executors here is not told from any other."""
    if not master.startswith("local"):
        raise ConfigurationError(
            f"{options.MICRO_BATCH_LOCATION.key} is not set, and a temporary folder of the driver will not do: Spark "
            f"runs on {master}, and its executors write the state. Name a folder that the driver and all executors see "
            "at the same path"
        )
