"""What can be seen of a job from outside while it runs: its workers, checkpoints, failures and status over time."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass

from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.jobmanager.checkpoint_stats import CheckpointRecord
from tidegate.jobmanager.instructions import AttemptFailure
from tidegate.jobmanager.job_master import JobMaster

_KEPT = 200


@dataclass(frozen=True)
class WorkerInfo:
    """A worker process of the current attempt."""

    slot: int
    host: str
    pid: int
    attempt: AttemptNumber
    records_in: int  # by all its tasks, as of its latest heartbeat


@dataclass(frozen=True)
class StatusChange:
    status: JobStatus
    at_ms: float  # since the epoch
    attempt: AttemptNumber


@dataclass(frozen=True)
class Restore:
    """An attempt was started from a checkpoint."""

    checkpoint_id: CheckpointId
    at_ms: float  # since the epoch


class JobObserver:
    """Read from any thread; all results are copies. Only the JobManager's thread calls `status_changed`."""

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._changes: deque[StatusChange] = deque(maxlen=_KEPT)

    def status_changed(self, status: JobStatus, now_ms: float) -> None:
        self._changes.append(StatusChange(status, now_ms, self._master.attempt))

    def status(self) -> JobStatus:
        return self._master.status

    def attempt(self) -> AttemptNumber:
        return self._master.attempt

    def status_history(self) -> tuple[StatusChange, ...]:
        return tuple(self._changes)

    def workers(self) -> tuple[WorkerInfo, ...]:
        attempt = self._master.attempt
        return tuple(
            WorkerInfo(m.slot, m.host, m.pid, attempt, int(sum(dict(m.metrics).values())))
            for m in sorted(self._master.members, key=lambda m: m.slot)
        )

    def failures(self) -> tuple[AttemptFailure, ...]:
        return self._master.failures

    def checkpoint_history(self) -> tuple[CheckpointRecord, ...]:
        coordinator = self._master.coordinator
        if coordinator is None:
            return ()
        return tuple(dataclasses.replace(r, subtasks=dict(r.subtasks)) for r in coordinator.stats.history)

    def restores(self) -> tuple[Restore, ...]:
        coordinator = self._master.coordinator
        return () if coordinator is None else tuple(Restore(n, at) for n, at in list(coordinator.stats.restored))
