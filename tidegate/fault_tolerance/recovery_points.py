"""What the next attempt starts from: the latest completed checkpoint, else the snapshot that the job was started from
or one that is retained behind it, else nothing. A point that turned out to be unreadable is refused and the one before
it is taken."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidegate.common.ids import CheckpointId
from tidegate.storage.handles import CheckpointMetadata


@dataclass(frozen=True)
class RestorePoint:
    metadata: CheckpointMetadata
    root: str  # URI of the directory that the handles' paths are relative to
    owned: bool = False  # the job may delete it when it is no longer needed, and build upon its files until then

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.metadata.checkpoint_id


class RestorableCheckpoints(Protocol):
    """The part of the completed-checkpoint store that is needed here."""

    @property
    def initial_deleted(self) -> bool: ...

    def latest_restorable(self) -> RestorePoint | None: ...

    def mark_corrupt(self, checkpoint_id: CheckpointId) -> None: ...


class Refusal(enum.Enum):
    FALL_BACK = "fall back"  # an older point will be used
    NOTHING_LEFT = "nothing left"  # there is no older one: the job must fail rather than start from nothing
    NOT_CURRENT = "not current"  # that point is not the one in use: nothing has changed


class RecoveryPoints:
    """`refuse` changes it. Never gives a point that was refused."""

    def __init__(
        self,
        initial: RestorePoint | None,
        completed: RestorableCheckpoints | None,
        older: Sequence[RestorePoint] = (),
    ) -> None:
        """`older`: what is retained behind the initial point, newest first; deleted with it."""
        self._given = [] if initial is None else [initial, *older]  # newest first, without those that were refused
        self._completed = completed

    def current(self) -> RestorePoint | None:
        latest = self._completed.latest_restorable() if self._completed is not None else None
        if latest is not None:
            return latest
        deleted = self._completed is not None and self._completed.initial_deleted
        return self._given[0] if self._given and not deleted else None

    def refuse(self, checkpoint_id: CheckpointId) -> Refusal:
        current = self.current()
        if current is None or current.checkpoint_id != checkpoint_id:
            return Refusal.NOT_CURRENT
        if self._given and current is self._given[0]:
            del self._given[0]
        elif self._completed is not None:
            self._completed.mark_corrupt(checkpoint_id)
        return Refusal.FALL_BACK if self.current() is not None else Refusal.NOTHING_LEFT
