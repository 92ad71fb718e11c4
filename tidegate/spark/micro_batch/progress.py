"""What a micro-batch job shows of itself: its batches in the place of checkpoints, and metrics over all of them."""

from __future__ import annotations

import pickle
from collections import deque

from tidegate.common.accumulators import dump, merge_all
from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.common.metric_values import NUM_RECORDS_IN, NUM_RECORDS_OUT, CounterValue, MetricReport
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind
from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus
from tidegate.fault_tolerance.checkpoint_view import (
    CheckpointsView,
    CheckpointView,
    Range,
    Restore,
    SubtaskCheckpoint,
)
from tidegate.spark.micro_batch.report import BatchReport
from tidegate.storage.handles import SnapshotMetrics

_RESTORES = 10


class Batches:
    """The batches that were committed. `add` and `restored` are the mutators."""

    def __init__(self, kept: int) -> None:
        self._history: deque[CheckpointView] = deque(maxlen=max(1, kept))
        self._restores: deque[Restore] = deque(maxlen=_RESTORES)
        self._completed = 0
        self._restored = 0
        self._durations = [float("inf"), 0.0, 0.0]  # the shortest, their sum, the longest

    def add(
        self, report: BatchReport, attempt: AttemptNumber, savepoint: bool, started_ms: float, now_ms: float
    ) -> None:
        took = now_ms - started_ms
        parts = tuple(
            SubtaskCheckpoint(
                vertex=VertexId(task.vertex),
                subtask=SubtaskIndex(task.subtask),
                acknowledged_ms=now_ms,
                end_to_end_ms=took,
                end_of_data=task.ended,
                metrics=SnapshotMetrics(
                    sync_ms=task.took_ms, state_bytes=task.state_bytes, full_bytes=task.state_bytes
                ),
            )
            for task in report.tasks
        )
        self._completed += 1
        shortest, total, longest = self._durations
        self._durations = [min(shortest, took), total + took, max(longest, took)]
        self._history.append(
            CheckpointView(
                checkpoint_id=CheckpointId(report.batch + 1),
                kind=CheckpointKind.SAVEPOINT if savepoint else CheckpointKind.PERIODIC,
                attempt=attempt,
                status=CheckpointStatus.COMPLETED,
                triggered_ms=started_ms,
                ended_ms=now_ms,
                duration_ms=took,
                reason_name=None,
                detail="",
                tasks=len(parts),
                acknowledged=parts,
                state_bytes=report.state_bytes,
                full_bytes=report.state_bytes,
                inflight_bytes=0,
                processed_during_alignment=0,
                alignment_ms=0.0,
                sync_ms=max((task.took_ms for task in report.tasks), default=0.0),
                async_ms=0.0,
                unaligned=False,
            )
        )

    def restored(self, latest_batch: int, now_ms: float) -> None:
        """An attempt goes on after this batch."""
        self._restored += 1
        self._restores.append(Restore(checkpoint_id=CheckpointId(latest_batch + 1), at_ms=now_ms))

    def view(self) -> CheckpointsView:
        summary = {}
        if self._completed:
            shortest, total, longest = self._durations
            summary["duration_ms"] = Range(minimum=shortest, average=total / self._completed, maximum=longest)
        return CheckpointsView(
            completed=self._completed,
            restored=self._restored,
            history=tuple(self._history),
            restores=tuple(self._restores),
            summary=summary,
        )


class Totals:
    """Metrics and accumulators over all batches. `add` is the mutator."""

    def __init__(self) -> None:
        self._metrics: dict[tuple[int, int, str, str, tuple[str, ...]], MetricReport] = {}
        self._accumulators = b""

    def add(self, report: BatchReport) -> None:
        for task in report.tasks:
            self._count(MetricReport(task.vertex, task.subtask, NUM_RECORDS_IN, CounterValue(task.records_in)))
            self._count(MetricReport(task.vertex, task.subtask, NUM_RECORDS_OUT, CounterValue(task.records_out)))
            for metric in task.metrics:
                self._count(metric)
        new = [task.accumulators for task in report.tasks if task.accumulators]
        if new:
            parts = [found for part in (self._accumulators, *new) if part for found in pickle.loads(part)]
            self._accumulators = dump([merge_all(parts)])

    def _count(self, metric: MetricReport) -> None:
        """Functions begin anew with every batch: counters are added up, of the others the latest one counts."""
        key = metric.vertex, metric.subtask, metric.name, metric.operator, metric.scope
        before = self._metrics.get(key)
        if before is not None and isinstance(before.value, CounterValue) and isinstance(metric.value, CounterValue):
            value = CounterValue(before.value.count + metric.value.count)
            metric = MetricReport(metric.vertex, metric.subtask, metric.name, value, metric.operator, metric.scope)
        self._metrics[key] = metric

    def metrics(self) -> tuple[MetricReport, ...]:
        return tuple(self._metrics.values())

    def accumulators(self) -> tuple[bytes, ...]:
        return (self._accumulators,) if self._accumulators else ()
