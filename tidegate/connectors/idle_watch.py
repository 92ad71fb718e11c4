"""Waits on a thread of its own until there is something to read, and wakes the task that reads it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

LOOK_SECONDS = 0.1  # the longest that one look may take; closing waits for it


class IdleWatch:
    """`begin` after an empty read: `look` is called again and again until it gives something that is not None, or
    raises; then `wake` is called, once, and `take` gives what was found. It comes before all that is read afterwards.

    Where nobody else may use what `look` looks at meanwhile, the mailbox uses `apart`."""

    def __init__(self, look: Callable[[], Any], wake: Callable[[], None], name: str) -> None:
        self._look = look
        self._wake = wake
        self._name = name  # of the thread
        self.begun = False  # of the mailbox: from `begin` until `take` gave something
        self._wanted = threading.Semaphore(0)
        self._outside = threading.Event()  # the thread does not look
        self._outside.set()
        self._aside = False  # it is asked not to
        self._found: deque[Any] = deque()  # at most one: what was found, or was raised
        self._ended = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self.begun = True
        self._outside.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._wanted.release()

    def take(self) -> list[Any]:
        """What was found, if anything was. Raises what `look` has raised."""
        if not self._outside.is_set() or not self._found:
            return []
        found = self._found.popleft()
        self.begun = False
        if isinstance(found, BaseException):
            raise found
        return [found]

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Nobody looks in this block; waits for one look of the thread at the most."""
        self._aside = True
        self._outside.wait()
        self._aside = False
        try:
            yield
        finally:
            if self.begun and not self._found:
                self.begin()

    def end(self) -> None:
        """Before what is looked at is closed."""
        self._ended = True
        self._wanted.release()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            found: Any = None
            while found is None and not self._ended and not self._aside:
                try:
                    found = self._look()
                except BaseException as error:
                    found = error
            if found is not None:
                self._found.append(found)
            self._outside.set()
            if self._ended:
                return
            if found is not None:
                self._wake()
