"""What can be seen of a job from outside while it runs: its workers, checkpoints, failures and status over time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from tidegate.common.accumulators import load_values
from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.statistics import CheckpointRecord
from tidegate.jobmanager.job_master import JobMaster
from tidegate.protocol.instructions import AttemptFailure
from tidegate.taskmanager.user_report import USER_METRIC

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
    attempt: AttemptNumber  # the latest that was submitted: for RESTARTING the one that has failed


@dataclass(frozen=True)
class Restore:
    """An attempt was started from a checkpoint."""

    checkpoint_id: CheckpointId
    at_ms: float  # since the epoch


class JobObserver:
    """Read from any thread; all results are copies. Only the JobManager's thread calls `gang_submitted` and
    `status_changed`, in the order in which the JobMaster has said so."""

    def __init__(self, master: JobMaster) -> None:
        self._master = master
        self._changes: deque[StatusChange] = deque(maxlen=_KEPT)
        self._submitted = AttemptNumber(0)

    def gang_submitted(self, attempt: AttemptNumber) -> None:
        self._submitted = attempt

    def status_changed(self, status: JobStatus, now_ms: float) -> None:
        # Not the JobMaster's attempt: it may be further than the instruction that is being carried out.
        self._changes.append(StatusChange(status, now_ms, self._submitted))

    def status(self) -> JobStatus:
        return self._master.status

    def attempt(self) -> AttemptNumber:
        return self._master.attempt

    def status_history(self) -> tuple[StatusChange, ...]:
        return tuple(self._changes)

    def workers(self) -> tuple[WorkerInfo, ...]:
        attempt = self._master.attempt
        return tuple(
            WorkerInfo(m.slot, m.host, m.pid, attempt, _records_in(m.metrics))
            for m in sorted(self._master.members, key=lambda m: m.slot)
        )

    def metrics(self) -> dict[str, float]:
        found = {}
        for member in sorted(self._master.members, key=lambda m: m.slot):
            for name, value in member.metrics.items():
                if name.startswith(USER_METRIC):
                    found[name.removeprefix(USER_METRIC)] = value
        return found

    def accumulators(self) -> dict[str, Any]:
        return load_values(m.accumulators for m in sorted(self._master.members, key=lambda m: m.slot))

    def failures(self) -> tuple[AttemptFailure, ...]:
        return self._master.failures

    def checkpoint_history(self) -> tuple[CheckpointRecord, ...]:
        return self._master.fault_tolerance.view().checkpoints

    def restores(self) -> tuple[Restore, ...]:
        return tuple(Restore(n, at) for n, at in self._master.fault_tolerance.view().restores)


def _records_in(metrics: dict[str, float]) -> int:
    return int(sum(v for name, v in metrics.items() if not name.startswith(USER_METRIC)))
