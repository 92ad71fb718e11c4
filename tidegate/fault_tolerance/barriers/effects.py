"""What the checkpoint coordinator asks of the JobMaster, besides instructions that go to the host as they are."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.common.ids import SlotIndex
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.protocol.instructions import (
    CheckpointRequestDone,
    DeleteClaimed,
    DeleteOrphans,
    DeleteSavepoint,
    DeleteState,
    Log,
    WriteMetadata,
)
from tidegate.protocol.messages import FailureInfo, MasterToSlot


@dataclass(frozen=True)
class ToSlots:
    slots: tuple[SlotIndex, ...]
    message: MasterToSlot


@dataclass(frozen=True)
class FailAttempt:
    """More checkpoints failed in a row than the job tolerates."""

    failure: FailureInfo


@dataclass(frozen=True)
class StoppedWithSavepoint:
    """The savepoint that the job stops with is complete: commit what it holds and end. `point`: where an attempt that
    has to do so after a failure starts from."""

    request_id: int | None
    point: RestorePoint


@dataclass(frozen=True)
class ResumeAfterDrain:
    """The savepoint after a drain has failed, and the sources have ended already: the job goes on from its latest
    checkpoint."""

    failure: FailureInfo


@dataclass(frozen=True)
class EverythingDurable:
    """A checkpoint that was triggered after all tasks had reached the end of their data is complete."""


Effect = (
    ToSlots
    | FailAttempt
    | EverythingDurable
    | StoppedWithSavepoint
    | ResumeAfterDrain
    | WriteMetadata
    | DeleteSavepoint
    | DeleteState
    | DeleteOrphans
    | DeleteClaimed
    | CheckpointRequestDone
    | Log
)
