"""The client's side of a MICRO_BATCH job: savepoints, and the records of `execute_and_collect` batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidegate.common.completable_future import CompletableFuture
from tidegate.jobmanager.job_publisher import JobPublisher
from tidegate.jobmanager.live_state import LiveStates
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.protocol.instructions import JobEnded
from tidegate.spark.micro_batch.results import HeldResults
from tidegate.spark.micro_batch.savepoints import SavepointRequests


class MicroBatchJobClient(PublishedJobClient):
    """Made by `MicroBatchJob`. Thread-safe."""

    def __init__(
        self,
        publisher: JobPublisher,
        savepoints: SavepointRequests,
        results: HeldResults,
        cancel: Callable[[], None],
        states: LiveStates | None = None,
    ) -> None:
        super().__init__(publisher, cancel, states)
        self._savepoints = savepoints
        self._results = results

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        return self._savepoints.request(savepoint_directory, stop=True, drain=advance_to_end_of_event_time)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return self._savepoints.request(savepoint_directory)

    def collect_results(self) -> Iterator[Any]:
        """The records of the collect sink, those of a batch when it is committed; raises at the end when the job
        failed or was cancelled."""
        yield from self._results.taken()
        self._result.result()

    # ------------------------------------------------------------ for the job
    def ended(self, end: JobEnded) -> None:
        try:
            super().ended(end)
        finally:
            self._results.end()
