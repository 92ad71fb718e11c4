"""A clock that moves only when it is told to."""

from __future__ import annotations

EPOCH = 1_000_000.0
"""What the clock of an in-process job shows when the job starts, in milliseconds since the epoch."""


class ManualClock:
    def __init__(self) -> None:
        self.now = EPOCH

    def now_ms(self) -> float:
        return self.now
