"""Checkpoint storage in the JobManager's memory: state travels inside the handles and is gone with the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.common.errors import SnapshotError
from tidegate.common.ids import CheckpointId
from tidegate.storage import compression
from tidegate.storage.cleanup import Deletion
from tidegate.storage.files import OWNER
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.job_directory import checkpoint_of_directory
from tidegate.storage.reader import InlineStateSource
from tidegate.storage.worker_storage import JobManagerWorkerStorage, WorkerStorage
from tidegate.storage.writers import DEFAULT_MEMORY_LIMIT

NOT_ADDRESSABLE = "<in the JobManager's memory>"


class JobManagerStorage:
    """The same calls as `FileSystemStorage`. `max_state_size`: bytes per task and checkpoint. `guard`: see there."""

    root = ""

    def __init__(
        self,
        max_state_size: int = DEFAULT_MEMORY_LIMIT,
        codec: str = compression.NONE,
        permissions: str = OWNER,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self._guard = guard
        self._max_state_size = max_state_size
        self._codec = codec
        self._permissions = permissions  # of savepoints
        self._metadata: dict[CheckpointId, CheckpointMetadata] = {}  # bounded by the number of retained checkpoints

    @property
    def options(self) -> Mapping[str, str]:
        return {}

    def open(self, now_ms: float) -> None: ...

    def close(self) -> None: ...

    def check_owned(self) -> None:
        self._guard()

    def worker_storage(self) -> WorkerStorage:
        return JobManagerWorkerStorage(self._max_state_size, codec=self._codec, permissions=self._permissions)

    def source(self) -> InlineStateSource:
        return InlineStateSource()

    def write_metadata(self, metadata: CheckpointMetadata) -> str:
        self.check_owned()
        self._metadata[metadata.checkpoint_id] = metadata
        return NOT_ADDRESSABLE

    def read_metadata(self, checkpoint_id: CheckpointId) -> CheckpointMetadata:
        metadata = self._metadata.get(checkpoint_id)
        if metadata is None:
            raise SnapshotError(f"checkpoint {checkpoint_id} is not in the JobManager's memory")
        return metadata

    def completed_checkpoints(self) -> list[CheckpointId]:
        return sorted(self._metadata)

    def highest_checkpoint(self) -> CheckpointId:
        return max(self._metadata, default=CheckpointId(0))

    def delete(self, deletion: Deletion) -> list[str]:
        for directory in deletion.directories:
            checkpoint_id = checkpoint_of_directory(directory)
            if checkpoint_id is not None:
                self._metadata.pop(checkpoint_id, None)
        return []

    def delete_orphans(self) -> list[str]:
        return []
