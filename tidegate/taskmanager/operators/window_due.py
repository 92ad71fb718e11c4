"""Which keys have a window to fire, and when: the timers of sliding windows on the heap.

A key with anything in its slices is due once, at the end of its next window. Its timer is put into the state, in the
form that `timers.TimerQueue` reads and writes, when a snapshot is taken; until then it is one place in the dict of the
keys that are due at that end. That costs a fraction of what a timer of its own does, and no work waits for the moment
at which a window ends.
"""

from __future__ import annotations

import heapq
from typing import Any

from tidegate.storage.handles import KeyedStateInfo


class DueKeys:
    """By end of the window. `first` and `fired` work one end off after the other, the earliest first."""

    def __init__(self, backend: Any, name: str) -> None:
        self._table = backend.table(KeyedStateInfo(name=name, kind="timers", namespaced=True))
        self._due: dict[int, dict[Any, None]] = {}  # end -> keys in the order in which they came
        self._ends: list[int] = []  # a heap of those in _due
        self._firing: int | None = None  # the end that is being worked off; it may be in _due again
        self._left: list[Any] = []  # its keys, in reverse order
        self._new: dict[int, list[Any]] = {}  # end -> keys that came after the last `save`; some are saved, or gone
        self._saved: dict[int, set[Any]] = {}  # end -> keys that have a timer in the state
        for key, (_, timestamp) in self._table.live_keys():
            self.add(timestamp + 1, [key])
            self._saved.setdefault(timestamp + 1, set()).add(key)
        self._new.clear()

    def add(self, end: int, keys: list[Any]) -> None:
        """These are due then; any of them may be already."""
        if end == self._firing:  # only with a clock that goes backwards
            left = set(self._left)
            keys = [key for key in keys if key not in left]
        if not keys:
            return
        there = self._due.get(end)
        if there is None:
            self._due[end] = dict.fromkeys(keys)
            heapq.heappush(self._ends, end)
        else:
            there.update(dict.fromkeys(keys))
        new = self._new.get(end)
        if new is None:
            self._new[end] = list(keys)
        else:
            new += keys

    def next_end(self) -> int | None:
        first = self._ends[0] if self._ends else None
        if self._firing is None:
            return first
        return self._firing if first is None else min(first, self._firing)

    def last_end(self) -> int | None:
        last = max(self._due, default=None)
        if self._firing is None:
            return last
        return self._firing if last is None else max(last, self._firing)

    def count(self) -> int:
        """How many keys are due at all."""
        return len(set(self._left).union(*self._due.values()))

    def first(self, up_to: int, limit: int) -> tuple[int, list[Any]] | None:
        """The earliest end whose windows have ended at `up_to`, and the first of the keys that are due then, at most
        `limit`. They stay until `fired` is called."""
        end = self.next_end()
        if end is None or end - 1 > up_to:
            return None
        if end != self._firing:
            if self._firing is not None:
                self._set_back()
            self._firing = heapq.heappop(self._ends)
            self._left = list(reversed(self._due.pop(end)))
        return end, self._left[: -limit - 1 : -1]

    def fired(self, count: int) -> bool:
        """So many of those that `first` has given are done. True: they were the last of that end."""
        end, left = self._firing, self._left
        saved = self._saved.get(end)  # type: ignore[arg-type]
        if saved:
            for key in left[-count:]:
                if key in saved:
                    saved.remove(key)
                    self._table.remove((key, (None, end - 1)))  # type: ignore[operator]
        del left[-count:]
        if left:
            return False
        self._firing = None
        if end not in self._due:
            self._new.pop(end, None)  # type: ignore[arg-type]
            self._saved.pop(end, None)  # type: ignore[arg-type]
        return True

    def clear(self) -> None:
        """Forget all; the timers in the state are the caller's business."""
        for held in (self._due, self._ends, self._left, self._new, self._saved):
            held.clear()
        self._firing = None

    def save(self) -> None:
        """Bring the state up to date; called in the synchronous part of a snapshot."""
        put = self._table.put
        for end, keys in self._new.items():
            there: Any = self._due.get(end, {})
            if end == self._firing:
                there = {*there, *self._left}
            saved = self._saved.setdefault(end, set())
            for key in keys:
                if key in there and key not in saved:
                    saved.add(key)
                    put((key, (None, end - 1)), True)
        self._new.clear()

    def _set_back(self) -> None:
        """An earlier end has come up while one was worked off: only with a clock that goes backwards."""
        end, left = self._firing, self._left
        self._firing, self._left = None, []
        self.add(end, left[::-1])  # type: ignore[arg-type]
