"""What a driver that does not lead the job any more may still do."""

from __future__ import annotations

from tidegate.protocol.instructions import (
    CancelGang,
    CheckpointRequestDone,
    Instruction,
    JobEnded,
    Log,
    Send,
    StatusChanged,
)
from tidegate.protocol.messages import Leave


def without_effect(instruction: Instruction) -> bool:
    """Whether it ends what this driver has begun, or only tells its own program: nothing is written, deleted,
    triggered, started or committed because of it."""
    if isinstance(instruction, Send):
        return isinstance(instruction.message, Leave)
    return isinstance(instruction, CancelGang | CheckpointRequestDone | JobEnded | Log | StatusChanged)
