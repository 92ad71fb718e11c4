"""SIGTERM and SIGHUP as Ctrl-C: what is under way ends in order, its processes and files with it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Inside `with`, in the main thread: the first signal raises KeyboardInterrupt, and `by` is its name. Those after
    it do nothing, so that they do not interrupt the cleaning up. A signal that is ignored (`nohup`, the background of
    a shell) stays so. In other threads it changes nothing."""

    _held_back: ClassVar[bool] = False  # see `held_back`
    _late: ClassVar[bool] = False  # one came meanwhile

    def __init__(self) -> None:
        self.by: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    @classmethod
    @contextlib.contextmanager
    def held_back(cls) -> Iterator[None]:
        """For the few lines between which something would be lost: the KeyboardInterrupt comes when they are over. Not
        one inside the other."""
        cls._held_back = True
        try:
            yield
        finally:
            cls._held_back = False
            if cls._late:
                cls._late = False
                raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for one in _SIGNALS:
                if signal.getsignal(one) is not signal.SIG_IGN:
                    self._before[one] = signal.signal(one, self._came)
        return self

    def __exit__(self, *exception: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _came(self, number: int, frame: object) -> None:
        if self.by is None:
            self.by = signal.Signals(number).name
            if not Interrupts._held_back:
                raise KeyboardInterrupt
            Interrupts._late = True
