"""Jobs as Prometheus text. Names are Flink's behind `tidegate_job_`, `tidegate_task_` and `tidegate_operator_`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tidegate.common.metric_values import CounterValue, GaugeValue, HistogramValue, MeterValue, MetricReport
from tidegate.fault_tolerance.barriers.statistics import CheckpointStatus
from tidegate.jobmanager.job_view import JobView
from tidegate.web.documents import downtime_ms

CONTENT_TYPE = CONTENT_TYPE_LATEST
_JOB = ["job_id", "job_name"]
_TASK = [*_JOB, "vertex", "vertex_name", "subtask"]
_OPERATOR = [*_TASK, "operator", "group"]


class _Families:
    """Collects samples under one family per name and kind; `collect` is what prometheus_client asks for."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def add(self, kind: Any, name: str, labels: list[str], values: list[str], *numbers: float) -> None:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(name, name.rpartition("_")[2], labels=labels)
        elif type(family) is not kind:  # two operators use one name for different kinds: the first has it
            return
        family.add_metric(values, *numbers)

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def text(views: Iterable[JobView], now_ms: float) -> bytes:
    families = _Families()
    for view in views:
        _add_job(families, view, now_ms)
        names = {v.vertex: v.name for v in view.vertices}
        for metric in view.metrics:
            _add(families, view, names.get(metric.vertex, ""), metric)
    return generate_latest(families)


def _add_job(families: _Families, view: JobView, now_ms: float) -> None:
    labels = [view.job_id, view.name]

    def gauge(name: str, number: float | None) -> None:
        if number is not None:
            families.add(GaugeMetricFamily, f"tidegate_job_{name}", _JOB, labels, number)

    gauge("running", float(view.status_name == "RUNNING"))
    gauge("uptime", (now_ms if view.ended_ms is None else view.ended_ms) - view.started_ms)
    gauge("downtime", downtime_ms(view, now_ms))
    gauge("numRestarts", view.attempt)
    gauge("numberOfCompletedCheckpoints", view.checkpoints.completed)
    gauge("numberOfFailedCheckpoints", view.checkpoints.failed)
    gauge("numberOfInProgressCheckpoints", view.checkpoints.in_progress)
    completed = [c for c in view.checkpoints.history if c.status is CheckpointStatus.COMPLETED]
    if completed:
        last = completed[-1]
        gauge("lastCompletedCheckpointId", last.checkpoint_id)
        gauge("lastCheckpointDuration", last.duration_ms)
        gauge("lastCheckpointSize", last.state_bytes)
        gauge("lastCheckpointFullSize", last.full_bytes)
        gauge("lastCheckpointPersistedData", last.inflight_bytes)
        gauge("lastCheckpointCompletedTimestamp", last.ended_ms)


def _add(families: _Families, view: JobView, vertex_name: str, metric: MetricReport) -> None:
    values = [view.job_id, view.name, str(metric.vertex), vertex_name, str(metric.subtask)]
    labels, prefix = _TASK, "tidegate_task_"
    if metric.operator:
        labels, prefix = _OPERATOR, "tidegate_operator_"
        values += [metric.scope[0] if metric.scope else "", ".".join(metric.scope[2:])]
    name = prefix + metric.name
    match metric.value:
        case CounterValue(count):
            families.add(CounterMetricFamily, name, labels, values, count)
        case GaugeValue(value):
            families.add(GaugeMetricFamily, name, labels, values, math.nan if value is None else value)
        case MeterValue(_, rate):
            families.add(GaugeMetricFamily, name, labels, values, rate)
        case HistogramValue(count, total):
            families.add(SummaryMetricFamily, name, labels, values, count, total)
