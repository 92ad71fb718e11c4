"""Real jobs without Spark: the real JobManager in this process, each slot in a process of its own that can be killed.

What Spark does for a job (start a gang, notice that a worker is gone, kill what is left) is done here by a forkserver,
which is quicker to start, and lets these tests run beside others."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import Any

from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.graph.driver_sides import starting_job
from tidegate.jobmanager.preparation import prepare_job
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.streaming import job_manager
from tidegate.spark.streaming.job_manager import JobManager
from tidegate.spark.streaming.worker import SlotLaunch, run_partition
from tidegate.testing.in_process_job import graph_of

_GRACE_S = 0.2  # between the loss of a worker and the end of the others
_PRELOADED = [  # once, instead of in every worker
    "tests.connectors.on_processes",
    "tests.connectors.kills",
    "tidegate.connectors.kafka.sink",
    "tidegate.connectors.kafka.source",
    "kafka.admin",
    "kafka.protocol.producer.transaction",
    "psycopg",
]
PATIENT = {"tidegate.slot.start-timeout": "10 min"}
"""Settings for a machine that is very busy."""


def _run_slot(launch: SlotLaunch, slot: int) -> None:
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` asks a worker that hangs where it is
    list(run_partition(launch, [slot]))


class ProcessGang:
    """In the place of a SparkGang."""

    group = "processes"

    def __init__(self, *_: Any) -> None:
        self._processes: list[Any] = []

    def submit(
        self,
        launch: SlotLaunch,
        slots: int,
        exited: Callable[[str | None], None],
        spark_gone: Callable[[str], None],
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)

        def run() -> None:
            self._processes = [context.Process(target=_run_slot, args=(launch, i), daemon=True) for i in range(slots)]
            for process in self._processes:
                process.start()
            exited(self._wait())

        threading.Thread(target=run, daemon=True).start()

    def _wait(self) -> str | None:
        left, lost = list(self._processes), None
        while left:
            wait([process.sentinel for process in left])
            for process in [p for p in left if not p.is_alive()]:
                left.remove(process)
                if process.exitcode and lost is None:
                    lost = f"a worker has ended with {process.exitcode}"
                    time.sleep(_GRACE_S)
                    self.cancel()
        return lost

    def has_started(self) -> bool:
        return True

    def cancel(self) -> None:
        for process in self._processes:
            with contextlib.suppress(Exception):
                process.kill()


def start_job(env: StreamExecutionEnvironment) -> Any:
    """The client of the job, which has passed the checks of a submission."""
    env._configuration.set_string("rest.enabled", "false")
    graph = graph_of(env)
    with starting_job(graph) as starting:
        starting.check_start(graph.num_slots)
        starting.check_checkpoints(env._configuration)
        manager = JobManager(
            session=SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]")),  # type: ignore[arg-type]
            job=prepare_job(graph, Configuration(env._configuration)),
            bundle=CodeBundle.collect([]),
        )
        manager.start()
        starting.started(manager.client)
    return manager.client


@contextlib.contextmanager
def processes_for_spark() -> Iterator[None]:
    """Jobs that are started with `start_job` in this block run on processes."""
    spark_gang = job_manager.SparkGang
    job_manager.SparkGang = ProcessGang  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        job_manager.SparkGang = spark_gang  # type: ignore[misc]


def environment(parallelism: int, settings: dict[str, Any] | None = None) -> StreamExecutionEnvironment:
    configuration = Configuration.from_dict({**PATIENT, **(settings or {})})
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    return env.set_parallelism(parallelism)


def run_job(env: StreamExecutionEnvironment, timeout_s: float = 120) -> None:
    start_job(env).get_job_execution_result().result(timeout_s)
