"""Starts a gang: one Spark job in barrier mode, a task per slot."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from tidegate.common.ids import AttemptNumber
from tidegate.spark.streaming.worker import SlotLaunch, run_partition

_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


class SparkGang:
    """One attempt's gang. `on_exit(error)` is called once, on another thread, when the Spark job is over."""

    def __init__(self, session: SparkSession, job_id: str, job_name: str, attempt: AttemptNumber) -> None:
        self._sc = session.sparkContext
        self._group = f"tidegate-{job_id}-{attempt}"
        self._description = f"{job_name} (attempt {attempt})"

    def submit(self, launch: SlotLaunch, slots: int, on_exit: Callable[[str | None], None]) -> None:
        def run() -> None:
            try:
                self._sc.setJobGroup(self._group, self._description, interruptOnCancel=True)
                rdd = self._sc.parallelize(range(slots), slots)
                rdd.barrier().mapPartitions(partial(run_partition, launch)).collect()
            except BaseException as error:
                on_exit(summarize(error))
            else:
                on_exit(None)

        threading.Thread(target=run, name=f"{self._group}-spark", daemon=True).start()

    def cancel(self) -> None:
        """Let Spark kill what is left. Takes Spark about two seconds per worker that does not react."""
        with contextlib.suppress(Exception):  # the session is gone, and the workers with it
            self._sc.cancelJobGroup(self._group)


def summarize(error: BaseException) -> str:
    """Spark's story in one line, without Java stack traces."""
    text = str(error)
    python = text.partition("An exception was thrown from the Python worker")[2].partition("SQLSTATE")[0]
    raised = [line.strip() for line in python.splitlines() if _PYTHON_ERROR.match(line)]
    if raised:
        hint = (
            " (is tidegate installed for the Python that Spark's workers use?)"
            if "ModuleNotFound" in raised[-1]
            else ""
        )
        return f"{raised[-1]}{hint}"[:400]
    if "Python worker exited unexpectedly" in text:
        return "a Python worker process exited unexpectedly (it crashed or was killed)"
    _, found, story = text.partition("Error from python worker:")
    if found:  # it did not even start: what it wrote before it died, then Spark's Python path
        said = [line.strip() for line in story.partition("PYTHONPATH was:")[0].splitlines() if line.strip()]
        return f"Python worker processes could not be started: {' '.join(said[-2:]) or 'they wrote nothing'}"[:400]
    for marker in ("Most recent failure reason: ", "Most recent failure: "):
        if marker in text:
            text = text.split(marker, 1)[1]
            break
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")]
    return (" ".join(lines[:2]) if lines else type(error).__name__)[:400]
