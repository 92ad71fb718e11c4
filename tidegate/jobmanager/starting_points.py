"""What a job is started from: what its record names, when an earlier leader has left something, else what the program
was started with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import SnapshotDamagedError, StorageUnavailableError
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.leadership.job_record import JobRecord, SnapshotPointer
from tidegate.storage.filesystem import storage_in
from tidegate.storage.job_directory import metadata_file
from tidegate.storage.location import StorageLocation, beside
from tidegate.storage.metadata import read_metadata

log = logging.getLogger("tidegate.jobmanager")


@dataclass(frozen=True)
class StartingPoints:
    initial: RestorePoint | None = None
    older: tuple[RestorePoint, ...] = ()  # retained behind it, newest first: to fall back to when it is damaged
    highest_id: CheckpointId | None = None  # that the record names: new ones have to be higher


def starting_points(job_name: str, configuration: Configuration, record: JobRecord | None) -> StartingPoints:
    """`record`: with high availability. StorageUnavailableError when something that it names cannot be read now,
    SnapshotDamagedError when all is damaged that the job could start from."""
    known = storage_options(configuration)
    if record is not None and record.stopped and record.savepoint is not None:
        loaded = read_metadata(record.savepoint.path, known)
        return StartingPoints(RestorePoint(loaded.metadata, str(loaded.root)))
    if record is not None and not record.stopped and record.checkpoint is not None:
        return _recorded(job_name, (record.checkpoint, *record.older), known)
    path = options.read(configuration, options.RECOVERY_PATH)
    if not path:
        return StartingPoints()
    loaded = read_metadata(path, known)
    claimed = options.read(configuration, options.RECOVERY_CLAIM_MODE) == "CLAIM" and not loaded.metadata.savepoint
    return StartingPoints(RestorePoint(loaded.metadata, str(loaded.root), owned=claimed))


def storage_options(configuration: Configuration) -> dict[str, str]:
    """With which the checkpoint directory is reached: paths of checkpoints are noted without secrets."""
    directory = options.read(configuration, options.CHECKPOINT_DIR)
    return dict(StorageLocation.parse(directory).options) if directory else {}


def _recorded(job_name: str, pointers: tuple[SnapshotPointer, ...], known: Mapping[str, str]) -> StartingPoints:
    """Only checkpoints that the record has named, and not all that look complete in the directories of earlier leaders:
    one of a leader that was deposed before it was recorded is no part of the job."""
    points: list[RestorePoint] = []
    damaged: list[SnapshotDamagedError] = []
    for pointer in pointers:
        try:
            points.append(_read(pointer, known, points))
        except SnapshotDamagedError as error:
            damaged.append(error)
            log.warning("job %s: checkpoint %d of an earlier leader: %s", job_name, pointer.checkpoint_id, error)
    if not points:
        raise damaged[0]
    newest, initial = pointers[0].checkpoint_id, points[0]
    if initial.checkpoint_id != newest:
        log.warning(
            "job %s: checkpoint %d is damaged (%s); falling back to checkpoint %d: what was read since then is read "
            "again, so sinks that have committed since then get those records twice, unless they write by key",
            job_name,
            newest,
            damaged[0],
            initial.checkpoint_id,
        )
    return StartingPoints(initial, tuple(points[1:]), newest)


def _read(pointer: SnapshotPointer, known: Mapping[str, str], newer: list[RestorePoint]) -> RestorePoint:
    """`newer`: those that have been read already."""
    directory = beside(pointer.path, known).parent()
    storage, n = storage_in(directory), pointer.checkpoint_id
    try:
        return RestorePoint(storage.read_metadata(n), str(directory), owned=True)
    except StorageUnavailableError as error:
        # Where a newer one was read the disk is there. A directory that is missing beside it was deleted.
        disk_is_there = any(beside(point.root, known).parent() == directory.parent() for point in newer)
        if disk_is_there and storage.files().size(metadata_file(n)) is None:
            raise SnapshotDamagedError(str(error)) from error
        raise
