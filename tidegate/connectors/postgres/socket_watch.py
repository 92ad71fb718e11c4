"""Waits for a socket on a thread of its own and wakes the task that reads it."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

_LOOK_MS = 100  # one look; closing waits for it


class SocketWatch:
    """`begin` after an empty read: `wake` is called, once, when there is something to read, or something is wrong with
    the socket, which the reader then notices itself."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.begun = False  # from `begin` until it has woken somebody
        self._socket = -1
        self._wanted = threading.Semaphore(0)
        self._ended = False
        self._thread: threading.Thread | None = None

    def begin(self, socket: int) -> None:
        if self.begun:
            return
        self.begun, self._socket = True, socket
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidegate-postgres-watch", daemon=True)
            self._thread.start()
        self._wanted.release()

    def end(self) -> None:
        """Before the socket is closed."""
        self._ended = True
        self._wanted.release()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            while not self._ended:
                if poll.poll(_LOOK_MS):
                    self.begun = False
                    self._wake()
                    break
            if self._ended:
                return
