"""What a micro-batch job shows of itself: its batches in the place of checkpoints, and metrics over all of them."""

from __future__ import annotations

import pickle
from collections import deque

from tidegate.common.accumulators import dump, merge_all
from tidegate.common.ids import AttemptNumber, CheckpointId, SubtaskIndex, VertexId
from tidegate.common.metric_values import (
    BUSY_MS,
    IDLE_MS,
    NUM_RECORDS_IN,
    NUM_RECORDS_IN_RATE,
    NUM_RECORDS_OUT,
    NUM_RECORDS_OUT_RATE,
    NUM_RECORDS_SEND,
    NUM_RECORDS_SEND_RATE,
    CounterValue,
    GaugeValue,
    MeterValue,
    MetricReport,
    MetricValue,
    added,
)
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
        self._forgotten_restore_ms = 0.0
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
        if len(self._restores) == _RESTORES:
            self._forgotten_restore_ms = self._restores[0].at_ms
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
            forgotten_restore_ms=self._forgotten_restore_ms,
            summary=summary,
        )


class Totals:
    """Metrics and accumulators over all batches. `add` is the mutator."""

    def __init__(self) -> None:
        self._metrics: dict[tuple[int, int, str, str, tuple[str, ...]], MetricReport] = {}
        self._accumulators = b""
        self._added_ms: float | None = None

    def add(self, report: BatchReport, began_ms: float, now_ms: float) -> None:
        """Rates and shares are over the time since the batch before, the pause between them included; `began_ms` of
        this batch counts for the first."""
        passed = max(1.0, now_ms - (began_ms if self._added_ms is None else self._added_ms))
        self._added_ms = now_ms
        for task in report.tasks:
            busy = round(min(1000.0, task.took_ms * 1000 / passed), 1)
            own: dict[str, MetricValue] = {
                NUM_RECORDS_IN: CounterValue(task.records_in),
                NUM_RECORDS_OUT: CounterValue(task.records_out),
                NUM_RECORDS_IN_RATE: MeterValue(task.records_in, task.records_in * 1000 / passed),
                NUM_RECORDS_OUT_RATE: MeterValue(task.records_out, task.records_out * 1000 / passed),
                BUSY_MS: GaugeValue(busy),
                IDLE_MS: GaugeValue(round(1000.0 - busy, 1)),
            }
            if task.given is not None:
                own[NUM_RECORDS_SEND] = CounterValue(task.given)
                own[NUM_RECORDS_SEND_RATE] = MeterValue(task.given, task.given * 1000 / passed)
            for name, value in own.items():
                self._count(MetricReport(task.vertex, task.subtask, name, value), passed)
            for metric in task.metrics:
                self._count(metric, passed)
        new = [task.accumulators for task in report.tasks if task.accumulators]
        if new:
            parts = [found for part in (self._accumulators, *new) if part for found in pickle.loads(part)]
            self._accumulators = dump([merge_all(parts)])

    def _count(self, metric: MetricReport, passed_ms: float) -> None:
        """Functions begin anew with every batch: what can be added up is, of gauges the latest one counts."""
        key = metric.vertex, metric.subtask, metric.name, metric.operator, metric.scope
        value, before = metric.value, self._metrics.get(key)
        if isinstance(value, MeterValue):  # the functions' own rate is that of a batch, without what is between them
            value = MeterValue(value.count, value.count * 1000 / passed_ms)
            if before is not None and isinstance(before.value, MeterValue):
                value = MeterValue(before.value.count + value.count, value.rate)
        elif before is not None:
            value = added(before.value, value) or value
        self._metrics[key] = MetricReport(
            metric.vertex, metric.subtask, metric.name, value, metric.operator, metric.scope
        )

    def metrics(self) -> tuple[MetricReport, ...]:
        return tuple(self._metrics.values())

    def accumulators(self) -> tuple[bytes, ...]:
        return (self._accumulators,) if self._accumulators else ()
