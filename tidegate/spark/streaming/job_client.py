"""The client's side of a job: status, cancel, result, and the records of `execute_and_collect`."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.common.accumulators import load_values
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import JobCancelledError, JobExecutionError
from tidegate.common.ids import AttemptNumber, OperatorId, SubtaskIndex
from tidegate.common.job_client import JobClient
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.statistics import CheckpointRecord
from tidegate.protocol.instructions import AttemptFailure, DeliverResults, JobEnded
from tidegate.spark.streaming.job_observer import JobObserver, Restore, StatusChange, WorkerInfo
from tidegate.spark.streaming.savepoint_requests import SavepointRequests

_END = object()


class SparkJobClient(JobClient):
    """Made by `submit_job`. Thread-safe."""

    def __init__(
        self,
        job_id: JobID,
        observer: JobObserver,
        savepoints: SavepointRequests,
        cancel: Callable[[], None],
        results_taken: Callable[[OperatorId, SubtaskIndex, int], None],
    ) -> None:
        self._job_id = job_id
        self._observer = observer
        self._savepoints = savepoints
        self._cancel = cancel
        self._results_taken = results_taken
        self._result: CompletableFuture[JobExecutionResult] = CompletableFuture()
        # Bounded by the sink: it waits for `results_taken` before it sends more than a few dozen chunks per subtask.
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()

    # ------------------------------------------------------------ JobClient
    def get_job_id(self) -> JobID:
        return self._job_id

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        return CompletableFuture.completed(self._observer.status())

    def cancel(self) -> CompletableFuture[None]:
        self._cancel()
        return CompletableFuture.completed(None)

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        return self._savepoints.stop(advance_to_end_of_event_time, savepoint_directory)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return self._savepoints.trigger(savepoint_directory)

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """As of the workers' latest heartbeats; accumulators of many KiB are there only when the job has ended."""
        try:
            return CompletableFuture.completed(self._observer.accumulators())
        except Exception as error:  # of different classes under one name, or of a class that is not known here
            return CompletableFuture.failed(error)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        return self._result

    # ------------------------------------------------------------ beyond PyFlink's JobClient
    def attempt(self) -> AttemptNumber:
        """0 for the first gang of workers, one more for each restart."""
        return self._observer.attempt()

    def workers(self) -> tuple[WorkerInfo, ...]:
        """The worker processes of the current attempt that have registered so far, by slot."""
        return self._observer.workers()

    def checkpoint_history(self) -> tuple[CheckpointRecord, ...]:
        """The latest checkpoints (`tidegate.checkpoint.history-size`), oldest first; without checkpointing only
        savepoints."""
        return self._observer.checkpoint_history()

    def restores(self) -> tuple[Restore, ...]:
        """The latest starts from a checkpoint, oldest first."""
        return self._observer.restores()

    def metrics(self) -> dict[str, float]:
        """The metrics of the functions (`RuntimeContext.get_metrics_group`) as of the latest heartbeats, by operator
        name, subtask, groups and name: `Map.0.parser.errors`. They begin anew with each attempt."""
        return self._observer.metrics()

    def failures(self) -> tuple[AttemptFailure, ...]:
        """Why attempts have failed, oldest first: the first one and the latest ones."""
        return self._observer.failures()

    def status_history(self) -> tuple[StatusChange, ...]:
        """The latest changes of the job's status, oldest first."""
        return self._observer.status_history()

    # ------------------------------------------------------------ results
    def collect_results(self) -> Iterator[Any]:
        """The records of the collect sink as they come; raises at the end when the job failed or was cancelled."""
        while True:
            chunk = self._chunks.get()
            if chunk is _END:
                self._result.result()
                return
            assert isinstance(chunk, DeliverResults)
            yield from pickle.loads(chunk.payload)
            self._results_taken(chunk.operator_id, chunk.subtask, chunk.seq)

    # ------------------------------------------------------------ for the JobManager
    def deliver(self, chunk: DeliverResults) -> None:
        self._chunks.put(chunk)

    def ended(self, end: JobEnded) -> None:
        complete_result(self._result, self._job_id, end)
        self._chunks.put(_END)

    def broken(self, error: BaseException) -> None:
        """The JobManager itself failed."""
        self._result.complete_exceptionally(error)
        self._chunks.put(_END)


def complete_result(result: CompletableFuture[JobExecutionResult], job_id: JobID, end: JobEnded) -> None:
    """What `get_job_execution_result` gives, or raises."""
    if end.status is JobStatus.FINISHED:
        try:
            accumulators = load_values(end.accumulators)
        except Exception as error:  # of different classes under one name, or of a class that is not known here
            result.complete_exceptionally(error)
        else:
            result.complete(JobExecutionResult(job_id, int(end.runtime_ms), accumulators))
    elif end.status is JobStatus.CANCELED:
        result.complete_exceptionally(JobCancelledError(f"job {job_id} was cancelled"))
    else:
        result.complete_exceptionally(JobExecutionError(failure_text(str(job_id), end)))


def failure_text(job_id: str, end: JobEnded) -> str:
    """The last failure in full, the earlier ones in a line each."""
    lines = []
    if end.failures:
        last = end.failures[-1].failure
        lines.append(last.summary)
        if last.traceback:
            lines += ["", last.traceback.rstrip()]
        if end.failed_attempts > 1:
            lines += ["", f"Job {job_id} failed {end.failed_attempts} times; the causes, oldest first:"]
            lines += [f"  attempt {f.attempt}: {f.failure.summary}" for f in end.failures]
    else:
        lines.append(f"job {job_id} failed")
    if end.reason:
        lines += ["", end.reason]
    return "\n".join(lines)
