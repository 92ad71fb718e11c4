"""What the checkpoint coordinator asks of the JobMaster, besides instructions that go to the host as they are."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.common.ids import SlotIndex
from tidegate.jobmanager.instructions import (
    CheckpointRequestDone,
    DeleteOrphans,
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
class EverythingDurable:
    """A checkpoint that was triggered after all tasks had reached the end of their data is complete."""


Effect = (
    ToSlots
    | FailAttempt
    | EverythingDurable
    | WriteMetadata
    | DeleteState
    | DeleteOrphans
    | CheckpointRequestDone
    | Log
)
