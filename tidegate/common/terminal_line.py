"""The last line of the terminal, which is written again and again: whoever else writes there takes it away first."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from typing import TextIO

TAKEN_AWAY = "\r\x1b[K"
"""Written before a line, it takes the place of what is drawn there."""


class TerminalLine:
    """Thread-safe. `show` draws it, `erase` takes it away until it is drawn again. Whoever draws has
    looked whether there is a terminal (`there`)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream  # None: the standard error, as it is at that time
        self._lock = threading.Lock()
        self._shown = False

    @property
    def stream(self) -> TextIO:
        return self._stream or sys.stderr

    @property
    def there(self) -> bool:
        try:
            return self.stream.isatty()
        except (AttributeError, ValueError):  # None in a program without a console; closed
            return False

    @property
    def columns(self) -> int:
        """Of this terminal: the standard output may be a file meanwhile, or another one."""
        try:
            return os.get_terminal_size(self.stream.fileno()).columns or shutil.get_terminal_size().columns
        except (AttributeError, OSError, ValueError):
            return shutil.get_terminal_size().columns

    def begin(self) -> None: ...

    def show(self, text: str) -> None:
        with self._lock:
            self._write(f"{TAKEN_AWAY}{text}")
            self._shown = True

    def erase(self) -> None:
        with self._lock:
            if self._shown:
                self._shown = False
                self._write(TAKEN_AWAY)

    def end(self, text: str) -> None:
        """A last text, which stays."""
        with self._lock:
            self._write(f"{TAKEN_AWAY}{text}\n")
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the terminal is gone
            pass


LINE = TerminalLine()
"""Of this program."""
