"""How much whoever looks at keyed state from outside may read, so that a look is never a pause of the job."""

from __future__ import annotations

from tidegate.common.errors import TidegateError
from tidegate.storage.handles import KeyedStateInfo

MAX_PARTS = 10_000
"""Elements of a list, entries of a map or windows of a key that one read takes."""

MAX_ENTRIES = 200_000
"""Entries, elements of lists and entries of maps that all lookups of one message read, also in vain: 10 to 100 ms."""

MAX_BYTES = 4 << 20
"""Of values that all lookups of one message read."""


class TooLargeToReadError(TidegateError):
    """An entry, or what has to be looked at to find it, is larger than a read may be."""


class BudgetSpentError(TooLargeToReadError):
    """All that was read so far with one budget is too much."""


class ReadBudget:
    """What all lookups that share it may read together. Each table takes from it what it looks at, before or while it
    does; what one entry holds may go over it."""

    def __init__(self, entries: int = MAX_ENTRIES, size: int = MAX_BYTES) -> None:
        self._max_entries = entries
        self._max_size = size
        self.entries = 0  # taken so far
        self.size = 0  # likewise, bytes

    @property
    def untouched(self) -> bool:
        return not self.entries and not self.size

    def take(self, info: KeyedStateInfo, entries: int, size: int = 0) -> None:
        """Raises BudgetSpentError."""
        self.entries += entries
        self.size += size
        if self.entries > self._max_entries:
            self._spent(info, f"{self._max_entries:,} entries and elements")
        if self.size > self._max_size:
            self._spent(info, f"{self._max_size >> 20} MiB")

    def _spent(self, info: KeyedStateInfo, what: str) -> None:
        raise BudgetSpentError(
            f"what is asked of state '{info.name}' takes a look at more than {what}, which is the most that is read at "
            "once: ask for fewer keys or for one window, or take a savepoint and read the state as a table"
        )


def check_parts(info: KeyedStateInfo, count: int) -> None:
    if count > MAX_PARTS:
        what = {"list": "elements", "map": "entries"}.get(info.kind, "windows")
        raise TooLargeToReadError(
            f"what state '{info.name}' has for this key is more than {MAX_PARTS:,} {what}, which is the most that is "
            "read at once: take a savepoint and read the state as a table"
        )
