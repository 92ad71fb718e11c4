"""Bytes on the data plane: one multipart message (header, payload, large buffers of the records) per element.

The header is a fixed struct. A payload is unpickled only for DATA frames, and only by a transport whose peers have
authenticated with the job's keys.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidegate.common.errors import TidegateError
from tidegate.common.ids import AttemptNumber, ChannelAddress, EdgeId, SlotIndex, SubtaskIndex

# Besides the kinds of `network.serialization`; no payload. Credits for a channel, sent against its direction.
CREDIT = 4

_HEADER = struct.Struct("<BIHQHHHIH")

Buffer = bytes | bytearray | memoryview


class FrameError(TidegateError):
    """What another slot has sent is no frame, or belongs to a channel that this slot does not have."""


class Frame(NamedTuple):
    kind: int
    attempt: AttemptNumber
    sender: SlotIndex
    sequence: int  # counts the frames from one slot to another, from 0: a gap means that messages were lost
    address: ChannelAddress
    amount: int  # of records, or of credits
    payload: Buffer
    cost: int = 1  # credits that a batch cost its sender
    buffers: Sequence[Buffer] = ()  # that the payload, a pickle, refers to

    def detached(self) -> Frame:
        """With copies of the buffers, for a transport within one process: they belong to the sender's objects."""
        return self._replace(buffers=[bytearray(b) for b in self.buffers]) if self.buffers else self


def encode_header(frame: Frame) -> bytes:
    return _HEADER.pack(
        frame.kind, frame.attempt, frame.sender, frame.sequence, *frame.address, frame.amount, frame.cost
    )


def decode(header: Buffer, payload: Buffer, buffers: Sequence[Buffer] = ()) -> Frame:
    """Raises FrameError for a header of another size; its numbers may name anything."""
    if len(header) != _HEADER.size:
        raise FrameError(f"a frame has a header of {len(header)} bytes, not of {_HEADER.size}")
    kind, attempt, sender, sequence, edge, up, down, count, cost = _HEADER.unpack(header)
    address = ChannelAddress(EdgeId(edge), SubtaskIndex(up), SubtaskIndex(down))
    return Frame(kind, AttemptNumber(attempt), SlotIndex(sender), sequence, address, count, payload, cost, buffers)
