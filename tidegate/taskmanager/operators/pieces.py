"""How many records a sink's writer is given at once.

A call of `write_batch` cannot be cut short from outside, as a loop over records can (`TimeLimit`): it is the writer's
own. So a slice is handed over in pieces, with a look at the limit after each. They have to be small, for a writer that
works record by record and becomes slow in the middle of one; and large, for a writer that has to do something once per
call. Which it is shows in what its calls take: whatever a writer does once per call is part of its quickest call ever.
Pieces that take many times as long as that one cost hardly more than the whole would.
"""

from __future__ import annotations

from tidegate.taskmanager.time_limit import LIMIT_MS

_TIMES = 25  # the quickest call: pieces cost 4 % more than the whole at the most
_SHORTEST_MS = 0.025  # a piece: a call of one has a cost of ours too, about a microsecond
_ALL = 1 << 62


class Pieces:
    """Of one writer. `note` what each call took, `size` is for the next one: one record while nothing is known, and
    everything when calls take no time that can be measured."""

    def __init__(self) -> None:
        self.size = 1
        self._quickest_ms = LIMIT_MS

    def note(self, count: int, took_ms: float) -> None:
        """A call with so many records."""
        self._quickest_ms = min(self._quickest_ms, took_ms)
        target = min(LIMIT_MS, max(_SHORTEST_MS, _TIMES * self._quickest_ms))
        self.size = _ALL if took_ms <= 0 else max(1, int(count * target / took_ms))
