"""Starts a gang: one Spark job in barrier mode, a task per slot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial

from pyspark.sql import SparkSession

from tidegate.common.ids import AttemptNumber
from tidegate.spark.slot_wait import SparkJobs
from tidegate.spark.spark_errors import summarize, why_spark_is_gone
from tidegate.spark.spark_page import description
from tidegate.spark.streaming.worker import SlotLaunch, run_partition


def warm_up(session: SparkSession, slots: int) -> None:
    """Start the Python workers and let them import what a slot needs: a gang that follows finds them ready. A standby
    does this while it has time."""
    session.sparkContext.parallelize(range(slots), slots).barrier().mapPartitions(_import_a_slot).collect()


def _import_a_slot(partition: Iterable[int]) -> Iterable[int]:
    import tidegate.taskmanager.slot  # noqa: F401

    return partition


class SparkGang:
    """One attempt's gang. When its Spark job is over, one of two is called once, on another thread: `on_exit(error)`,
    or `on_spark_gone(error)` when no other job can be run on this Spark."""

    def __init__(
        self,
        session: SparkSession,
        job_id: str,
        job_name: str,
        attempt: AttemptNumber,
        address: Callable[[float], str],
    ) -> None:
        """`address`: of the job's page, see `spark_page.description`."""
        self._sc = session.sparkContext
        self.group = f"tidegate-{job_id}-{attempt}"
        self._jobs = SparkJobs(self._sc, lambda: (self.group,))
        self._describe = partial(description, self._sc, f"{job_name} (attempt {attempt})", job_id, address)

    def submit(
        self,
        launch: SlotLaunch,
        slots: int,
        on_exit: Callable[[str | None], None],
        on_spark_gone: Callable[[str], None],
    ) -> None:
        def run() -> None:
            try:
                self._sc.setJobGroup(self.group, self._describe(), interruptOnCancel=True)
                rdd = self._sc.parallelize(range(slots), slots)
                rdd.barrier().mapPartitions(partial(run_partition, launch)).collect()
            except BaseException as error:
                gone = why_spark_is_gone(self._sc)
                if gone is None:
                    on_exit(summarize(error))
                else:
                    on_spark_gone(gone)
            else:
                on_exit(None)

        threading.Thread(target=run, name=f"{self.group}-spark", daemon=True).start()

    def has_started(self) -> bool:
        """Whether Spark has given it its slots; its workers may be on their way still. See `slot_wait.Asked`."""
        return self._jobs.at_work((self.group,))

    def other_spark_jobs(self) -> int:
        return self._jobs.other_spark_jobs()

    def at_work(self, groups: Collection[str]) -> bool:
        return self._jobs.at_work(groups)

    def cancel(self) -> None:
        """Let Spark kill what is left. Takes Spark about two seconds per worker that does not react."""
        with contextlib.suppress(Exception):  # the session is gone, and the workers with it
            self._sc.cancelJobGroup(self.group)
