"""Checksums of stored bytes: against damage, not against forgery."""

from __future__ import annotations

from xxhash import xxh3_64_hexdigest


def checksum(data: bytes) -> str:
    """The checksum of the data: xxh3_64, as 16 hex digits."""
    return xxh3_64_hexdigest(data)
