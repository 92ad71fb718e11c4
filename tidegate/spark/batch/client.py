"""The client's side of a batch job."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.common import options
from tidegate.common.accumulators import load_values
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import ConfigurationError
from tidegate.common.ids import AttemptNumber
from tidegate.common.job_client import JobClient
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus
from tidegate.protocol.instructions import AttemptFailure, JobEnded
from tidegate.spark.batch.report import CollectedChunk, JobReport
from tidegate.spark.streaming.job_client import complete_result
from tidegate.spark.streaming.job_observer import StatusChange
from tidegate.taskmanager.user_report import USER_METRIC

_KEPT = 200


class BatchJobClient(JobClient):
    """Made by `submit_batch`. Thread-safe."""

    def __init__(self, job_id: JobID, cancel: Callable[[], None]) -> None:
        self._job_id = job_id
        self._cancel = cancel
        self._status = JobStatus.CREATED
        self._changes: deque[StatusChange] = deque(maxlen=_KEPT)
        self._attempt = AttemptNumber(0)
        self._failures: tuple[AttemptFailure, ...] = ()
        self._report: JobReport | None = None
        self._savepoint: str | None = None
        self._result: CompletableFuture[JobExecutionResult] = CompletableFuture()
        self._over = threading.Event()

    # ------------------------------------------------------------ JobClient
    def get_job_id(self) -> JobID:
        return self._job_id

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        return CompletableFuture.completed(self._status)

    def cancel(self) -> CompletableFuture[None]:
        self._cancel()
        return CompletableFuture.completed(None)

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        return CompletableFuture.failed(_no_savepoint())

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return CompletableFuture.failed(_no_savepoint())

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Empty until the job has ended: attempts that do not count must not be in them."""
        try:
            return CompletableFuture.completed(load_values(_accumulators(self._report)))
        except Exception as error:  # of different classes under one name, or of a class that is not known here
            return CompletableFuture.failed(error)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        return self._result

    # ------------------------------------------------------------ beyond PyFlink's JobClient
    def savepoint_path(self) -> str | None:
        """Where the savepoint at the end is, once the job has finished; None without one."""
        return self._savepoint

    def attempt(self) -> AttemptNumber:
        """How often the job was started again."""
        return self._attempt

    def metrics(self) -> dict[str, float]:
        """The metrics of the functions, once the job has ended; names as in STREAMING mode."""
        found = {} if self._report is None else self._report.metrics()
        return {name.removeprefix(USER_METRIC): value for name, value in found.items()}

    def task_records(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Records in and out by vertex and subtask, once the job has ended."""
        tasks = [] if self._report is None else self._report.in_order()
        return {(t.vertex, t.subtask): (t.records_in, t.records_out) for t in tasks}

    def failures(self) -> tuple[AttemptFailure, ...]:
        return self._failures

    def status_history(self) -> tuple[StatusChange, ...]:
        return tuple(self._changes)

    def collect_results(self) -> Iterator[Any]:
        """The records of the collect sink when the job has ended; raises when it failed or was cancelled."""
        self._over.wait()
        self._result.result()
        chunks: list[CollectedChunk] = [] if self._report is None else self._report.chunks
        for chunk in chunks:
            for payload in chunk.payloads:
                yield from pickle.loads(payload)

    # ------------------------------------------------------------ for the job
    def changed(self, status: JobStatus, attempt: int, now_ms: float) -> None:
        self._status = status
        self._attempt = AttemptNumber(attempt)
        self._changes.append(StatusChange(status, now_ms, self._attempt))

    def failed_attempt(self, failures: tuple[AttemptFailure, ...]) -> None:
        self._failures = failures

    def reported(self, report: JobReport) -> None:
        self._report = report

    def ended(self, end: JobEnded, savepoint: str | None = None) -> None:
        self._savepoint = savepoint
        end = dataclasses.replace(end, accumulators=tuple(_accumulators(self._report)))
        complete_result(self._result, self._job_id, end)
        self._over.set()


def _accumulators(report: JobReport | None) -> list[bytes]:
    return [] if report is None else [task.accumulators for task in report.in_order()]


def _no_savepoint() -> ConfigurationError:
    return ConfigurationError(
        "a BATCH job takes no savepoints while it runs; it can end with one: set "
        f"{options.BATCH_SAVEPOINT_PATH.key} before it is started"
    )
