"""Savepoints of a micro-batch job: those that somebody waits for, and how one is completed. Taken at the end of a batch
in which the sources read nothing; complete when the batch is committed by Spark and by the sinks.

Whatever talks to the storage of a savepoint is done on threads of its own (`StorageThreads`): a store that hangs holds
up neither who asks nor the batches. A request is first looked at (can anything be written there?), then waits for its
batch, is under way with it, and is completed beside the batches after it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidegate.common import options
from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId
from tidegate.fault_tolerance.barriers.pending_checkpoint import PendingCheckpoint
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind, CheckpointRequest
from tidegate.graph.job_graph import JobGraph
from tidegate.spark.batch.job_savepoint import delete_strays
from tidegate.spark.micro_batch.report import BatchReport
from tidegate.spark.micro_batch.savepoint_storage import SavepointStorage
from tidegate.state.savepoint.format import new_savepoint, write_savepoint_metadata
from tidegate.storage.files import Files
from tidegate.storage.handles import EnumeratorState
from tidegate.storage.job_directory import METADATA_NAME
from tidegate.storage.workers import WARN_AFTER_S, StorageThreads

log = logging.getLogger("tidegate.micro_batch")

_MOST_OPEN = 16
_CLOSE_S = 10.0  # patience of the end of a job, with a storage in which nothing moves
_LOOK_S = 0.1


@dataclass(eq=False)
class SavepointRequest:
    stop: bool
    drain: bool
    target: str = ""  # URI of the folder, once that is known
    future: CompletableFuture[str] = field(default_factory=CompletableFuture)


class SavepointRequests:
    """`request` from any thread; the rest from the job's. `wake` tells the job that there is something to do.
    `close`, then `job_over`, at the end."""

    def __init__(
        self,
        job_id: str,
        default_directory: str | None,
        storage: SavepointStorage,
        timeout_ms: float,
        wake: Callable[[], None],
    ) -> None:
        """`timeout_ms`: how long a stop waits for its savepoint to be completed."""
        self._job_id = job_id
        self._default_directory = default_directory
        self.storage = storage
        self._timeout_s = timeout_ms / 1000
        self._wake = wake
        self._threads = StorageThreads("savepoints", warn_after_s=WARN_AFTER_S)
        self._lock = threading.Lock()  # guards what follows
        self._open: list[SavepointRequest] = []  # without an answer, the oldest first
        self._waiting: list[SavepointRequest] = []  # of these: for a batch
        self._under_way: SavepointRequest | None = None  # goes with the batch that is allowed
        self._completing = 0
        self._completed = 0
        self._over = ""  # why no request can be served any more

    def request(self, directory: str | None, stop: bool = False, drain: bool = False) -> CompletableFuture[str]:
        """Returns at once."""
        where = directory or self._default_directory
        if not where:
            return CompletableFuture.failed(
                ConfigurationError(
                    "no folder was given for the savepoint: name one, or set execution.checkpointing.savepoint-dir"
                )
            )
        try:
            self.storage.check_keys(where)
        except Exception as error:
            return CompletableFuture.failed(error)
        made = SavepointRequest(stop, drain)
        with self._lock:
            if self._over:
                return CompletableFuture.failed(SnapshotError(self._over))
            if len(self._open) == _MOST_OPEN:
                return CompletableFuture.failed(SnapshotError(f"{_MOST_OPEN} savepoints are waited for already"))
            self._open.append(made)
        if not self._threads.look("looking at the folder for a savepoint", lambda: self._look(made, where)):
            self._fail(made, SnapshotError("the job has ended"))
        return made.future

    def _look(self, request: SavepointRequest, directory: str) -> None:
        try:
            target = new_savepoint(self.storage.files, directory, self._job_id)
        except Exception as error:
            self._fail(request, error)
            return
        with self._lock:
            request.target = target
            if request in self._open:
                self._waiting.append(request)
        self._wake()

    # ------------------------------------------------------------ with a batch
    def take(self) -> SavepointRequest | None:
        """The one for the next batch. It is under way until `complete` or `failed`."""
        with self._lock:
            if self._under_way is None and self._waiting:
                self._under_way = self._waiting.pop(0)
            return self._under_way

    @property
    def any_waits(self) -> bool:
        """`take` would give one."""
        return self._under_way is not None or bool(self._waiting)

    @property
    def under_way(self) -> SavepointRequest | None:
        return self._under_way

    def failed(self, error: BaseException, target: str) -> None:
        """Nothing if it is another one that is under way."""
        request = self._under_way
        if request is not None and request.target == target:
            self._under_way = None
            self._fail(request, error)

    # ------------------------------------------------------------ after its batch
    def complete(self, target: str, write: Callable[[Files], None]) -> CompletableFuture[None]:
        """Has its metadata written, which `write` does, and whoever has asked for it told. Returns at once."""
        with self._lock:
            request = self._under_way
            if request is not None and request.target == target:
                self._under_way = None
            else:  # it was asked of a driver before this one
                request = SavepointRequest(stop=False, drain=True, target=target)
            self._completing += 1
        done: CompletableFuture[None] = CompletableFuture()

        def work() -> None:
            try:
                write(self.storage.files(target))
            except Exception as error:
                self._written(False)
                self._fail(request, error)
                done.complete_exceptionally(error)
            else:
                self._written(True)
                self._answered(request)
                request.future.complete(target)
                done.complete(None)

        if not self._threads.write_savepoint(f"completing savepoint {target}", work, target):
            self._written(False)
            done.complete_exceptionally(SnapshotError("the job has ended"))
        return done

    def wait_for(self, done: CompletableFuture[None], target: str, cancelled: threading.Event) -> BaseException | None:
        """The error of what `complete` has returned, None without one, and when the job was cancelled meanwhile."""
        end = time.monotonic() + self._timeout_s
        while not cancelled.is_set():
            self.watch()
            with contextlib.suppress(TimeoutError):
                return done.exception(_LOOK_S)
            if time.monotonic() > end:
                error = SnapshotError(
                    f"savepoint {target} was not complete after {self._timeout_s:g} s "
                    f"({options.CHECKPOINT_TIMEOUT.key}): its storage does not answer"
                )
                for request in [one for one in self._open if one.target == target]:
                    self._fail(request, error)
                return error
        return None

    def discard(self, target: str) -> None:
        """What was written of one that nobody waits for. One that is complete stays."""
        files = self.storage.files(target)

        def work() -> None:
            try:
                if files.size(METADATA_NAME) is None:
                    files.delete_directory("")
            except SnapshotError as error:
                log.warning("what there is of savepoint %s, which is not complete, is left behind: %s", target, error)

        self._threads.delete(f"deleting what there is of savepoint {target}", work, [target])

    @property
    def may_exist(self) -> bool:
        """A savepoint of this run of the job."""
        return self._completed + self._completing > 0

    # ------------------------------------------------------------ at any time, and at the end
    def watch(self) -> None:
        """To be called every few seconds."""
        self._threads.watch()

    def close(self) -> None:
        """Waits for what is being written; not for ever. What the subtasks have written for a batch that does not count
        goes: whoever runs it again with the same order writes it anew."""
        if self._under_way is not None:
            self.discard(self._under_way.target)
        self._threads.close(lambda: None, _CLOSE_S)

    def job_over(self, status: str) -> None:
        with self._lock:
            self._over = f"the job is over ({status})"
            left, self._open = self._open, []
            self._waiting.clear()
            self._under_way = None
        for request in left:
            request.future.complete_exceptionally(SnapshotError(f"no savepoint was taken: {self._over}"))

    def _written(self, complete: bool) -> None:
        with self._lock:
            self._completing -= 1
            self._completed += complete

    def _answered(self, request: SavepointRequest) -> None:
        with self._lock:
            for known in (self._open, self._waiting):
                if request in known:
                    known.remove(request)

    def _fail(self, request: SavepointRequest, error: BaseException) -> None:
        self._answered(request)
        request.future.complete_exceptionally(error)


def complete_savepoint(
    files: Files,
    target: str,
    graph: JobGraph,
    report: BatchReport,
    now_ms: float,
    known: Mapping[OperatorId, EnumeratorState] | None = None,
) -> None:
    """Write the metadata, which makes it a savepoint, when all is there and nothing else is. SnapshotError, and nothing
    is left, when a subtask could not write its part. `known`: the splits of sources that find them."""
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
