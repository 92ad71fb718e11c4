"""The thread that ends slices of work whose time is up."""

from __future__ import annotations

import threading
import time

from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.time_limit import TimeLimit

_PERIOD_S = 0.008
_ROUNDS_BEFORE_REST = 12  # without work, until it rests
_REST_S = 1.0


class TimeKeeper:
    """Looks at a slot's `TimeLimit` every few milliseconds; a slot without work costs one look a second."""

    def __init__(self, limit: TimeLimit, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._resting = False
        self._work = threading.Event()  # there may be some
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tidegate-time", daemon=True)

    def start(self) -> None:
        self._limit.watched = True
        self._thread.start()

    def wake(self) -> None:
        """The slot has waited, and may have work now."""
        if self._resting:
            self._work.set()

    def stop(self) -> None:
        self._stopped = True
        self._work.set()

    def _run(self) -> None:
        limit, now_ms = self._limit, self._clock.now_ms
        rounds = 0
        while not self._stopped:
            time.sleep(_PERIOD_S)
            if limit.began_ms is not None:
                rounds = 0
                limit.look(now_ms())
                continue
            rounds += 1
            if rounds >= _ROUNDS_BEFORE_REST:
                self._work.clear()
                self._resting = True
                self._work.wait(_REST_S)
                self._resting = False
                rounds = 0
