"""Time as the runtime sees it: passed in, so that a simulation replays."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> float:
        """Milliseconds since the epoch; never goes backwards within a process."""


class SystemClock:
    """Wall clock at start plus a monotonic clock since."""

    def __init__(self) -> None:
        self._base = time.time() * 1000.0 - time.perf_counter() * 1000.0

    def now_ms(self) -> float:
        return self._base + time.perf_counter() * 1000.0
