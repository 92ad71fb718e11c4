"""Where the subtasks of a job are in Spark's shuffles: a number for each. Pure.

Rows go to a subtask by this number, and Spark puts them into a partition by its own hash of it. The numbers are chosen
so that subtask i of every vertex is in partition i: with any others, two busy subtasks might share a core while another
one is idle. Nothing depends on that but speed.
"""

from __future__ import annotations

from collections.abc import Iterable

DRIVER = 0
"""The place of what is meant for the driver."""

_SEED = 42  # Spark's, of its hash function (Murmur3, 32 bits)
_MASK = 0xFFFFFFFF


def spark_hash(value: int) -> int:
    """What Spark's `hash` says of one column with this int of 32 bits."""
    mixed = _rotated((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    h = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4  # the length in bytes
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def pick_places(tasks: Iterable[tuple[int, int]], partitions: int) -> dict[tuple[int, int], int]:
    """(vertex, subtask) -> its number, always the same for the same arguments."""
    places: dict[tuple[int, int], int] = {}
    following = DRIVER + 1
    for vertex, subtask in tasks:
        while spark_hash(following) % partitions != subtask % partitions:
            following += 1
        places[vertex, subtask] = following
        following += 1
    return places
