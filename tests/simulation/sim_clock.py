"""Time that stands still until somebody moves it."""

from __future__ import annotations


class SimClock:
    """Implements `taskmanager.clock.Clock`."""

    def __init__(self, start_ms: float = 1_000_000.0) -> None:
        self._now = start_ms

    def now_ms(self) -> float:
        return self._now

    def advance(self, by_ms: float) -> None:
        assert by_ms >= 0
        self._now += by_ms

    def advance_to(self, time_ms: float) -> None:
        self._now = max(self._now, time_ms)
