"""What the JobManager needs of a checkpoint storage; implemented by `FileSystemStorage` and `JobManagerStorage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tidegate.common.ids import CheckpointId
from tidegate.storage.cleanup import Deletion
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.reader import StateSource
from tidegate.storage.worker_storage import WorkerStorage


class CheckpointStorage(Protocol):
    """`open` first, `close` last; see `FileSystemStorage` for the contract of each call."""

    @property
    def root(self) -> str: ...

    @property
    def options(self) -> Mapping[str, str]: ...

    def open(self, now_ms: float) -> None: ...

    def close(self) -> None: ...

    def check_owned(self) -> None: ...

    def worker_storage(self) -> WorkerStorage: ...

    def source(self) -> StateSource: ...

    def write_metadata(self, metadata: CheckpointMetadata) -> str: ...

    def read_metadata(self, checkpoint_id: CheckpointId) -> CheckpointMetadata: ...

    def completed_checkpoints(self) -> list[CheckpointId]: ...

    def highest_checkpoint(self) -> CheckpointId: ...

    def delete(self, deletion: Deletion) -> list[str]: ...

    def delete_orphans(self) -> list[str]: ...
