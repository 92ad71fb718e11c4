"""Jobs as Prometheus text. Names are Flink's behind `tidegate_job_`, `tidegate_task_` and `tidegate_operator_`.

Counters of tasks are counters. Those of functions are gauges, as with Flink's reporter: they have a `dec()`, and to
Prometheus a counter that goes down was set back. A meter is its rate, and that of a function `_count` too; what a
distribution keeps is a summary without quantiles, with `_min`, `_max` and `_mean` beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from tidegate.common.metric_values import (
    BACK_PRESSURED_MS,
    BUSY_MS,
    IDLE_MS,
    INPUT_QUEUE,
    INPUT_WATERMARK,
    NUM_BYTES_IN,
    NUM_BYTES_OUT,
    NUM_RECORDS_IN,
    NUM_RECORDS_IN_RATE,
    NUM_RECORDS_OUT,
    NUM_RECORDS_OUT_RATE,
    NUM_RECORDS_SEND,
    NUM_RECORDS_SEND_RATE,
    OUTPUT_QUEUE,
    PENDING_RECORDS,
    SOURCE_PROGRESS,
    WATERMARK_LAG,
    CounterValue,
    GaugeValue,
    HistogramValue,
    MeterValue,
    MetricReport,
)
from tidegate.jobmanager.job_view import JobView
from tidegate.web.documents import job_figures
from tidegate.web.jobs import SilentJob

CONTENT_TYPE = CONTENT_TYPE_LATEST
_JOB = ["job_id", "job_name"]
_TASK = [*_JOB, "vertex", "vertex_name", "subtask"]
_OPERATOR = [*_TASK, "operator", "group"]


# What the names mean, with their units; a user's metric has nothing but its name.
_TEXTS = {
    "answers": "1 while the job's own port answers; 0: its process is stopped or overloaded, or of another version",
    "running": "1 while the job runs",
    "uptime": "ms that the job has been running without interruption; 0: it does not run, -1: it has ended",
    "downtime": "ms since the job stopped running in this outage; 0: it runs, or has not run yet, -1: it has ended",
    "duration": "ms since the job was started",
    "totalDowntime": "ms that the job was not running since it first ran, all outages together",
    "numRestarts": "how often the job was started again",
    "numberOfCompletedCheckpoints": "checkpoints and savepoints that were completed",
    "numberOfFailedCheckpoints": "checkpoints and savepoints that have failed",
    "numberOfInProgressCheckpoints": "checkpoints and savepoints under way",
    "lastCompletedCheckpointId": "number of the latest completed checkpoint",
    "lastCheckpointDuration": "ms from its trigger to its completion",
    "lastCheckpointSize": "bytes that it has written",
    "lastCheckpointFullSize": "bytes that it refers to",
    "lastCheckpointPersistedData": "bytes of records in flight that it contains",
    "lastCheckpointCompletedTimestamp": "ms since the epoch",
    NUM_RECORDS_IN: "records that the task has read",
    NUM_RECORDS_OUT: "records to other tasks",
    NUM_RECORDS_IN_RATE: "records read per second",
    NUM_RECORDS_OUT_RATE: "records to other tasks per second",
    NUM_BYTES_IN: "bytes from other slots",
    NUM_BYTES_OUT: "bytes to other slots",
    BUSY_MS: "ms of each second with work",
    BACK_PRESSURED_MS: "ms of each second held up by full outputs",
    IDLE_MS: "ms of each second with neither",
    INPUT_WATERMARK: "event time, ms since the epoch",
    PENDING_RECORDS: "records that wait outside the source",
    WATERMARK_LAG: "ms that event time is behind the clock",
    SOURCE_PROGRESS: "share of a bounded input that was read",
    INPUT_QUEUE: "batches that wait for the task",
    OUTPUT_QUEUE: "batches that wait to be sent",
    NUM_RECORDS_SEND: "records that the sinks of the task were given",
    NUM_RECORDS_SEND_RATE: "records per second that the sinks of the task were given",
}
_ENDINGS: dict[Any, tuple[str, ...]] = {
    CounterMetricFamily: ("", "_total", "_created"),
    GaugeMetricFamily: ("",),
    SummaryMetricFamily: ("", "_count", "_sum", "_created"),
}


class _Families:
    """Collects samples under one family per name and kind; `collect` is what prometheus_client asks for."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._names: dict[str, str] = {}  # by a name in the text the family that has it
        self._series: set[tuple[str, ...]] = set()  # that are there: family and labels

    def add(self, kind: Any, name: str, labels: list[str], values: list[str], *numbers: float) -> None:
        """Users name their metrics. Where two names are one to Prometheus, or one is wanted for two kinds, the first
        has it: a series may be there once."""
        name = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        family = self._families.get(name)
        if family is None:
            shown = [name + ending for ending in _ENDINGS[kind]]
            if any(other in self._names for other in shown):
                return
            self._names |= dict.fromkeys(shown, name)
            own = name.rpartition("_")[2]
            family = self._families[name] = kind(name, _TEXTS.get(own, own), labels=labels)
        series = (name, *values)
        if type(family) is kind and series not in self._series:
            self._series.add(series)
            family.add_metric(values, *numbers)

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


def text(jobs: Iterable[JobView | SilentJob], now_ms: float) -> bytes:
    families = _Families()
    for view in jobs:
        answers = not isinstance(view, SilentJob)
        families.add(GaugeMetricFamily, "tidegate_job_answers", _JOB, [view.job_id, view.name], float(answers))
        if isinstance(view, SilentJob):
            continue
        _add_job(families, view, now_ms)
        names, operators = {v.vertex: v.name for v in view.vertices}, view.operator_names()
        for metric in view.metrics:
            _add(families, view, names.get(metric.vertex, ""), operators, metric)
    return generate_latest(families)


def _add_job(families: _Families, view: JobView, now_ms: float) -> None:
    for name, number in job_figures(view, now_ms).items():
        families.add(GaugeMetricFamily, f"tidegate_job_{name}", _JOB, [view.job_id, view.name], number)


def _add(families: _Families, view: JobView, vertex_name: str, operators: dict[str, str], metric: MetricReport) -> None:
    values = [view.job_id, view.name, str(metric.vertex), vertex_name, str(metric.subtask)]
    labels, prefix = _TASK, "tidegate_task_"
    if metric.operator:
        labels, prefix = _OPERATOR, "tidegate_operator_"
        values += [operators.get(metric.operator, ""), ".".join(metric.scope[2:])]
    name = prefix + metric.name

    def gauge(number: float, ending: str = "") -> None:
        families.add(GaugeMetricFamily, name + ending, labels, values, number)

    match metric.value:
        case CounterValue(count) if metric.operator:  # functions may count down
            gauge(count)
        case CounterValue(count):
            families.add(CounterMetricFamily, name, labels, values, count)
        case GaugeValue(value):
            gauge(math.nan if value is None else value)
        case MeterValue(count, rate):
            gauge(rate)
            if metric.operator:  # a task has a counter besides
                gauge(count, "_count")
        case HistogramValue(count, total, minimum, maximum):
            families.add(SummaryMetricFamily, name, labels, values, count, total)
            if minimum is not None and maximum is not None:
                gauge(minimum, "_min")
                gauge(maximum, "_max")
                gauge(total / count, "_mean")
