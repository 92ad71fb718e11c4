"""The record of a lease in its cell."""

from __future__ import annotations

import msgspec

from tidegate.common.decoding import UNREADABLE
from tidegate.storage.leases.cells import Cell
from tidegate.storage.leases.lease import (
    Answer,
    Found,
    Instruction,
    LeaseRecord,
    Put,
    Read,
    Refused,
    Stored,
    Unanswered,
    Written,
)


def answer(cell: Cell, instruction: Instruction) -> Answer:
    """Carry it out. Never raises."""
    try:
        match instruction:
            case Read():
                content = cell.read()
                return Found(None if content is None else stored(content.data, content.version))
            case Put(record, expected):
                version = cell.put(msgspec.json.encode(record), expected)
                return Refused() if version is None else Written(version)
    except Exception as error:
        return Unanswered(f"{type(error).__name__}: {error}")


def stored(data: bytes, version: str) -> Stored:
    try:
        return Stored(msgspec.json.decode(data, type=LeaseRecord), version)
    except UNREADABLE:
        return Stored(None, version)
