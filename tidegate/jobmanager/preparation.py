"""From a job graph to a JobMaster that can be started: every check that needs no Spark is made here."""

from __future__ import annotations

import dataclasses
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import cloudpickle

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, SnapshotDamagedError
from tidegate.common.ids import CheckpointId
from tidegate.common.restart_strategy import restart_strategy_of
from tidegate.common.worker_files import WorkerFiles
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator
from tidegate.fault_tolerance.barriers.job import BarrierCheckpoints
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.channel_assignment import UnmovableRecordsError
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_settings import JobSettings, cancellation_timeout_ms
from tidegate.jobmanager.leadership.leadership import Leadership
from tidegate.jobmanager.restart_strategies import make_restart_strategy
from tidegate.jobmanager.starting_points import starting_points, storage_options
from tidegate.jobmanager.state_assignment import StateAssigner, adopt_max_parallelism
from tidegate.network.elements import Alignment
from tidegate.state.rocksdb.settings import RocksDBSettings
from tidegate.storage import compression
from tidegate.storage.calls import told_of_hanging
from tidegate.storage.checkpoint_storage import CheckpointStorage
from tidegate.storage.filesystem import FileSystemStorage, latest_aligned
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.memory import JobManagerStorage
from tidegate.taskmanager.clock import SystemClock
from tidegate.taskmanager.deployment import RuntimeSettings, SlotPlan
from tidegate.taskmanager.instrument import Instrument

log = logging.getLogger("tidegate.jobmanager")


@dataclass(frozen=True)
class PreparedJob:
    """A job that has passed every check that needs no Spark. Its storage is open: `discard` it, or run it."""

    graph: JobGraph  # with the max parallelism of the snapshot that the job starts from
    master: JobMaster
    settings: RuntimeSettings
    storage: CheckpointStorage
    configuration: Configuration  # that the job was prepared with
    leadership: Leadership | None = None  # with high availability: closed by whoever runs the job
    shown: CheckpointId | None = None  # the newest that an earlier leader may have answered a committed read from

    def discard(self) -> None:
        """The job is not run after all. Not after it was handed to somebody who runs it."""
        self.storage.close()


def prepare_job(
    graph: JobGraph,
    configuration: Configuration,
    worker_files: WorkerFiles | None = None,
    instrument: Instrument | None = None,
    leadership: Leadership | None = None,
) -> PreparedJob:
    """Settings, storage, restore point, coordinator and JobMaster of a job whose graph has its splits. Raises, with
    nothing left behind, when the job cannot be started. `leadership`: of a program that leads, and the
    caller's to close. Waits for the storage as long as that takes, and says so."""
    with told_of_hanging(log, f"the start of job {graph.name}"):
        return _prepared(graph, configuration, worker_files, instrument, leadership)


def _prepared(
    graph: JobGraph,
    configuration: Configuration,
    worker_files: WorkerFiles | None,
    instrument: Instrument | None,
    leadership: Leadership | None,
) -> PreparedJob:
    checkpoints = CheckpointSettings.from_configuration(configuration)
    for warning in checkpoints.warnings if checkpoints is not None else ():
        log.warning("job %s: %s", graph.name, warning)
    start = starting_points(graph.name, configuration, None if leadership is None else leadership.record)
    initial = start.initial
    if initial is not None:
        graph = adopt_max_parallelism(graph, initial.metadata)
    job_settings = JobSettings.from_configuration(graph.name, configuration)
    assigner = StateAssigner(graph, job_settings.allow_non_restored_state)
    if initial is not None:
        initial = _restorable(graph.name, assigner, initial, storage_options(configuration))
    settings = runtime_settings(configuration, checkpoints)
    if worker_files is not None:
        settings = dataclasses.replace(settings, cached_files=worker_files.paths())
    restart = make_restart_strategy(restart_strategy_of(configuration, checkpoints is not None), random.Random())
    # Without checkpointing there are still savepoints, which have folders of their own.
    permissions = options.read(configuration, options.STORAGE_PERMISSIONS)
    guard = _no_guard if leadership is None else leadership.check
    storage: CheckpointStorage = (
        JobManagerStorage(permissions=permissions, guard=guard)
        if checkpoints is None
        else _storage_of(graph.job_id, configuration, leadership)
    )
    if instrument is not None:
        storage = instrument.storage(storage)
    checkpoints = checkpoints or CheckpointSettings.savepoints_only(configuration)
    plan = cloudpickle.dumps(SlotPlan(graph, settings, storage.worker_storage(), storage.root, instrument))
    storage.open(SystemClock().now_ms())
    try:
        older = [p for p in start.older if initial is not None and p.checkpoint_id < initial.checkpoint_id]
        coordinator = CheckpointCoordinator(
            graph,
            checkpoints,
            storage.root,
            initial,
            max(storage.highest_checkpoint(), start.highest_id or CheckpointId(0)),
            older=older,
            others=other_checkpoints(storage, initial),
            epoch=0 if leadership is None else leadership.epoch,
            stopped=leadership is not None and leadership.record.stopped,
        )
        model = BarrierCheckpoints(coordinator, initial, older)
        master = JobMaster(graph, job_settings, restart, model, lambda attempt: plan, assigner)
    except BaseException:
        storage.close()
        raise
    # A checkpoint is complete, and is read, once the record names it: the newest one there, though it may be damaged.
    return PreparedJob(graph, master, settings, storage, configuration, leadership, shown=start.highest_id)


