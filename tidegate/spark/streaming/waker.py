"""Wakes a thread that polls sockets, from any other thread."""

from __future__ import annotations

import contextlib
import os


class Waker:
    """A pipe whose reading end is registered with a poller."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        """Any thread; harmless when closed. A full pipe wakes as well."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._read, 4096)) == 4096:
                pass

    def close(self) -> None:
        for fd in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._read = self._write = -1
