"""The order in which a subtask reads the blocks of its input. Pure.

A recomputed task has to read exactly what it read the first time, in the same order: otherwise it would deal its
records out differently, and tasks that have read the first output already would miss some and see others twice. So the
order of blocks never depends on who was faster. Each block has a key of 64 bits::

    | 2 phase | group | producer | sequence |  32 target subtask |
    |<------------- 32 bits: order ------->|

Spark sorts by it in the JVM, and spills. The low half picks the partition (Spark's Python partitioner looks at no
more), the high half is the order within it; how its 30 bits below the phase are shared out follows from the graph.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from tidegate.common.errors import JobGraphError, TidegateError

_ORDER_BITS = 32
_PHASE_BITS = 2
_MIN_SEQUENCE_BITS = 8
_KEY = struct.Struct("!q")


class Phase(enum.IntEnum):
    """What a subtask reads first."""

    REPORT = 0  # what earlier tasks have to say to the driver; passed on
    FIRST = 1  # an input that is read wholly before the other one
    DATA = 2
    END = 3  # how far event time had come


class TooManyBlocksError(TidegateError):
    """One task has made more blocks for one place than can be numbered."""


@dataclass(frozen=True)
class OrderLayout:
    """The keys of all blocks for one consumer. `groups`: of keys, per subtask; `producers`: subtasks of all its input
    edges."""

    groups: int
    producers: int

    @property
    def sequence_bits(self) -> int:
        return _ORDER_BITS - _PHASE_BITS - _bits(self.groups) - _bits(self.producers)

    def check(self, consumer: str) -> None:
        if self.sequence_bits < _MIN_SEQUENCE_BITS:
            raise JobGraphError(
                f"'{consumer}' cannot run in BATCH mode: it reads {self.producers} subtasks in {self.groups} groups of "
                "keys each, which are more than Spark can be told to sort. Lower the parallelism of the operators "
                "before it"
            )

    def first(self, phase: Phase, group: int, producer: int) -> int:
        """The order of a producer's first block; the ones after it follow directly."""
        order = (int(phase) << _bits(self.groups)) | group
        order = (order << _bits(self.producers)) | producer
        return order << self.sequence_bits

    @property
    def max_blocks(self) -> int:
        """Of one producer in one group."""
        return 1 << self.sequence_bits


def pack_key(order: int, target: int) -> bytes:
    """As Spark reads a pair's key: signed, big-endian."""
    return _KEY.pack((order - (1 << (_ORDER_BITS - 1))) << 32 | target)


def _bits(count: int) -> int:
    """Enough to tell `count` things apart."""
    return max(count - 1, 0).bit_length()
