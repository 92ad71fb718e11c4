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
from tidegate.spark.micro_batch.location import CheckpointLocation
from tidegate.spark.micro_batch.plan import Limits, MicroBatchPlan, fingerprint, plan_job, width
from tidegate.spark.micro_batch.query import check_spark
from tidegate.spark.session import obtain_session, workers_write_to_the_terminal
from tidegate.spark.worker_files import code_for, distribute
from tidegate.spark.worker_logs import WorkerLogs
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import read_metadata
from tidegate.taskmanager.clock import SystemClock

if TYPE_CHECKING:
    from tidegate.spark.micro_batch.job import MicroBatchJob

log = logging.getLogger("tidegate.micro_batch")


class MicroBatchRuntime(Runtime):
    def _start(self, submission: Submission, starting: StartingJob) -> PublishedJobClient:
        configuration, files = submission.configuration, submission.files
        check_spark()
        _check_settings(configuration)
        _check_sources(submission.graph)
        graph = make_splits(submission.graph)
        starting.check_start(width(graph))
        check_picklable(graph)
        limits = Limits(
            max_records=options.read(configuration, options.MICRO_BATCH_MAX_RECORDS),
            buckets=options.read(configuration, options.MICRO_BATCH_BUCKETS),
        )
        settings = dataclasses.replace(runtime_settings(configuration, None), cached_files=files.paths())
        point = initial_point(configuration)
        if point is not None:
            graph = adopt_max_parallelism(graph, point.metadata)
        path, temporary = _location_of(configuration, graph)
        location = CheckpointLocation(path)
        job_id = location.open(graph.job_id, graph.name, fingerprint(graph, limits), SystemClock().now_ms())
        try:
            graph = dataclasses.replace(graph, job_id=job_id)
            if point is not None and location.next_batch:
                log.info("job %s goes on in %s; its start from a savepoint is over", graph.name, path)
                point = None
            allow = JobSettings.from_configuration(graph.name, configuration).allow_non_restored_state
            plan = plan_job(graph, settings, limits, point, allow)
            return _run(submission, plan, location, temporary).client
        except BaseException:
            location.close()
            if temporary:
                shutil.rmtree(path, ignore_errors=True)
            raise


def _run(submission: Submission, plan: MicroBatchPlan, location: CheckpointLocation, temporary: bool) -> MicroBatchJob:
    from tidegate.spark.micro_batch.job import MicroBatchJob  # not before Spark is known to be new enough

    configuration, files = submission.configuration, submission.files
    session = obtain_session(configuration, submission.session, width(plan.graph), busy=jobs_are_running())
    spare_background_jobs()
    distribute(session, files)
    settings = LogSettings.from_configuration(configuration)
    settings.apply_to_driver()
    on_terminal = workers_write_to_the_terminal(session)
    logs = WorkerLogs(plan.graph.job_id, plan.graph.name, settings, on_terminal=on_terminal)
    job = MicroBatchJob(session, plan, code_for(session, files), configuration, location, temporary, logs)
    job.start()
    return job


def initial_point(configuration: Configuration) -> RestorePoint | None:
    path = options.read(configuration, options.RECOVERY_PATH)
    if not path:
        return None
    loaded = read_metadata(path)
    if loaded.metadata.channels:
        raise ConfigurationError(
            f"{options.RECOVERY_PATH.key}: {path} is an unaligned checkpoint, which holds records that were on their "
            "way; a MICRO_BATCH job has no channels to put them into. Start it from a savepoint, or from an aligned "
            "checkpoint"
        )
    return RestorePoint(loaded.metadata, str(loaded.root), owned=False)


def _check_sources(graph: JobGraph) -> None:
    for vertex in graph.vertices:
        head = vertex.operators[0]
        if isinstance(head.spec, SourceSpec) and getattr(head.spec.source, "discovery_interval_ms", None) is not None:
            raise ConfigurationError(
                f"'{head.name}' looks for new splits while the job runs, which MICRO_BATCH mode cannot do yet. Let it "
                "read what is there at the start (files: no monitor_continuously; Kafka: "
                "partition.discovery.interval.ms = -1), or run the job in STREAMING mode"
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


def _location_of(configuration: Configuration, graph: JobGraph) -> tuple[str, bool]:
    """The checkpoint location, and whether it goes with the job."""
    path = options.read(configuration, options.MICRO_BATCH_LOCATION)
    if path:
        return path, False
    directory = options.read(configuration, options.CHECKPOINT_DIR)
    if directory and StorageLocation.parse(directory).is_local:
        return os.path.join(StorageLocation.parse(directory).local_path, graph.job_id, "micro-batch"), False
    return tempfile.mkdtemp(prefix="tidegate-micro-batch-location-"), True
