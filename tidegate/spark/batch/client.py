"""The client's side of a BATCH job."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.common import options
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import ConfigurationError
from tidegate.common.metric_values import NUM_RECORDS_IN, NUM_RECORDS_OUT, CounterValue
from tidegate.jobmanager.job_publisher import JobPublisher
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.protocol.instructions import JobEnded
from tidegate.spark.batch.report import CollectedChunk, JobReport


class BatchJobClient(PublishedJobClient):
    """Made by `BatchJob`. Thread-safe."""

    def __init__(self, publisher: JobPublisher, cancel: Callable[[], None]) -> None:
        super().__init__(publisher, cancel)
        self._chunks: list[CollectedChunk] = []
        self._savepoint: str | None = None
        self._over = threading.Event()

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        return CompletableFuture.failed(_no_savepoint())

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return CompletableFuture.failed(_no_savepoint())

    def savepoint_path(self) -> str | None:
        """Where the savepoint at the end is, once the job has finished; None without one."""
        return self._savepoint

    def task_records(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Records in and out by vertex and subtask, once the job has ended."""
        found: dict[str, dict[tuple[int, int], int]] = {NUM_RECORDS_IN: {}, NUM_RECORDS_OUT: {}}
        for metric in self.view().metrics:
            if not metric.operator and isinstance(metric.value, CounterValue):
                found[metric.name][metric.vertex, metric.subtask] = metric.value.count
        return {task: (read, found[NUM_RECORDS_OUT][task]) for task, read in found[NUM_RECORDS_IN].items()}

    def collect_results(self) -> Iterator[Any]:
        """The records of the collect sink when the job has ended; raises when it failed or was cancelled."""
        self._over.wait()
        self._result.result()
        for chunk in self._chunks:
            for payload in chunk.payloads:
                yield from pickle.loads(payload)

    # ------------------------------------------------------------ for the job
    def reported(self, report: JobReport) -> None:
        """All tasks have ended; what they have done is not committed yet."""
        self._chunks = report.chunks
        self._publisher.accumulators = report.accumulators()
        self._publisher.update(metrics=report.metrics())

    def ended(self, end: JobEnded, savepoint: str | None = None) -> None:
        self._savepoint = savepoint
        super().ended(dataclasses.replace(end, accumulators=self._publisher.accumulators))
        self._over.set()


def _no_savepoint() -> ConfigurationError:
    return ConfigurationError(
        "a BATCH job takes no savepoints while it runs; it can end with one: set "
        f"{options.BATCH_SAVEPOINT_PATH.key} before it is started"
    )
