"""What flows through a channel besides record batches: control elements, in order with the records."""

from __future__ import annotations

import enum

import msgspec

from tidegate.common.ids import CheckpointId

MAX_WATERMARK = 2**63 - 1
MIN_WATERMARK = -(2**63)


class Alignment(enum.Enum):
    """How a barrier treats the records before it."""

    AT_LEAST_ONCE = "at-least-once"  # never blocks; records after a barrier may be in the snapshot
    ALIGNED = "aligned"  # blocks the channels whose barrier has come
    UNALIGNED = "unaligned"  # overtakes buffered records, which become part of the snapshot
    ALIGNED_WITH_TIMEOUT = "aligned-with-timeout"  # ALIGNED until `timeout_ms` has passed, then UNALIGNED


class Watermark(msgspec.Struct, frozen=True, tag=True):
    """No record with a timestamp at or below this one is expected any more on this channel."""

    timestamp: int


class WatermarkStatus(msgspec.Struct, frozen=True, tag=True):
    """The channel is idle (left out of the minimum) or active again."""

    idle: bool


class CheckpointBarrier(msgspec.Struct, frozen=True, tag=True):
    """Separates the records of checkpoint n from those of n+1."""

    checkpoint_id: CheckpointId
    timestamp: int  # wall clock of the trigger, ms
    alignment: Alignment = Alignment.ALIGNED
    timeout_ms: int = 0  # only for ALIGNED_WITH_TIMEOUT
    savepoint: bool = False  # full and self-contained snapshot wanted
    target: str = ""  # savepoints: URI of the folder that gets it, in the savepoint format; "": as a checkpoint
    stop: bool = False  # the job stops with it: nothing is emitted behind this barrier until its fate is known


class EndOfData(msgspec.Struct, frozen=True, tag=True):
    """No more records on this channel. Barriers may still follow, until the whole job ends: that is how checkpoints
    go on, and a last one is taken, when some tasks have finished."""

    drained: bool = False  # the sources were told to stop: there would have been more


ControlElement = Watermark | WatermarkStatus | CheckpointBarrier | EndOfData

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ControlElement)
encode_control = _encoder.encode
decode_control = _decoder.decode
