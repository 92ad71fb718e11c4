"""Bytes on the data plane: one multipart message (header, payload) per element.

The header is a fixed struct. A payload is unpickled only for DATA frames, and only by a transport whose peers have
authenticated with the job's keys.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidegate.common.errors import TidegateError
from tidegate.common.ids import AttemptNumber, ChannelAddress, EdgeId, SlotIndex, SubtaskIndex

# Besides the kinds of `network.serialization`; no payload. Credits for a channel, sent against its direction.
CREDIT = 4

_HEADER = struct.Struct("<BIHQHHHI")


class FrameError(TidegateError):
    """What another slot has sent is no frame, or belongs to a channel that this slot does not have."""


class Frame(NamedTuple):
    kind: int
    attempt: AttemptNumber
    sender: SlotIndex
    sequence: int  # counts the frames from one slot to another, from 0: a gap means that messages were lost
    address: ChannelAddress
    amount: int  # of records, or of credits
    payload: bytes


def encode_header(frame: Frame) -> bytes:
    return _HEADER.pack(frame.kind, frame.attempt, frame.sender, frame.sequence, *frame.address, frame.amount)


def decode(header: bytes, payload: bytes) -> Frame:
    """Raises FrameError for a header of another size; its numbers may name anything."""
    if len(header) != _HEADER.size:
        raise FrameError(f"a frame has a header of {len(header)} bytes, not of {_HEADER.size}")
    kind, attempt, sender, sequence, edge, up, down, count = _HEADER.unpack(header)
    address = ChannelAddress(EdgeId(edge), SubtaskIndex(up), SubtaskIndex(down))
    return Frame(kind, AttemptNumber(attempt), SlotIndex(sender), sequence, address, count, payload)
