"""The client's side of a job, whatever its runtime: it shows what the job has published."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.common.accumulators import load_values
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import JobCancelledError, JobExecutionError, JobSuspendedError, StateReadError
from tidegate.common.ids import AttemptNumber
from tidegate.common.job_client import JobClient
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import numbers_of
from tidegate.fault_tolerance.checkpoint_view import CheckpointView, Restore
from tidegate.jobmanager.job_publisher import JobPublisher
from tidegate.jobmanager.job_view import JobView, StatusChange, WorkerInfo
from tidegate.jobmanager.live_state import LiveStates, StateHandle
from tidegate.protocol.instructions import AttemptFailure, JobEnded


class PublishedJobClient(JobClient):
    """Made by a runtime. Thread-safe. `cancel` asks the job to end, from any thread."""

    def __init__(self, publisher: JobPublisher, cancel: Callable[[], None], states: LiveStates | None = None) -> None:
        self._publisher = publisher
        self._states = states
        self._job_id = JobID.from_hex(publisher.view.job_id)
        self._cancel = cancel
        self._result: CompletableFuture[JobExecutionResult] = CompletableFuture()

    # ------------------------------------------------------------ JobClient
    def get_job_id(self) -> JobID:
        return self._job_id

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        return CompletableFuture.completed(self.view().status)

    def cancel(self) -> CompletableFuture[None]:
        """Ask the job to end; it may have ended already. The future is completed when it has, whatever its end was:
        then its slots are free."""
        ended: CompletableFuture[None] = CompletableFuture()
        self._cancel()
        self._result.add_done_callback(lambda _: ended.complete(None))
        return ended

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """STREAMING: as of the workers' latest heartbeats; accumulators of many KiB are there only when the job has
        ended. BATCH: empty until the job has ended, since attempts that do not count must not be in them."""
        try:
            return CompletableFuture.completed(load_values(self._publisher.accumulators))
        except Exception as error:  # of different classes under one name, or of a class that is not known here
            return CompletableFuture.failed(error)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        return self._result

    # ------------------------------------------------------------ beyond PyFlink's JobClient
    def view(self) -> JobView:
        """All that can be seen of the job, as one immutable value: it is replaced at most some times a second, and when
        the job's status changes."""
        return self._publisher.view

    def attempt(self) -> AttemptNumber:
        """0 for the first run of the job, one more for each restart."""
        return self.view().attempt

    def workers(self) -> tuple[WorkerInfo, ...]:
        """The worker processes of the current attempt that have registered so far, by slot. None in BATCH mode."""
        return self.view().workers

    def checkpoint_history(self) -> tuple[CheckpointView, ...]:
        """The latest checkpoints (`tidegate.checkpoint.history-size`), oldest first; without checkpointing only
        savepoints. None in BATCH mode."""
        return self.view().checkpoints.history

    def restores(self) -> tuple[Restore, ...]:
        """The latest starts from a checkpoint, oldest first."""
        return self.view().checkpoints.restores

    def metrics(self) -> dict[str, float]:
        """The metrics of the functions (`RuntimeContext.get_metrics_group`), by operator name, subtask, groups and
        name: `Map.0.parser.errors`, where the second operator of that name is `Map#2`. As of the latest heartbeats, and
        in BATCH mode once the job has ended. They begin anew with each attempt."""
        return {
            name: number
            for full_name, metric in self.view().function_metrics()
            for name, number in numbers_of(full_name, metric.value)
        }

    def failures(self) -> tuple[AttemptFailure, ...]:
        """Why attempts have failed, oldest first: the first one and the latest ones."""
        return self.view().failures

    def status_history(self) -> tuple[StatusChange, ...]:
        """The latest changes of the job's status, oldest first."""
        return self.view().status_history

    def get_state(self, operator: str, state: str) -> StateHandle:
        """A keyed state of the running job, to look keys up in. `operator`: its uid (or name, or id). The contents of
        windows are the state `window-contents`. Not in BATCH mode, where no state could be looked at."""
        if self._states is None:
            raise StateReadError("a job in BATCH mode keeps no state that could be looked at while it runs")
        return self._states.handle(operator, state)

    @abc.abstractmethod
    def collect_results(self) -> Iterator[Any]:
        """The records of the collect sink; raises at the end when the job failed or was cancelled."""

    # ------------------------------------------------------------ for the job
    def ended(self, end: JobEnded) -> None:
        """Completes `get_job_execution_result`."""
        if end.status is JobStatus.FINISHED:
            try:
                accumulators = load_values(end.accumulators)
            except Exception as error:  # of different classes under one name, or of a class that is not known here
                self._result.complete_exceptionally(error)
            else:
                self._result.complete(JobExecutionResult(self._job_id, int(end.runtime_ms), accumulators))
        elif end.status is JobStatus.CANCELED:
            self._result.complete_exceptionally(JobCancelledError(f"job {self._job_id} was cancelled"))
        elif end.status is JobStatus.SUSPENDED:
            self._result.complete_exceptionally(JobSuspendedError(f"job {self._job_id}: {end.reason}"))
        else:
            self._result.complete_exceptionally(JobExecutionError(failure_text(str(self._job_id), end)))


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
