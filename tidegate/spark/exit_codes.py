"""How Spark's Python workers of this machine have ended. Spark itself only notices that one is gone.

Our daemon (`tidegate.spark.daemon`) notes the end of every worker that did not end well in a folder that the driver has
made for it, a file per process id. Beside it lies what the process works on, which a worker of a batch job notes
itself: nobody else knows which process has which of Spark's tasks. Sessions that somebody else has made have Spark's
own daemon, and no such folder.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "TIDEGATE_EXIT_CODES"
"""Holds the folder, for the daemons that the JVM starts."""

_WORK = ".work"  # behind the process id, in the name of the file that says what it works on


def collect_here() -> None:
    """On the driver, before Spark is started on this machine. May be called twice."""
    if VARIABLE not in os.environ:
        folder = tempfile.mkdtemp(prefix="tidegate-exit-codes-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[VARIABLE] = folder


def reap(number: int, frame: Any) -> None:
    """The daemon's handler of SIGCHLD: takes in all children that have ended, and notes those that did not end well."""
    folder = os.environ.get(VARIABLE)
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if status and folder:
                with contextlib.suppress(OSError), open(os.path.join(folder, str(pid)), "w") as file:
                    file.write(str(os.waitstatus_to_exitcode(status)))


@contextlib.contextmanager
def noted_work(job: str, what: str) -> Iterator[None]:
    """In a worker: from now to the end of the block this process works for that job, and on what. One block at a time.
    The note of a process that dies in it stays."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        yield
        return
    note = Path(folder, f"{os.getpid()}{_WORK}")
    with contextlib.suppress(OSError):  # a full disk is no reason to fail
        note.write_text(f"{job}\n{what}", encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink()


def ended_badly(job: str, since: float, wait_s: float = 0.0) -> list[str]:
    """On the driver: how workers of this machine have ended since then (`time.time()`) that were at work for that job,
    and what they ran. Waits so long for the first one: Spark may notice a worker's end before the daemon does."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return []
    deadline = time.monotonic() + wait_s
    while True:
        found = []
        for note in Path(folder).glob(f"*{_WORK}"):
            with contextlib.suppress(OSError):  # the work has ended just now
                owner, _, what = note.read_text(encoding="utf-8").partition("\n")
                pid = int(note.name.removesuffix(_WORK))
                if owner == job and (ended := how_it_ended(pid, since)) is not None:
                    found.append(f"the worker with process id {pid} {ended}; it ran {what}")
        if found or time.monotonic() >= deadline:
            return sorted(found)
        time.sleep(0.05)


def how_it_ended(pid: int, since: float) -> str | None:
    """On the driver: of a worker of this machine; None when nobody has noted it since then (`time.time()`): older notes
    are of other processes that had the same id."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return None
    try:
        with open(os.path.join(folder, str(pid))) as file:
            if os.fstat(file.fileno()).st_mtime < since:
                return None
            code = int(file.read())
    except (OSError, ValueError):
        return None
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a signal"
    hint = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by {name} ({-code}){hint}"
