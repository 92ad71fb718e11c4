"""The completed checkpoints of a job, newest last."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.common.errors import check_internal
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.storage.handles import CheckpointMetadata


@dataclass(frozen=True)
class CompletedCheckpoint:
    metadata: CheckpointMetadata
    completed_ms: float

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.metadata.checkpoint_id


class CompletedCheckpointStore:
    """Keeps the latest `num_retained` checkpoints that can be read. `add`, `mark_corrupt` and `clear` change it.

    Savepoints are not in here: they belong to the user, and may be moved or deleted at any time."""

    def __init__(self, num_retained: int, root: str) -> None:
        self._num_retained = num_retained
        self._root = root
        self._checkpoints: list[CompletedCheckpoint] = []  # ids strictly increasing
        self._corrupt: set[CheckpointId] = set()  # subset of the ids in _checkpoints
        self.initial_deleted = False  # the job started from a checkpoint that it owned, and has deleted it

    @property
    def checkpoints(self) -> tuple[CompletedCheckpoint, ...]:
        return tuple(self._checkpoints)

    def add(self, checkpoint: CompletedCheckpoint) -> list[CompletedCheckpoint]:
        """Returns those that are subsumed by it and no longer kept."""
        latest = self._checkpoints[-1].checkpoint_id if self._checkpoints else 0
        check_internal(checkpoint.checkpoint_id > latest, f"checkpoint {checkpoint.checkpoint_id} after {latest}")
        self._checkpoints.append(checkpoint)
        kept = [c for c in self._checkpoints if c.checkpoint_id not in self._corrupt][-self._num_retained :]
        dropped = [c for c in self._checkpoints if c not in kept]
        self._checkpoints = kept
        self._corrupt.clear()
        return dropped

    def latest_restorable(self) -> RestorePoint | None:
        for checkpoint in reversed(self._checkpoints):
            if checkpoint.checkpoint_id not in self._corrupt:
                return RestorePoint(checkpoint.metadata, self._root, owned=True)
        return None

    def mark_corrupt(self, checkpoint_id: CheckpointId) -> None:
        """It stays until a newer one is complete, or the job ends, but is never restored again."""
        if self.holds(checkpoint_id):
            self._corrupt.add(checkpoint_id)

    def holds(self, checkpoint_id: CheckpointId) -> bool:
        return any(c.checkpoint_id == checkpoint_id for c in self._checkpoints)

    def clear(self) -> list[CompletedCheckpoint]:
        dropped, self._checkpoints = self._checkpoints, []
        self._corrupt.clear()
        return dropped

    def check_invariants(self) -> None:
        ids = [c.checkpoint_id for c in self._checkpoints]
        check_internal(ids == sorted(set(ids)), f"completed checkpoints out of order: {ids}")
        check_internal(len(ids) <= self._num_retained, f"{len(ids)} completed checkpoints are kept")
        check_internal(self._corrupt <= set(ids), "an unknown checkpoint is marked as corrupt")
