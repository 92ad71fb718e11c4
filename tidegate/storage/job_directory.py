"""The one place that forms paths below a checkpoint directory::

    <dir>/<job id>/_lock            who runs the job
    <dir>/<job id>/chk-<n>/         what belongs to checkpoint n alone, `_metadata` written last
    <dir>/<job id>/chk-<n>/_run-*   on object stores, the witness of the metadata: see `FileSystemStorage`
    <dir>/<job id>/_view.json       what the job looked like when it ended, when it has left checkpoints
    <dir>/<job id>/_view.summary    what the list of jobs says of it
    <dir>/<job id>/shared/          increments of keyed state, used by several checkpoints

All paths are relative to the job directory.
"""

from __future__ import annotations

import re
import uuid

from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.storage.location import StorageLocation

METADATA_NAME = "_metadata"
WITNESS_PREFIX = "_run-"
LOCK = "_lock"
SHARED = "shared"
VIEW = "_view.json"
VIEW_SUMMARY = "_view.summary"

_CHECKPOINT_DIRECTORY = re.compile(r"chk-(\d+)")
_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def job_location(directory: StorageLocation, job_id: str) -> StorageLocation:
    if not _JOB_ID.fullmatch(job_id):
        raise ConfigurationError(
            f"the job id '{job_id}' cannot name a directory: use letters, digits, '_', '-' and '.', at most 128 of them"
        )
    return directory.child(job_id)


def checkpoint_directory(checkpoint_id: CheckpointId) -> str:
    return f"chk-{checkpoint_id}"


def checkpoint_of_directory(name: str) -> CheckpointId | None:
    """The inverse of `checkpoint_directory`; None for another name."""
    match = _CHECKPOINT_DIRECTORY.fullmatch(name)
    return CheckpointId(int(match[1])) if match else None


def metadata_file(checkpoint_id: CheckpointId) -> str:
    return f"chk-{checkpoint_id}/{METADATA_NAME}"


def new_witness() -> str:
    """The name of a file that no other run makes."""
    return f"{WITNESS_PREFIX}{uuid.uuid4().hex[:12]}"


def exclusive_file(checkpoint_id: CheckpointId, attempt: AttemptNumber, vertex: VertexId, subtask: SubtaskIndex) -> str:
    """A new name at each call: a late writer of an earlier attempt can never write into a newer one's file."""
    return f"{checkpoint_directory(checkpoint_id)}/{_task_file(attempt, vertex, subtask)}"


def shared_file(checkpoint_id: CheckpointId, attempt: AttemptNumber, vertex: VertexId, subtask: SubtaskIndex) -> str:
    """The same as `exclusive_file` for a file that several checkpoints may use."""
    return f"{SHARED}/c{checkpoint_id}-{_task_file(attempt, vertex, subtask)}"


def _task_file(attempt: AttemptNumber, vertex: VertexId, subtask: SubtaskIndex) -> str:
    return f"v{vertex}-s{subtask}-a{attempt}-{uuid.uuid4().hex[:12]}.state"
