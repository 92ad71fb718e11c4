"""Savepoints that somebody has asked for and that are not there yet. Used from any thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.jobmanager.job_master import JobMaster
from tidegate.protocol.instructions import CheckpointRequestDone, Instruction
from tidegate.state.savepoint.format import new_savepoint
from tidegate.storage.checkpoint_storage import CheckpointStorage

Event = Callable[[float], list[Instruction]]


class SavepointRequests:
    """`post` hands an event to the JobManager's thread; `look` runs something that may block, unless it
    returns False."""

    def __init__(
        self,
        master: JobMaster,
        job_id: str,
        storage: CheckpointStorage,
        default_directory: str | None,
        post: Callable[[Event], None],
        look: Callable[[Callable[[], None]], bool],
    ) -> None:
        self._master = master
        self._job_id = job_id
        self._storage = storage
        self._default_directory = default_directory
        self._post = post
        self._look = look
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, CompletableFuture[str]] = {}  # by request id
        self._over = ""  # why no request can be served any more

    def trigger(self, directory: str | None) -> CompletableFuture[str]:
        return self._request(
            directory, lambda n, target: lambda now: self._master.on_checkpoint_request(n, True, now, target)
        )

    def stop(self, drain: bool, directory: str | None) -> CompletableFuture[str]:
        return self._request(
            directory, lambda n, target: lambda now: self._master.on_stop_request(n, drain, target, now)
        )

    def _request(self, directory: str | None, event: Callable[[int, str], Event]) -> CompletableFuture[str]:
        directory = directory or self._default_directory
        if not directory:
            return CompletableFuture.failed(
                ConfigurationError(
                    "no folder was given for the savepoint: name one, or set execution.checkpointing.savepoint-dir"
                )
            )
        future: CompletableFuture[str] = CompletableFuture()
        with self._lock:
            if self._over:
                return CompletableFuture.failed(SnapshotError(self._over))
            number = next(self._ids)
            self._open[number] = future
        storage, where = self._storage, directory

        def prepare() -> None:
            try:
                target = new_savepoint(storage.worker_storage().savepoint_files, where, self._job_id)
            except Exception as error:
                self._fail(number, error)
                return
            self._post(event(number, target))

        if not self._look(prepare):  # the job has ended in this moment
            self._fail(number, SnapshotError("the job has ended"))
        return future

    # ------------------------------------------------------------ for the JobManager
    def done(self, answer: CheckpointRequestDone) -> None:
        if answer.error is not None:
            self._fail(answer.request_id, SnapshotError(answer.error))
            return
        with self._lock:
            future = self._open.pop(answer.request_id, None)
        if future is not None:
            future.complete(answer.target)

    def job_over(self, status: str) -> None:
        """Nothing more will come: fail what is still waited for."""
        with self._lock:
            self._over = f"the job is over ({status})"
            left, self._open = self._open, {}
        for future in left.values():
            future.complete_exceptionally(SnapshotError(f"no savepoint was taken: {self._over}"))

    def _fail(self, number: int, error: BaseException) -> None:
        with self._lock:
            future = self._open.pop(number, None)
        if future is not None:
            future.complete_exceptionally(error)
