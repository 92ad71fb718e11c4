"""When the next checkpoint is triggered: interval, minimum pause, maximum of concurrent ones, and requests of users.

Order: what a user asked for, then the last checkpoint of a job at its end, then the periodic one. Only the periodic one
keeps the minimum pause. Once the last one is due there are no periodic ones any more.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass

from tidegate.common.errors import check_internal
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings

_MAX_QUEUED = 100
_FINAL_RETRY_MS = 1_000.0


class CheckpointKind(enum.Enum):
    PERIODIC = "periodic"
    USER = "user"  # a checkpoint that a user asked for
    SAVEPOINT = "savepoint"  # the same, full and self-contained, owned by the user
    FINAL = "final"  # all tasks are at the end of their data


class Queueing(enum.Enum):
    QUEUED = "queued"
    NOT_RUNNING = "not running"  # no attempt is running: ask again later
    QUEUE_FULL = "queue full"


@dataclass(frozen=True)
class CheckpointRequest:
    kind: CheckpointKind
    request_id: int | None = None  # of the user's request
    target: str = ""  # savepoints: URI of the folder that gets it
    stop: bool = False  # the job stops with it


class RequestDecider:
    """`take` hands out the next request when its time has come; the other methods tell what has happened."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._interval = settings.interval_ms
        self._min_pause = settings.min_pause_ms
        # A pause between two checkpoints leaves no room for a second one beside the first.
        self._max_concurrent = 1 if settings.min_pause_ms > 0 else settings.max_concurrent
        self._after_tasks_finish = settings.after_tasks_finish
        self._final_retry = min(settings.interval_ms, _FINAL_RETRY_MS)
        self._running = False
        self._queue: deque[CheckpointRequest] = deque()  # users' requests in order, at most _MAX_QUEUED
        self._next_periodic = 0.0
        self._pause_until = 0.0
        self._final_at: float | None = None  # set from the end of data until the final one is triggered
        self._at_end = False  # all tasks are at the end of their data: no periodic ones any more
        self._paused = False  # some are, and that is enough to stop the periodic ones
        self._stopping = False  # a savepoint to stop with is under way: nothing may come behind it
        self._draining = False  # the sources were told to end: nothing but the savepoint after that

    def on_running(self, now_ms: float) -> None:
        self._running = True
        self._next_periodic = now_ms + self._interval
        self._pause_until = 0.0
        self._final_at = None
        self._at_end = False
        self._paused = False
        self._stopping = False
        self._draining = False

    def on_stopped(self) -> list[CheckpointRequest]:
        """No checkpoints until the next `on_running`. Returns the users' requests that will not be served."""
        self._running = False
        self._final_at = None
        unserved = list(self._queue)
        self._queue.clear()
        return unserved

    def request(self, request: CheckpointRequest) -> Queueing:
        if not self._running:
            return Queueing.NOT_RUNNING
        if len(self._queue) >= _MAX_QUEUED:
            return Queueing.QUEUE_FULL
        self._queue.append(request)
        return Queueing.QUEUED

    @property
    def stop_queued(self) -> bool:
        """A savepoint to stop with waits for its turn."""
        return any(request.stop for request in self._queue)

    def on_wanted(self, now_ms: float) -> None:
        """The next periodic one should come now rather than at its time; the minimum pause is kept. Without an interval
        there are none."""
        if self._interval != math.inf:
            self._next_periodic = min(self._next_periodic, now_ms)

    def on_draining(self) -> None:
        """No more checkpoints: they would hold what was only made because the sources were told to end."""
        self._draining = True

    def on_drained(self, savepoint: CheckpointRequest) -> None:
        """All tasks are at their end: now the savepoint, before everything else."""
        self._draining = False
        self._at_end = True
        self._queue.appendleft(savepoint)

    def on_stop_failed(self) -> None:
        """The savepoint to stop with has failed: the job goes on."""
        self._stopping = False

    def on_task_end_of_data(self) -> None:
        """One more task is at the end of its data."""
        self._paused = not self._after_tasks_finish

    def on_all_end_of_data(self, now_ms: float) -> None:
        self._at_end = True
        self._final_at = now_ms

    def on_checkpoint_ended(self, now_ms: float) -> None:
        self._pause_until = now_ms + self._min_pause

    def on_final_failed(self, now_ms: float) -> None:
        if self._at_end:
            self._final_at = now_ms + self._final_retry

    def take(self, now_ms: float, in_progress: int) -> CheckpointRequest | None:
        """The checkpoint to trigger now, if any. Call again until None."""
        if not self._may_trigger(in_progress):
            return None
        if self._queue:
            request = self._queue.popleft()
            self._stopping = request.stop
            return request
        if self._at_end:
            if self._final_at is None or now_ms < self._final_at:
                return None
            self._final_at = None
            return CheckpointRequest(CheckpointKind.FINAL)
        if self._paused or now_ms < self._next_periodic or now_ms < self._pause_until:
            return None
        following = self._next_periodic + self._interval
        self._next_periodic = following if following > now_ms else now_ms + self._interval
        return CheckpointRequest(CheckpointKind.PERIODIC)

    def next_deadline(self, in_progress: int) -> float | None:
        """When `take` may hand out something, unless an event comes first."""
        if not self._may_trigger(in_progress):
            return None
        if self._at_end:
            return self._final_at
        due = max(self._next_periodic, self._pause_until)
        return None if self._paused or due == math.inf else due

    def _may_trigger(self, in_progress: int) -> bool:
        blocked = self._stopping or self._draining
        return self._running and not blocked and in_progress < self._max_concurrent

    def check_invariants(self) -> None:
        check_internal(len(self._queue) <= _MAX_QUEUED + 1, "too many queued checkpoint requests")
        check_internal(self._final_at is None or self._at_end, "a final checkpoint is due before the end of data")
