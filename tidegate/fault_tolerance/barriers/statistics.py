"""Statistics of checkpoints for the page, the command line and tests: a bounded history and a summary of all."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

import msgspec

from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind
from tidegate.storage.handles import SnapshotMetrics, TaskSnapshot


class CheckpointStatus(enum.Enum):
    IN_PROGRESS = "in progress"
    COMPLETED = "completed"
    FAILED = "failed"


class SubtaskRecord(msgspec.Struct, frozen=True, gc=False):  # see `storage.handles`
    acknowledged_ms: float
    end_to_end_ms: float  # from the trigger to the acknowledgement
    end_of_data: bool
    metrics: SnapshotMetrics


@dataclass
class CheckpointRecord:
    """One checkpoint. Sums and maxima are over the subtasks that have acknowledged."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    attempt: AttemptNumber
    triggered_ms: float
    tasks: int  # that have to acknowledge
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    ended_ms: float | None = None
    reason: CheckpointFailureReason | None = None
    detail: str = ""
    subtasks: dict[tuple[VertexId, SubtaskIndex], SubtaskRecord] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float | None:
        return None if self.ended_ms is None else self.ended_ms - self.triggered_ms

    @property
    def state_bytes(self) -> int:
        return sum(s.metrics.state_bytes for s in self.subtasks.values())

    @property
    def full_bytes(self) -> int:
        return sum(s.metrics.full_bytes for s in self.subtasks.values())

    @property
    def inflight_bytes(self) -> int:
        return sum(s.metrics.inflight_bytes for s in self.subtasks.values())

    @property
    def processed_during_alignment(self) -> int:
        return sum(s.metrics.processed_during_alignment for s in self.subtasks.values())

    @property
    def alignment_ms(self) -> float:
        return max((s.metrics.alignment_ms for s in self.subtasks.values()), default=0.0)

    @property
    def sync_ms(self) -> float:
        return max((s.metrics.sync_ms for s in self.subtasks.values()), default=0.0)

    @property
    def async_ms(self) -> float:
        return max((s.metrics.async_ms for s in self.subtasks.values()), default=0.0)

    @property
    def unaligned(self) -> bool:
        return any(s.metrics.unaligned for s in self.subtasks.values())


@dataclass
class Spread:
    """Minimum, average and maximum of a figure over all completed checkpoints."""

    count: int = 0
    minimum: float = 0.0
    maximum: float = 0.0
    total: float = 0.0

    @property
    def average(self) -> float:
        return self.total / self.count if self.count else 0.0

    def add(self, value: float) -> None:
        self.minimum = value if not self.count else min(self.minimum, value)
        self.maximum = value if not self.count else max(self.maximum, value)
        self.total += value
        self.count += 1


_SUMMARISED = (
    "duration_ms",
    "alignment_ms",
    "sync_ms",
    "async_ms",
    "state_bytes",
    "full_bytes",
    "inflight_bytes",
    "processed_during_alignment",
)
_RESTORES = 20


class CheckpointStats:
    """The coordinator tells it what happens; everybody else only reads. Whatever fails meanwhile, and however often: a
    checkpoint in progress is known until it ends, the latest completed one until a newer one is completed."""

    def __init__(self, history_size: int) -> None:
        self._ended: deque[CheckpointRecord] = deque(maxlen=history_size)  # in the order of their ends
        self._in_progress: dict[CheckpointId, CheckpointRecord] = {}
        self.latest_completed: CheckpointRecord | None = None  # the newest by its id
        self.summary: dict[str, Spread] = {name: Spread() for name in _SUMMARISED}
        self.completed = 0
        self.failed = 0
        self.failures_by_reason: dict[CheckpointFailureReason, int] = {}
        self.restored: list[tuple[CheckpointId, float]] = []  # the latest restores: which and when, at most _RESTORES
        self.restores = 0
        self.forgotten_restore_ms = 0.0  # when the one before these was; 0.0: there was none

    @property
    def history(self) -> tuple[CheckpointRecord, ...]:
        """Those that ended last, and all that are in progress; oldest first."""
        return tuple(sorted((*self._ended, *self._in_progress.values()), key=lambda record: record.checkpoint_id))

    def on_triggered(self, record: CheckpointRecord) -> None:
        self._in_progress[record.checkpoint_id] = record

    def on_acknowledged(self, checkpoint_id: CheckpointId, snapshot: TaskSnapshot, now_ms: float) -> None:
        record = self._in_progress.get(checkpoint_id)
        if record is not None:
            record.subtasks[snapshot.vertex, snapshot.subtask] = SubtaskRecord(
                now_ms, now_ms - record.triggered_ms, snapshot.end_of_data, snapshot.metrics
            )

    def on_completed(self, checkpoint_id: CheckpointId, now_ms: float) -> None:
        self.completed += 1
        record = self._end(checkpoint_id)
        if record is not None:
            record.status, record.ended_ms = CheckpointStatus.COMPLETED, now_ms
            if self.latest_completed is None or self.latest_completed.checkpoint_id < checkpoint_id:
                self.latest_completed = record
            for name in _SUMMARISED:
                self.summary[name].add(float(getattr(record, name)))

    def on_failed(
        self, checkpoint_id: CheckpointId, reason: CheckpointFailureReason, detail: str, now_ms: float
    ) -> None:
        self.failed += 1
        self.failures_by_reason[reason] = self.failures_by_reason.get(reason, 0) + 1
        record = self._end(checkpoint_id)
        if record is not None:
            record.status, record.ended_ms = CheckpointStatus.FAILED, now_ms
            record.reason, record.detail = reason, detail

    def on_restored(self, checkpoint_id: CheckpointId, now_ms: float) -> None:
        self.restores += 1
        self.restored.append((checkpoint_id, now_ms))
        if len(self.restored) > _RESTORES:
            _, self.forgotten_restore_ms = self.restored.pop(0)

    def _end(self, checkpoint_id: CheckpointId) -> CheckpointRecord | None:
        record = self._in_progress.pop(checkpoint_id, None)
        if record is not None:
            self._ended.append(record)
        return record
