"""Time that stands still until somebody moves it."""

from __future__ import annotations

EPSILON_MS = 0.001
"""What is lost when times are converted between clocks."""


class SimClock:
    """Implements `taskmanager.clock.Clock`: the true time."""

    def __init__(self, start_ms: float = 10_000_000.0) -> None:
        self._now = start_ms

    def now_ms(self) -> float:
        return self._now

    def advance(self, by_ms: float) -> None:
        assert by_ms >= 0
        self._now += by_ms

    def advance_to(self, time_ms: float) -> None:
        self._now = max(self._now, time_ms)


class ProcessClock:
    """Of one process: as far from the true time as the wall clock of its machine was when the process started."""

    def __init__(self, clock: SimClock, offset_ms: float) -> None:
        self._clock = clock
        self._offset_ms = offset_ms

    def now_ms(self) -> float:
        return self._clock._now + self._offset_ms

    def true_ms(self, time_ms: float) -> float:
        """When it is `time_ms` by this clock."""
        return time_ms - self._offset_ms
