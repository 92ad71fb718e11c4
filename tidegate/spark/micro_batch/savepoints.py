"""Savepoints of a micro-batch job: those that somebody waits for, and how one is completed. Taken at the end of a batch
in which the sources read nothing; complete when the batch is committed by Spark and by the sinks."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId
from tidegate.fault_tolerance.barriers.pending_checkpoint import PendingCheckpoint
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind, CheckpointRequest
from tidegate.graph.job_graph import JobGraph
from tidegate.spark.batch.job_savepoint import delete_strays
from tidegate.spark.micro_batch.report import BatchReport
from tidegate.state.savepoint.format import new_savepoint, write_savepoint_metadata
from tidegate.storage.files import open_files
from tidegate.storage.handles import EnumeratorState
from tidegate.storage.location import StorageLocation
from tidegate.storage.worker_storage import JobManagerWorkerStorage

_MOST_WAITING = 16


@dataclass(frozen=True)
class SavepointRequest:
    target: str  # URI of the folder
    stop: bool
    drain: bool
    future: CompletableFuture[str] = field(default_factory=CompletableFuture)


class SavepointRequests:
    """`request` from any thread; the rest from the job's. `wake` tells the job that there is something to do."""

    def __init__(self, job_id: str, default_directory: str | None, permissions: str, wake: Callable[[], None]) -> None:
        self._job_id = job_id
        self._default_directory = default_directory
        self.permissions = permissions
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: collections.deque[SavepointRequest] = collections.deque()
        self._under_way: SavepointRequest | None = None
        self._over = ""  # why no request can be served any more

    def request(self, directory: str | None, stop: bool = False, drain: bool = False) -> CompletableFuture[str]:
        directory = directory or self._default_directory
        if not directory:
            return CompletableFuture.failed(
                ConfigurationError(
                    "no folder was given for the savepoint: name one, or set execution.checkpointing.savepoint-dir"
                )
            )
        try:
            files_of = JobManagerWorkerStorage(permissions=self.permissions).savepoint_files
            made = SavepointRequest(new_savepoint(files_of, directory, self._job_id), stop, drain)
        except Exception as error:
            return CompletableFuture.failed(error)
        with self._lock:
            if self._over:
                return CompletableFuture.failed(SnapshotError(self._over))
            if len(self._waiting) == _MOST_WAITING:
                return CompletableFuture.failed(SnapshotError(f"{_MOST_WAITING} savepoints are waited for already"))
            self._waiting.append(made)
        self._wake()
        return made.future

    def take(self) -> SavepointRequest | None:
        """The one for the next batch. It is under way until `done` or `failed`."""
        with self._lock:
            if self._under_way is None and self._waiting:
                self._under_way = self._waiting.popleft()
            return self._under_way

    @property
    def any_waits(self) -> bool:
        """`take` would give one."""
        return self._under_way is not None or bool(self._waiting)

    @property
    def under_way(self) -> SavepointRequest | None:
        return self._under_way

    def done(self) -> None:
        request, self._under_way = self._under_way, None
        if request is not None:
            request.future.complete(request.target)

    def failed(self, error: BaseException, target: str | None = None) -> None:
        """`target`: nothing if it is another one that is under way."""
        if target is not None and (self._under_way is None or self._under_way.target != target):
            return
        request, self._under_way = self._under_way, None
        if request is not None:
            request.future.complete_exceptionally(error)

    def job_over(self, status: str) -> None:
        with self._lock:
            self._over = f"the job is over ({status})"
            left = [*([self._under_way] if self._under_way is not None else []), *self._waiting]
            self._waiting.clear()
            self._under_way = None
        for request in left:
            request.future.complete_exceptionally(SnapshotError(f"no savepoint was taken: {self._over}"))


def complete_savepoint(
    target: str,
    permissions: str,
    graph: JobGraph,
    report: BatchReport,
    now_ms: float,
    known: Mapping[OperatorId, EnumeratorState] | None = None,
) -> None:
    """Write the metadata, which makes it a savepoint, when all is there and nothing else is. SnapshotError, and nothing
    is left, when a subtask could not write its part. `known`: the splits of sources that find them."""
    files = open_files(StorageLocation.parse(target).with_permissions(permissions))
    try:
        if error := report.savepoint_error():
            raise SnapshotError(f"no savepoint was taken: {error}")
        request = CheckpointRequest(CheckpointKind.SAVEPOINT, target=target)
        checkpoint_id = CheckpointId(report.batch + 1)
        states = dict(known or {})
        pending = PendingCheckpoint(checkpoint_id, request, AttemptNumber(0), graph, int(now_ms), 0.0, states)
        for snapshot in report.snapshots():
            pending.acknowledge(snapshot)
        metadata = pending.metadata()
        delete_strays(files, metadata)
        write_savepoint_metadata(files, metadata)
    except BaseException:
        with contextlib.suppress(Exception):
            files.delete_directory("")
        raise
