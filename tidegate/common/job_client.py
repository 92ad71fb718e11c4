"""JobClient: what a program can ask of a job that it has submitted."""

from __future__ import annotations

import abc
from typing import Any

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.job_id import JobID
from tidegate.common.job_status import JobStatus


class JobClient(abc.ABC):
    """A submitted job. All methods return at once; wait with `.result()` of the future."""

    @abc.abstractmethod
    def get_job_id(self) -> JobID: ...

    @abc.abstractmethod
    def get_job_status(self) -> CompletableFuture[JobStatus]: ...

    @abc.abstractmethod
    def cancel(self) -> CompletableFuture[None]:
        """Ask the job to end. Done when the request was taken, which is before the job has ended; a job that has ended
        already is left as it is."""

    @abc.abstractmethod
    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        """Take a savepoint and end the job right after it. The result is the path of the savepoint."""

    @abc.abstractmethod
    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Take a savepoint while the job goes on. The result is the path of the savepoint."""

    @abc.abstractmethod
    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """The accumulators as of now, also while the job runs."""

    @abc.abstractmethod
    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """The result when the job has finished; the error when it failed (JobExecutionError) or was cancelled
        (JobCancelledError)."""
