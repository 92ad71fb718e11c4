"""What crashed attempts and aborted checkpoints have left in a job's checkpoint directory."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tidegate.common.ids import CheckpointId
from tidegate.storage.cleanup import Deletion, checkpoint_files
from tidegate.storage.files import UNFINISHED
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.job_directory import METADATA_NAME, SHARED, checkpoint_directory, checkpoint_of_directory
from tidegate.storage.metadata import LateMetadataError


@dataclass(frozen=True)
class Orphans:
    deletion: Deletion
    bytes: int


def find_orphans(storage: FileSystemStorage) -> Orphans:
    """Only while no task of the job runs. SnapshotError when a checkpoint's metadata cannot be read: then nobody knows
    which files are needed."""
    files = storage.files()
    completed: list[CheckpointId] = []
    referenced: set[str] = set()
    for checkpoint_id in storage.completed_checkpoints():
        try:
            metadata = storage.read_metadata(checkpoint_id)
        except LateMetadataError:  # its folder is one of no checkpoint
            continue
        completed.append(checkpoint_id)
        referenced |= checkpoint_files(metadata)
        referenced |= {f"{checkpoint_directory(checkpoint_id)}/{name}" for name in (METADATA_NAME, metadata.witness)}
    left: list[str] = [f"{SHARED}/{name}" for name in files.names(SHARED)]
    directories = []
    for name in files.names(""):
        checkpoint_id_or_none = checkpoint_of_directory(name)
        if checkpoint_id_or_none is None:
            continue
        inside = [f"{name}/{file}" for file in files.names(name)]
        if checkpoint_id_or_none in completed or any(path in referenced for path in inside):
            left += inside
        else:
            directories.append(name)
    orphans = sorted({path for path in left if path not in referenced} | set(_unfinished(storage, directories)))
    sizes = [files.size(path) or 0 for path in orphans]
    sizes += [files.size(f"{d}/{name}") or 0 for d in directories for name in files.names(d)]
    return Orphans(Deletion(files=orphans, directories=directories), sum(sizes))


def _unfinished(storage: FileSystemStorage, directories: list[str]) -> list[str]:
    """Files that were being written when their process died; object stores keep none."""
    root = storage.root
    if "://" in root:
        return []
    found = []
    for folder, _, names in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative.split(os.sep)[0] not in directories:
            found += [os.path.normpath(os.path.join(relative, name)) for name in names if UNFINISHED in name]
    return found
