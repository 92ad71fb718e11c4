"""The windows themselves, and their binary form.

Windows are tuples underneath: they are part of the key of every window's state, and a tuple is hashed
and compared without a Python call.
"""

from __future__ import annotations

import abc
import struct
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tidegate.contracts.window.contracts import MergingWindowAssigner

MAX_TIMESTAMP = 2**63 - 1
"""Of windows that no watermark but the last one passes."""


class Window(abc.ABC):
    """A finite group of elements. Subclasses of your own are part of state keys: make them frozen dataclasses, or named
    tuples of plain values."""

    __slots__ = ()

    @abc.abstractmethod
    def max_timestamp(self) -> int:
        """The largest timestamp that still belongs to the window; its results carry it."""


class _Interval(NamedTuple):
    start: int
    end: int


class TimeWindow(_Interval, Window):
    """From `start` (inclusive) to `end` (exclusive), ms since the epoch. Ordered by start, then end."""

    __slots__ = ()

    def max_timestamp(self) -> int:
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the windows overlap or touch, so that sessions are merged."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window around both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """The start of the window of the given size that holds the timestamp; windows start at `offset` modulo size."""
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]) -> None:
        """Call back for every group of two or more different windows that overlap or touch."""
        group: list[TimeWindow] = []
        cover: TimeWindow | None = None
        for window in sorted(set(windows)):
            if cover is not None and cover.intersects(window):
                cover = cover.cover(window)
                group.append(window)
                continue
            if cover is not None and len(group) > 1:
                callback.merge(group, cover)
            group, cover = [window], window
        if cover is not None and len(group) > 1:
            callback.merge(group, cover)

    def __repr__(self) -> str:
        return f"TimeWindow(start={self.start}, end={self.end})"


class _Number(NamedTuple):
    id: int


class CountWindow(_Number, Window):
    """A window of a number of elements, known by its number."""

    __slots__ = ()

    def max_timestamp(self) -> int:
        return MAX_TIMESTAMP

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class _Nothing(NamedTuple):
    pass


class GlobalWindow(_Nothing, Window):
    """The one window that holds all elements of a key."""

    __slots__ = ()

    @staticmethod
    def get() -> GlobalWindow:
        return GlobalWindow()

    def max_timestamp(self) -> int:
        return MAX_TIMESTAMP

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "GlobalWindow"


# ---------------------------------------------------------------- binary form


class TimeWindowSerializer:
    """Writes a window as its start and end, 8 bytes each, big-endian."""

    def serialize(self, element: TimeWindow, stream: IO[bytes]) -> None:
        stream.write(struct.pack(">qq", element.start, element.end))

    def deserialize(self, stream: IO[bytes]) -> TimeWindow:
        return TimeWindow(*struct.unpack(">qq", stream.read(16)))


class CountWindowSerializer:
    """Writes a window as its id, 8 bytes, big-endian."""

    def serialize(self, element: CountWindow, stream: IO[bytes]) -> None:
        stream.write(struct.pack(">q", element.id))

    def deserialize(self, stream: IO[bytes]) -> CountWindow:
        return CountWindow(*struct.unpack(">q", stream.read(8)))


class GlobalWindowSerializer:
    """Writes the only global window as one zero byte."""

    def serialize(self, element: GlobalWindow, stream: IO[bytes]) -> None:
        stream.write(b"\0")

    def deserialize(self, stream: IO[bytes]) -> GlobalWindow:
        stream.read(1)
        return GlobalWindow.get()
