"""The client of a job that has come to its end under an earlier leader: nothing is started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.configuration import Configuration
from tidegate.common.errors import JobExecutionError
from tidegate.common.ids import AttemptNumber
from tidegate.common.job_status import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.job_publisher import JobPublisher
from tidegate.jobmanager.leadership.job_record import JobRecord
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.protocol.instructions import AttemptFailure, JobEnded
from tidegate.protocol.messages import FailureInfo
from tidegate.taskmanager.clock import SystemClock


class EndedJobClient(PublishedJobClient):
    """Its result is what the record says: `execute` returns for a job that has finished, and raises otherwise."""

    def __init__(self, record: JobRecord, why: str, graph: JobGraph, configuration: Configuration) -> None:
        now = SystemClock().now_ms()
        publisher = JobPublisher(graph, "STREAMING", graph.num_slots, now, configuration)
        publisher.update(job_id=record.job_id, status_name=record.status, ended_ms=now)
        super().__init__(publisher, cancel=lambda: None)
        self._why = why
        failure = FailureInfo(summary=f"{why}\n{record.reason}".rstrip())
        failures = (AttemptFailure(AttemptNumber(0), now, failure),) if record.status == JobStatus.FAILED.name else ()
        self.ended(JobEnded(JobStatus[record.status], failures, len(failures), 0.0))

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        return CompletableFuture.failed(JobExecutionError(self._why))

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return CompletableFuture.failed(JobExecutionError(self._why))

    def collect_results(self) -> Iterator[Any]:
        self._result.result()
        return iter(())
