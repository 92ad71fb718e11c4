"""How often to tell of what fails again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

_TELL_EVERY_S = 5.0  # at first; then at doubling intervals
_FORGOTTEN_S = 60.0


class Failing:
    """One thing that is tried again and again. Make a new one when it has succeeded; what has not failed for a minute
    begins anew by itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None  # the first time
        self._last = 0.0
        self._due = 0.0

    def again(self) -> bool:
        """It has failed once more: whether that is to be told."""
        now = self._clock()
        if self._since is None or now - self._last > _FORGOTTEN_S:
            self._since = self._due = now
        self._last = now
        if now < self._due:
            return False
        self._due = now + max(_TELL_EVERY_S, now - self._since)
        return True
