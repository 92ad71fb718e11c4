"""From a job graph to a running job: every check that can be made before the gang starts is made here."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import cloudpickle

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.job_id import JobID
from tidegate.common.restart_strategy import restart_strategy_of
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from tidegate.jobmanager.checkpoint_settings import CheckpointSettings
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.recovery_points import RestorePoint
from tidegate.jobmanager.restart_strategies import make_restart_strategy
from tidegate.network.elements import Alignment
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.job_client import SparkJobClient
from tidegate.spark.job_manager import JobManager
from tidegate.spark.session import check_slots, obtain_session
from tidegate.storage.checkpoint_storage import CheckpointStorage
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.memory import JobManagerStorage
from tidegate.storage.metadata import read_metadata
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.deployment import RuntimeSettings, SlotPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def submit_job(
    graph: JobGraph,
    configuration: Configuration,
    spark: SparkSession | None = None,
    python_files: list[str] | None = None,
) -> SparkJobClient:
    """Start the job and return its client. Raises, with nothing left behind, when the job cannot be started."""
    checkpoints = CheckpointSettings.from_configuration(configuration)
    initial = _initial_snapshot(configuration)
    settings = runtime_settings(configuration, checkpoints)
    job_settings = JobSettings.from_configuration(graph.name, configuration)
    storage = None if checkpoints is None else checkpoint_storage(configuration, graph.job_id)
    session = obtain_session(configuration, spark, graph.num_slots)
    check_slots(session, graph.num_slots)
    coordinator = None
    if checkpoints is not None and storage is not None:
        coordinator = CheckpointCoordinator(graph, checkpoints, storage.root, initial)
    worker_storage = None if storage is None else storage.worker_storage()
    if worker_storage is None and initial is not None:
        worker_storage = JobManagerStorage().worker_storage()  # only to read the snapshot
    plan = cloudpickle.dumps(SlotPlan(graph, settings, worker_storage, "" if storage is None else storage.root))
    restart = make_restart_strategy(restart_strategy_of(configuration, checkpoints is not None), random.Random())
    master = JobMaster(graph, job_settings, restart, coordinator, lambda attempt: plan, initial)
    bundle = CodeBundle.collect(python_files or [])
    if storage is not None:
        storage.open(SystemClock().now_ms())
    manager = JobManager(
        session=session,
        master=master,
        job_id=JobID.from_hex(graph.job_id),
        job_name=graph.name,
        settings=settings,
        bundle=bundle,
        storage=storage,
    )
    manager.start()
    return manager.client


def runtime_settings(configuration: Configuration, checkpoints: CheckpointSettings | None) -> RuntimeSettings:
    return RuntimeSettings(
        batch_size=options.read(configuration, options.NETWORK_BATCH_SIZE),
        credits_per_channel=options.read(configuration, options.NETWORK_CREDITS),
        max_batch_bytes=options.read(configuration, options.NETWORK_MAX_BATCH_BYTES),
        checkpointing=checkpoints is not None,
        exactly_once=checkpoints is None or checkpoints.alignment is not Alignment.AT_LEAST_ONCE,
        trace=options.read(configuration, options.CHECKPOINT_TRACE),
        max_increments=options.read(configuration, options.CHECKPOINT_MAX_INCREMENTS),
        commit_retries=options.read(configuration, options.SINK_COMMIT_RETRIES),
        commit_backoff_ms=options.read(configuration, options.SINK_COMMIT_BACKOFF),
        heartbeat_interval_ms=options.read(configuration, options.HEARTBEAT_INTERVAL),
        heartbeat_timeout_ms=options.read(configuration, options.HEARTBEAT_TIMEOUT),
        job_parameters=dict(options.read(configuration, options.GLOBAL_JOB_PARAMETERS) or {}),
    )


def checkpoint_storage(configuration: Configuration, job_id: str) -> CheckpointStorage:
    """Files when a directory is configured, otherwise the JobManager's memory."""
    directory = options.read(configuration, options.CHECKPOINT_DIR)
    if directory and options.read(configuration, options.CHECKPOINT_STORAGE) != "jobmanager":
        return FileSystemStorage(directory, job_id)
    return JobManagerStorage(options.read(configuration, options.MAX_MEMORY_STATE_SIZE))


def _initial_snapshot(configuration: Configuration) -> RestorePoint | None:
    path = options.read(configuration, options.RECOVERY_PATH)
    if not path:
        return None
    loaded = read_metadata(path)
    return RestorePoint(loaded.metadata, str(loaded.root))
