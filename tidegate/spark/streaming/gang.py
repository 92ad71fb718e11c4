"""Starts a gang: one Spark job in barrier mode, a task per slot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

from tidegate.common.ids import AttemptNumber
from tidegate.spark.spark_errors import summarize
from tidegate.spark.streaming.worker import SlotLaunch, run_partition


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
