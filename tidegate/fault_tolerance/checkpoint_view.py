"""The checkpoints of a job as its view shows them."""

from __future__ import annotations

import msgspec

from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind
from tidegate.fault_tolerance.barriers.statistics import CheckpointRecord, CheckpointStats, CheckpointStatus, Spread
from tidegate.storage.handles import SnapshotMetrics


class SubtaskCheckpoint(msgspec.Struct, frozen=True, gc=False, kw_only=True):  # see `storage.handles`
    """What one subtask has said of its part."""

    vertex: VertexId
    subtask: SubtaskIndex
    acknowledged_ms: float
    end_to_end_ms: float  # from the trigger to the acknowledgement
    end_of_data: bool
    metrics: SnapshotMetrics


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. Sums and maxima are over the subtasks that have acknowledged."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    attempt: AttemptNumber
    status: CheckpointStatus
    triggered_ms: float
    ended_ms: float | None
    duration_ms: float | None
    reason_name: str | None = msgspec.field(name="reason")
    detail: str
    tasks: int  # that have to acknowledge
    acknowledged: tuple[SubtaskCheckpoint, ...]  # in the order in which they came
    state_bytes: int
    full_bytes: int
    inflight_bytes: int
    processed_during_alignment: int
    alignment_ms: float
    sync_ms: float
    async_ms: float
    unaligned: bool

    @property
    def reason(self) -> CheckpointFailureReason | None:
        """Why it failed."""
        return None if self.reason_name is None else CheckpointFailureReason[self.reason_name]

    @property
    def subtasks(self) -> dict[tuple[VertexId, SubtaskIndex], SubtaskCheckpoint]:
        return {(part.vertex, part.subtask): part for part in self.acknowledged}


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt was started from a checkpoint."""

    checkpoint_id: CheckpointId
    at_ms: float  # since the epoch


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over all completed checkpoints."""

    minimum: float
    average: float
    maximum: float


class CheckpointsView(msgspec.Struct, frozen=True, kw_only=True):
    """All checkpoints of a job: counts over its whole life, details of the latest ones."""

    completed: int = 0
    failed: int = 0
    in_progress: int = 0
    restored: int = 0
    failures_by_reason: dict[str, int] = {}  # name of the reason -> how often
    history: tuple[CheckpointView, ...] = ()  # `tidegate.checkpoint.history-size` of them, oldest first
    restores: tuple[Restore, ...] = ()  # the latest ones, oldest first
    forgotten_restore_ms: float = 0.0  # when the one before these was; 0.0: there was none
    summary: dict[str, Range] = {}  # by the name of a field of CheckpointView; empty before the first one is completed
    older_completed: CheckpointView | None = None  # the latest completed one, when the history has none any more

    @property
    def latest_completed(self) -> CheckpointView | None:
        """None: there was none."""
        completed = (c for c in reversed(self.history) if c.status is CheckpointStatus.COMPLETED)
        return next(completed, self.older_completed)


class CheckpointViews:
    """Makes the view of a coordinator's statistics again and again. Checkpoints that have ended do not change any more
    and are made once, so a step costs what the ones in progress cost, and one look at each of the history."""

    def __init__(self) -> None:
        self._ended: dict[CheckpointId, CheckpointView] = {}  # of the history
        self._older: CheckpointView | None = None  # the latest one of `older_completed`

    def of(self, stats: CheckpointStats) -> CheckpointsView:
        known, self._ended = self._ended, {}
        history: list[CheckpointView] = []
        for record in stats.history:
            view = known.get(record.checkpoint_id) or _view_of(record)
            if view.ended_ms is not None:
                self._ended[record.checkpoint_id] = view
            history.append(view)
        latest = stats.latest_completed
        older = None
        if latest is not None and latest.checkpoint_id not in self._ended:
            older = self._older = known.get(latest.checkpoint_id) or self._known_older(latest)
        return CheckpointsView(
            older_completed=older,
            completed=stats.completed,
            failed=stats.failed,
            in_progress=len(history) - len(self._ended),
            restored=stats.restores,
            failures_by_reason={reason.name: count for reason, count in stats.failures_by_reason.items()},
            history=tuple(history),
            restores=tuple(Restore(checkpoint_id=n, at_ms=at) for n, at in stats.restored),
            forgotten_restore_ms=stats.forgotten_restore_ms,
            summary={name: _range_of(spread) for name, spread in stats.summary.items() if spread.count},
        )

    def _known_older(self, record: CheckpointRecord) -> CheckpointView:
        older = self._older
        return older if older is not None and older.checkpoint_id == record.checkpoint_id else _view_of(record)


def _view_of(record: CheckpointRecord) -> CheckpointView:
    return CheckpointView(
        checkpoint_id=record.checkpoint_id,
        kind=record.kind,
        attempt=record.attempt,
        status=record.status,
        triggered_ms=record.triggered_ms,
        ended_ms=record.ended_ms,
        duration_ms=record.duration_ms,
        reason_name=None if record.reason is None else record.reason.name,
        detail=record.detail,
        tasks=record.tasks,
        acknowledged=tuple(
            SubtaskCheckpoint(
                vertex=vertex,
                subtask=subtask,
                acknowledged_ms=part.acknowledged_ms,
                end_to_end_ms=part.end_to_end_ms,
                end_of_data=part.end_of_data,
                metrics=part.metrics,
            )
            for (vertex, subtask), part in record.subtasks.items()
        ),
        state_bytes=record.state_bytes,
        full_bytes=record.full_bytes,
        inflight_bytes=record.inflight_bytes,
        processed_during_alignment=record.processed_during_alignment,
        alignment_ms=record.alignment_ms,
        sync_ms=record.sync_ms,
        async_ms=record.async_ms,
        unaligned=record.unaligned,
    )


def _range_of(spread: Spread) -> Range:
    return Range(minimum=spread.minimum, average=spread.average, maximum=spread.maximum)
