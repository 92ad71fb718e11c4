"""Coroutines on a clock that is not real: those of test functions pause with `await Pause(ms)` instead of asyncio.

`Coroutines` runs any number of them for an in-process host, in the order of their clock times, without threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Generator
from typing import Any

Done = Callable[[Any, BaseException | None], None]


class Pause:
    """`await Pause(10)`: go on 10 ms later."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __await__(self) -> Generator[float, None, None]:
        yield self.ms


class Coroutines:
    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Generator[Any, None, Any], Done]] = []  # heap by time
        self._started = 0
        self.most = 0  # that were under way at once

    def start(self, call: Callable[[], Awaitable[Any]], done: Done, now_ms: float) -> Callable[[], None]:
        self._started += 1
        entry = (now_ms, self._started, call().__await__(), done)
        heapq.heappush(self._waiting, entry)
        self.most = max(self.most, len(self._waiting))

        def cancel() -> None:
            self._waiting = [e for e in self._waiting if e[1] != entry[1]]
            heapq.heapify(self._waiting)

        return cancel

    def next_deadline(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    def run(self, now_ms: float) -> bool:
        """Go on with all that are due. False: none was."""
        worked = False
        while self._waiting and self._waiting[0][0] <= now_ms:
            worked = True
            _, number, coroutine, done = heapq.heappop(self._waiting)
            try:
                pause = coroutine.send(None)
            except StopIteration as stop:
                done(stop.value, None)
            except Exception as error:
                done(None, error)
            else:
                heapq.heappush(self._waiting, (now_ms + pause, number, coroutine, done))
        return worked


def run_to_end(call: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a coroutine, its pauses left out."""
    coroutine: Any = call().__await__()
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value
