"""A source of state for one look at a checkpoint, which fetches only so much."""

from __future__ import annotations

from tidegate.common import options
from tidegate.common.config_options import format_memory
from tidegate.state.read_budget import TooLargeToReadError
from tidegate.storage.handles import StateHandle, handle_size
from tidegate.storage.reader import StateSource


class BoundedSource:
    """`storage.reader.StateSource` of another one. What is compressed counts as it is when it is read."""

    def __init__(self, source: StateSource, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._fetched = 0

    def read(self, handle: StateHandle) -> bytes:
        """Raises TooLargeToReadError, beside what the source raises."""
        size = handle_size(handle)
        self.expect(self._fetched + size)
        data = self._source.read(handle)
        self._fetched += max(size, len(data))
        self.expect(self._fetched)
        return data

    def expect(self, size: int) -> None:
        """Raises TooLargeToReadError when so many bytes are too many, before any is read."""
        if size > self._limit:
            raise TooLargeToReadError(
                f"this look at the committed state takes more than {format_memory(self._limit)} of the checkpoint's "
                f"files, which is the most that one look reads ({options.COMMITTED_MAX_READ.key}): ask for fewer keys, "
                "ask the job itself (level live), set it higher, or read the state as a table"
            )
