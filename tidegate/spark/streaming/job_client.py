"""The client's side of a STREAMING job: savepoints, and the records of `execute_and_collect` as they come."""

from __future__ import annotations

import pickle
import queue
from collections.abc import Callable, Iterator
from typing import Any

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.ids import OperatorId, SubtaskIndex
from tidegate.jobmanager.job_publisher import JobPublisher
from tidegate.jobmanager.live_state import LiveStates
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.protocol.instructions import DeliverResults, JobEnded
from tidegate.spark.streaming.savepoint_requests import SavepointRequests

_END = object()


class SparkJobClient(PublishedJobClient):
    """Made by the JobManager. Thread-safe."""

    def __init__(
        self,
        publisher: JobPublisher,
        savepoints: SavepointRequests,
        cancel: Callable[[], None],
        results_taken: Callable[[OperatorId, SubtaskIndex, int], None],
        states: LiveStates | None = None,
    ) -> None:
        super().__init__(publisher, cancel, states)
        self._savepoints = savepoints
        self._results_taken = results_taken
        # Bounded by the sink: it waits for `results_taken` before it sends more than a few dozen chunks per subtask.
        self._chunks: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> CompletableFuture[str]:
        return self._savepoints.stop(advance_to_end_of_event_time, savepoint_directory)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        return self._savepoints.trigger(savepoint_directory)

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
        super().ended(end)
        self._chunks.put(_END)

    def broken(self, error: BaseException) -> None:
        """The JobManager itself failed."""
        self._result.complete_exceptionally(error)
        self._chunks.put(_END)
