"""Control messages as bytes: msgpack, never pickle, in both directions.

The first message of each side (`Register`, `Deploy`) carries the version of the protocol. Bytes that are no message, or
the first message of another version, are a ProtocolError for the reader, which ends the attempt and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from tidegate.common.errors import TidegateError
from tidegate.common.texts import all_encodable, bounded
from tidegate.protocol.messages import (
    PROTOCOL_VERSION,
    Deploy,
    MasterToSlot,
    Message,
    Register,
    SlotToMaster,
)

T = TypeVar("T")
_FIRST = (Register, Deploy)
_FIRST_NAMES = [kind.__name__ for kind in _FIRST]


class ProtocolError(TidegateError):
    """What arrived is not a message that this version understands."""


class OtherVersionError(ProtocolError):
    """The other side speaks another version of the protocol: trying again does not help."""


class _AnyFirst(msgspec.Struct):
    """What the first message of any version has; before there were versions it had none."""

    type: str
    protocol: int = 0


_encode = msgspec.msgpack.Encoder().encode
_from_slot: msgspec.msgpack.Decoder[SlotToMaster] = msgspec.msgpack.Decoder(SlotToMaster)
_from_master: msgspec.msgpack.Decoder[MasterToSlot] = msgspec.msgpack.Decoder(MasterToSlot)
_any_first = msgspec.msgpack.Decoder(_AnyFirst)


def encode(message: Message) -> bytes:
    """Whatever texts the message holds. Raises OverflowError for a number of more than 64 bits."""
    try:
        return _encode(message)
    except UnicodeEncodeError:  # a text of the user that UTF-8 cannot say
        return _encode(all_encodable(msgspec.to_builtins(message, builtin_types=(bytes,))))


def decode_from_slot(payload: bytes) -> SlotToMaster:
    """Raises ProtocolError, whatever the bytes are."""
    return _decode(_from_slot.decode, payload)


def decode_from_master(payload: bytes) -> MasterToSlot:
    """Raises ProtocolError, whatever the bytes are."""
    return _decode(_from_master.decode, payload)


def _decode(decode: Callable[[bytes], T], payload: bytes) -> T:
    try:
        message = decode(payload)
    except Exception as error:  # also RecursionError: these bytes may be anything
        _check_version(payload)
        what = f"{type(error).__name__}: {bounded(str(error), 500)}"
        raise ProtocolError(f"a control message of {len(payload):,} bytes cannot be read ({what})") from error
    if isinstance(message, _FIRST):
        _check_version(payload)
    return message


def _check_version(payload: bytes) -> None:
    """Raises OtherVersionError for a first message of another version, which may have other fields than ours."""
    try:
        first = _any_first.decode(payload)
    except Exception:
        return
    if first.type in _FIRST_NAMES and first.protocol != PROTOCOL_VERSION:
        raise OtherVersionError(
            f"the other side speaks version {first.protocol} of the control protocol, this one version "
            f"{PROTOCOL_VERSION}: driver and workers need the same version of Tidegate"
        )
