"""Kills of whatever a micro-batch job consists of: its driver, Spark's JVM, executors, Python workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil


def batches(folder: Path) -> int:
    """That Spark has committed."""
    commits = folder / "location" / "commits"
    return len(list(commits.glob("[0-9]*"))) if commits.exists() else 0


def a_batch_more(folder: Path, driver: subprocess.Popen[bytes]) -> bool:
    """Waits for one. False: the driver is gone before that."""
    before, deadline = batches(folder), time.monotonic() + 300
    while driver.poll() is None and time.monotonic() < deadline:
        if batches(folder) > before:
            return True
        time.sleep(0.05)
    return False


def kill(driver: int, victim: str) -> int:
    """How many were killed."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in _candidates(driver, victim):
            os.kill(process, signal.SIGKILL)
            return 1
    return 0


def kill_all(driver: subprocess.Popen[bytes]) -> None:
    """Whatever is left of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(driver.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    driver.kill()
    driver.wait(60)


def _candidates(driver: int, victim: str) -> Iterator[int]:
    if victim == "driver":
        yield driver
        return
    for child in psutil.Process(driver).children(recursive=True):
        if _kind(child) == victim:
            yield child.pid


def _kind(process: psutil.Process) -> str:
    line, parent = process.cmdline(), process.parent()
    if line and "java" in line[0]:
        return "executor" if any("CoarseGrainedExecutorBackend" in word for word in line) else "jvm"
    forked = parent is not None and parent.cmdline() == line  # by a daemon, which is not what is meant
    return "worker" if forked and "daemon" in " ".join(line) else "another"
