"""The savepoint at the end of a batch job, on the driver's side: its folder, its metadata, what does not belong."""

from __future__ import annotations

import contextlib

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, TidegateError, check_internal
from tidegate.common.ids import AttemptNumber, SubtaskIndex, VertexId
from tidegate.fault_tolerance.barriers.pending_checkpoint import PendingCheckpoint
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind, CheckpointRequest
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.starting_points import storage_options
from tidegate.spark.batch.plan import SavepointPlan
from tidegate.spark.batch.report import JobReport
from tidegate.spark.batch.task import SAVEPOINT_ID
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.storage.files import Files, check_writable, open_files
from tidegate.storage.handles import CheckpointMetadata, FileRange, TaskSnapshot
from tidegate.storage.location import beside


def planned_savepoint(configuration: Configuration, now_ms: float) -> SavepointPlan | None:
    """None when none was asked for. Refuses a folder that cannot be written to or holds anything."""
    path: str | None = options.read(configuration, options.BATCH_SAVEPOINT_PATH)
    if not path:
        return None
    permissions = options.read(configuration, options.STORAGE_PERMISSIONS)
    location = beside(path, storage_options(configuration)).with_permissions(permissions)
    files = open_files(location)
    try:
        occupied = files.names("")
        check_writable(files)
    except TidegateError as error:
        raise ConfigurationError(f"{options.BATCH_SAVEPOINT_PATH.key}: {error.__cause__ or error}") from error
    if occupied:
        raise ConfigurationError(
            f"{options.BATCH_SAVEPOINT_PATH.key}: {files.describe('')} is not empty; name a folder that does not exist "
            "yet, the savepoint is written right into it"
        )
    return SavepointPlan(str(location), int(now_ms), permissions, dict(location.options))


def complete_savepoint(plan: SavepointPlan, graph: JobGraph, report: JobReport) -> str:
    """Write the metadata, which makes it a savepoint, when all is there and nothing else is. Returns its path."""
    files = open_files(plan.location)
    metadata = _metadata(plan, graph, report)
    delete_strays(files, metadata)
    write_savepoint_metadata(files, metadata)
    return plan.target


def discard_savepoint(plan: SavepointPlan) -> None:
    """Of a job that failed. Best effort."""
    with contextlib.suppress(Exception):
        open_files(plan.location).delete_directory("")


def _metadata(plan: SavepointPlan, graph: JobGraph, report: JobReport) -> CheckpointMetadata:
    request = CheckpointRequest(CheckpointKind.SAVEPOINT, target=plan.target)
    pending = PendingCheckpoint(SAVEPOINT_ID, request, AttemptNumber(0), graph, plan.timestamp, 0.0)
    for snapshot in report.snapshots():
        pending.acknowledge(snapshot)
    for vertex, subtask in graph.all_tasks():
        if (vertex, subtask) not in pending.snapshots:  # a subtask that Spark had no partition for
            check_internal((int(vertex), int(subtask)) not in report.tasks, f"task {vertex}, {subtask} wrote no state")
            pending.acknowledge(_empty(vertex, subtask))
    return pending.metadata()


def _empty(vertex: VertexId, subtask: SubtaskIndex) -> TaskSnapshot:
    return TaskSnapshot(vertex=vertex, subtask=subtask, operators=[])


def delete_strays(files: Files, metadata: CheckpointMetadata) -> None:
    """Files of attempts that do not count: a reader of the tables would take them for state."""
    needed = set()
    for operator in metadata.operators:
        for snapshot in operator.subtasks:
            handles = [state.handle for state in snapshot.lists]
            handles += list(snapshot.keyed.handles()) if snapshot.keyed is not None else []
            needed |= {handle.path for handle in handles if isinstance(handle, FileRange)}
    for folder in files.names(""):
        for table in files.names(folder):
            for name in files.names(f"{folder}/{table}"):
                path = f"{folder}/{table}/{name}"
                if path not in needed:
                    files.delete_file(path)
