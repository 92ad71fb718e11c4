"""What a batch leaves to the driver to do when Spark has committed it, as a file says it.

The file has a checksum: what the sinks have prepared is pickled in it, and nothing is unpickled that is not what was
written.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.common.decoding import UNREADABLE
from tidegate.common.errors import TidegateError
from tidegate.common.ids import OperatorId
from tidegate.spark.micro_batch.report import TakenSplits
from tidegate.storage.checksums import checksum

Committables = list[tuple[OperatorId, bytes]]
"""By operator: the pickled list."""

_HEAD = b"tidegate prepared 1\n"
_DIGITS = 16  # of the checksum
_PICKLED = b"\x80"  # with this begins what a version before this one has written: a pickled tuple


class DamagedError(TidegateError):
    """The text says why; the caller knows of which file."""


@dataclass(frozen=True)
class Prepared:
    committables: Committables
    taken: list[TakenSplits]
    attempt: int | None = None  # of the query that has run it; None: a version before wrote this
    savepoint: str = ""  # the folder of the one that was ordered for the batch

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return _HEAD + checksum(body).encode() + body

    @staticmethod
    def decode(data: bytes) -> Prepared:
        """Raises DamagedError."""
        if data.startswith(_PICKLED):
            return _decode_older(data)
        head, body = data[: len(_HEAD) + _DIGITS], data[len(_HEAD) + _DIGITS :]
        if head != _HEAD + checksum(body).encode():
            raise DamagedError(f"its checksum does not fit its {len(data)} bytes")
        try:
            return msgspec.msgpack.decode(body, type=Prepared)
        except UNREADABLE as error:
            raise DamagedError(str(error)) from error


def _decode_older(data: bytes) -> Prepared:
    try:
        found = Prepared(*pickle.loads(data))
        return msgspec.convert(msgspec.to_builtins(found, builtin_types=(bytes,)), Prepared)
    except Exception as error:  # of a damaged pickle anything may come
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def load_committables(pairs: Committables) -> dict[OperatorId, list[Any]]:
    found: dict[OperatorId, list[Any]] = {}
    for operator_id, pickled in pairs:
        found.setdefault(operator_id, []).extend(pickle.loads(pickled))
    return found
