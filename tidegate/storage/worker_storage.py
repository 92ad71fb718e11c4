"""What a worker needs to know of the checkpoint storage: plain data, pickled into the job's plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.storage import compression
from tidegate.storage.files import OWNER, Files, open_files
from tidegate.storage.job_directory import exclusive_file, shared_file
from tidegate.storage.location import StorageLocation, beside
from tidegate.storage.reader import FileStateSource, InlineStateSource, StateSource
from tidegate.storage.writers import (
    DEFAULT_MEMORY_LIMIT,
    DEFAULT_MIN_FILE_SIZE,
    FileTaskStateWriter,
    InlineTaskStateWriter,
    TaskStateWriter,
)


class WorkerStorage(Protocol):
    @property
    def supports_increments(self) -> bool:
        """False: every keyed snapshot should be full, since a chain would be sent again with every acknowledgement."""

    def task_writer(
        self, checkpoint_id: CheckpointId, attempt: AttemptNumber, vertex: VertexId, subtask: SubtaskIndex
    ) -> TaskStateWriter:
        """Makes no files yet; cheap."""

    def source(self, root: str = "") -> StateSource:
        """Reads handles that are relative to `root` (`SlotRestore.root`; "": this job's own directory)."""

    def savepoint_files(self, target: str) -> Files:
        """The folder of a savepoint, to write to."""


@dataclass(frozen=True)
class FileSystemWorkerStorage:
    job_directory: StorageLocation
    min_file_size: int = DEFAULT_MIN_FILE_SIZE
    supports_increments: bool = True
    codec: str = compression.NONE  # for what is written; what is read says itself

    def task_writer(
        self, checkpoint_id: CheckpointId, attempt: AttemptNumber, vertex: VertexId, subtask: SubtaskIndex
    ) -> TaskStateWriter:
        return FileTaskStateWriter(
            self._files(self.job_directory, makes_root=False),
            exclusive_file(checkpoint_id, attempt, vertex, subtask),
            shared_file(checkpoint_id, attempt, vertex, subtask),
            self.min_file_size,
            self.codec,
        )

    def source(self, root: str = "") -> StateSource:
        return (
            file_source(root, dict(self.job_directory.options))
            if root
            else FileStateSource(self._files(self.job_directory))
        )

    def savepoint_files(self, target: str) -> Files:
        location = beside(target, dict(self.job_directory.options))
        return self._files(location.with_permissions(self.job_directory.permissions or OWNER))

    def _files(self, location: StorageLocation, *, makes_root: bool = True) -> Files:
        return open_files(location, makes_root=makes_root)


@dataclass(frozen=True)
class JobManagerWorkerStorage:
    limit: int = DEFAULT_MEMORY_LIMIT
    supports_increments: bool = False
    codec: str = compression.NONE
    permissions: str = OWNER  # of savepoints

    def task_writer(
        self, checkpoint_id: CheckpointId, attempt: AttemptNumber, vertex: VertexId, subtask: SubtaskIndex
    ) -> TaskStateWriter:
        return InlineTaskStateWriter(self.limit, f"subtask {subtask} of vertex {vertex}", self.codec)

    def source(self, root: str = "") -> StateSource:
        """A job with this storage may start from a snapshot in files."""
        return file_source(root) if root else InlineStateSource()

    def savepoint_files(self, target: str) -> Files:
        return open_files(StorageLocation.parse(target).with_permissions(self.permissions))


def file_source(root: str, options: Mapping[str, str] | None = None) -> FileStateSource:
    """`options`: of the job's own storage; used when `root` is on the same kind of storage."""
    return FileStateSource(open_files(beside(root, options)))
