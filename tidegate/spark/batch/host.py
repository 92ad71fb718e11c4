"""What the operators of a batch task are given in place of a slot: a clock, helpers, mail. One thread runs it all."""

from __future__ import annotations

import queue
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tidegate.spark.event_loop import EventLoop
from tidegate.taskmanager.clock import Clock, SystemClock

_MAX_WAIT_S = 0.1


class BatchHost:
    """`run_async` runs its work at once: nothing else goes on in the task meanwhile. Coroutines overlap; what comes of
    them is put into the mail, which `wait` and `read_mail` deliver on the task's thread."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self._event_loop = EventLoop()
        # Bounded by the capacities of the asynchronous operators.
        self._mail: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result, error = work(), None
        except BaseException as failure:
            result, error = None, failure
        done(result, error)

    def run_coroutine(
        self, call: Callable[[], Awaitable[Any]], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        return self._event_loop.run(call, lambda result, error: self._mail.put(lambda: done(result, error)))

    def read_mail(self) -> None:
        while True:
            try:
                mail = self._mail.get_nowait()
            except queue.Empty:
                return
            mail()

    def wait(self, until_ms: float | None) -> None:
        """For mail, or until the time, or a moment at the most."""
        seconds = _MAX_WAIT_S
        if until_ms is not None:
            seconds = min(seconds, max(0.0, (until_ms - self.clock.now_ms()) / 1000))
        try:
            mail = self._mail.get(timeout=max(seconds, 0.0005))
        except queue.Empty:
            return
        mail()

    def sleep_until(self, until_ms: float | None) -> None:
        pause = _MAX_WAIT_S if until_ms is None else (until_ms - self.clock.now_ms()) / 1000
        time.sleep(min(_MAX_WAIT_S, max(0.0005, pause)))

    def close(self) -> None:
        self._event_loop.stop()
