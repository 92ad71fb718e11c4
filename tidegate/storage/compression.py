"""Compression of state in checkpoints. The handle says how its bytes are packed, so a job reads any snapshot, whatever
its own setting."""

from __future__ import annotations

import zlib

from tidegate.common.errors import SnapshotDamagedError, SnapshotError

NONE = ""
ZLIB = "zlib"

_LEVEL = 1  # pickled state shrinks by a third to a half at this level; higher ones cost several times the time


def compress(data: bytes, codec: str) -> bytes:
    return zlib.compress(data, _LEVEL) if codec == ZLIB else data


def decompress(data: bytes, codec: str) -> bytes:
    """The inverse. The checksum of `data` has been verified before."""
    if codec == NONE:
        return data
    if codec != ZLIB:
        raise SnapshotError(
            f"the state is compressed with '{codec}', which this version of Tidegate does not know; use a newer one"
        )
    try:
        return zlib.decompress(data)
    except zlib.error as error:
        raise SnapshotDamagedError(f"compressed state cannot be unpacked: {error}; use another checkpoint") from error
