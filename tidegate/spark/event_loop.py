"""An asyncio loop on a thread of its own, for the coroutines of a slot's asynchronous functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

_STOP_S = 1.0


class EventLoop:
    """Started by the first coroutine. `run` and `stop` are called from the mailbox thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(
        self, call: Callable[[], Awaitable[Any]], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        """Await `call()`; then call `done(result, error)` on the loop's thread. Returns what cancels it."""

        async def job() -> None:
            result, error = None, None
            try:
                result = await call()
            except BaseException as failure:  # also sys.exit() in user code, which would end the loop
                error = failure
            done(result, error)

        future = asyncio.run_coroutine_threadsafe(job(), self._started())

        def cancel() -> None:
            future.cancel()

        return cancel

    def stop(self) -> None:
        """What is still running is cancelled; what does not react is left to the daemon thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = self._thread = None
        loop.call_soon_threadsafe(_cancel_all_and_stop, loop)
        thread.join(_STOP_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="tidegate-async", daemon=True)
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _cancel_all_and_stop(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_later(0.01, loop.stop)  # after they have seen it