def _no_guard() -> None:
    """Nobody else runs the job."""


def runtime_settings(configuration: Configuration, checkpoints: CheckpointSettings | None) -> RuntimeSettings:
    """What the operators of a job have to know of its configuration. `checkpoints`: None when it takes none."""
    incremental = options.read(configuration, options.INCREMENTAL)
    return RuntimeSettings(
        batch_size=options.read(configuration, options.NETWORK_BATCH_SIZE),
        credits_per_channel=options.read(configuration, options.NETWORK_CREDITS),
        max_batch_bytes=options.read(configuration, options.NETWORK_MAX_BATCH_BYTES),
        checkpointing=checkpoints is not None,
        exactly_once=checkpoints is None or checkpoints.alignment is not Alignment.AT_LEAST_ONCE,
        trace=options.read(configuration, options.CHECKPOINT_TRACE),
        max_increments=options.read(configuration, options.CHECKPOINT_MAX_INCREMENTS) if incremental else 0,
        state_backend=options.read(configuration, options.STATE_BACKEND),
        rocksdb=RocksDBSettings.from_configuration(configuration),
        commit_retries=options.read(configuration, options.SINK_COMMIT_RETRIES),
        commit_backoff_ms=options.read(configuration, options.SINK_COMMIT_BACKOFF),
        heartbeat_interval_ms=options.read(configuration, options.HEARTBEAT_INTERVAL),
        heartbeat_timeout_ms=options.read(configuration, options.HEARTBEAT_TIMEOUT),
        leave_grace_ms=cancellation_timeout_ms(configuration),
        watermark_interval_ms=options.read(configuration, options.AUTO_WATERMARK_INTERVAL),
        object_reuse=options.read(configuration, options.OBJECT_REUSE),
        check_mutations=options.read(configuration, options.CHECK_MUTATIONS),
        job_parameters=dict(options.read(configuration, options.GLOBAL_JOB_PARAMETERS) or {}),
        class_mapping=dict(options.read(configuration, options.STATE_CLASS_MAPPING) or {}),
    )


def _storage_of(job_id: str, configuration: Configuration, leadership: Leadership | None) -> CheckpointStorage:
    """Every leader has a directory of its own: what one that is frozen in the middle of it still writes or deletes
    there, when it goes on, is no business of its successor."""
    if leadership is None:
        return checkpoint_storage(configuration, job_id)
    return checkpoint_storage(configuration, f"{job_id}-e{leadership.epoch}", leadership.check)


def checkpoint_storage(
    configuration: Configuration, job_id: str, guard: Callable[[], None] = _no_guard
) -> CheckpointStorage:
    """Files when a directory is configured, otherwise the JobManager's memory. Not opened yet. `guard`: see
    `FileSystemStorage`."""
    directory = options.read(configuration, options.CHECKPOINT_DIR)
    kind = options.read(configuration, options.CHECKPOINT_STORAGE) or ("filesystem" if directory else "jobmanager")
    codec = compression.ZLIB if options.read(configuration, options.SNAPSHOT_COMPRESSION) else compression.NONE
    limit = options.read(configuration, options.MAX_MEMORY_STATE_SIZE)
    permissions = options.read(configuration, options.STORAGE_PERMISSIONS)
    if kind == "filesystem" and not directory:
        raise ConfigurationError(
            f"{options.CHECKPOINT_STORAGE.key} is filesystem, but {options.CHECKPOINT_DIR.key} is not set: set the "
            "folder for checkpoints, or leave the storage out to keep them in the JobManager's memory"
        )
    if kind == "filesystem":
        return FileSystemStorage(directory, job_id, codec=codec, permissions=permissions, guard=guard)
    if directory:  # state in memory, and with the metadata in a file of each checkpoint
        return FileSystemStorage(
            directory, job_id, codec=codec, memory_limit=limit, permissions=permissions, guard=guard
        )
    return JobManagerStorage(limit, codec, permissions, guard)


def _restorable(job_name: str, assigner: StateAssigner, point: RestorePoint, known: Mapping[str, str]) -> RestorePoint:
    """The point itself, or, when its in-flight records cannot be moved, the nearest older one that has none."""
    try:
        assigner.assign(point)
        return point
    except UnmovableRecordsError as error:
        nearest = latest_aligned(point.root, point.checkpoint_id, known)
        if nearest is None:
            raise
        log.warning(
            "job %s: %s Checkpoint %d, which is retained beside it, has none: the job starts from that one, and what "
            "sinks have committed since then will be written again.",
            job_name,
            error,
            nearest.checkpoint_id,
        )
        return RestorePoint(nearest, point.root)


def other_checkpoints(storage: CheckpointStorage, initial: RestorePoint | None) -> list[CheckpointMetadata]:
    """Checkpoints that an earlier run of this job has left beside the one that this run has claimed. What they share
    with it must not be deleted with it, or they would look complete without being it. StorageUnavailableError when
    nobody can tell now, SnapshotError when one is of a newer version; a damaged one is of no use to anybody, whatever
    becomes of its files."""
    if initial is None or not initial.owned or initial.root != storage.root:
        return []
    found = []
    for checkpoint_id in storage.completed_checkpoints():
        if checkpoint_id != initial.checkpoint_id:
            try:
                found.append(storage.read_metadata(checkpoint_id))
            except SnapshotDamagedError as error:
                log.warning("checkpoint %s, which is left of an earlier run, cannot be read: %s", checkpoint_id, error)
    return found
