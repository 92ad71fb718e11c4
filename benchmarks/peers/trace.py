"""What every program of the comparison writes, and how it is read. Imported by all of them: standard library only.

A program appends lines to files of a folder, one file per process, whatever the system's own sinks are: `read <time>`
when the first record is read, `out <time> <values...>` for a result, `late <seconds>` for the age of a record behind
the exchange. A line that is written twice after a failure counts once; a wrong one is never hidden.
"""

from __future__ import annotations

import os
import time


class Trace:
    """Opened late, in the process that writes."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._file = -1
        self._pid = 0
        self._read = False

    def _write(self, text: str) -> None:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._file = os.open(f"{self.folder}/{self._pid}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, text.encode())

    def read(self) -> None:
        if not self._read:
            self._read = True
            self._write(f"read {time.time()}\n")

    def out(self, *values: int) -> None:
        self._write(f"out {time.time()} {' '.join(map(str, values))}\n")

    def late(self, seconds: float) -> None:
        self._write(f"late {seconds}\n")

    def __getstate__(self) -> dict[str, object]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.__init__(state["folder"])  # type: ignore[misc]


class Pace:
    """Lets so many records a second through, counted by the process that calls it."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._begun = 0.0
        self._seen = 0

    def wait(self) -> None:
        if self._seen == 0:
            self._begun = time.time()
        early = self._begun + self._seen / self.per_second - time.time()
        self._seen += 1
        if early > 0:
            time.sleep(early)


def lines(folder: str) -> list[list[str]]:
    found = []
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as file:
            found += [line.split() for line in file.read().splitlines() if line]
    return found
