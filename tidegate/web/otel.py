"""Metrics and traces of a job, pushed to an OpenTelemetry collector over OTLP/HTTP.

All of it is made of the published view: the metrics that `/metrics` shows, under the same names, a span for each
checkpoint with a child for each subtask, and a span for each recovery. A thread of its own looks at the view once a
second, since only the latest checkpoints are in it; another one pushes every `tidegate.otel.interval`, however long the
collector takes. A collector that does not answer is a warning; what it did not take of the metrics is in the next push,
spans wait up to a bound. What is dropped then, or has gone from the view before it was looked at, is counted and told.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tidegate
from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError
from tidegate.common.metric_values import CounterValue, GaugeValue, HistogramValue, MeterValue, MetricReport
from tidegate.fault_tolerance.checkpoint_view import CheckpointView
from tidegate.jobmanager.catch_up import RecoveryView
from tidegate.jobmanager.job_view import JobView
from tidegate.web.documents import job_figures

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

log = logging.getLogger("tidegate.otel")

_LOOK_S = 1.0
_TIMEOUT_S = 5.0
_LAST_S = 6.0
_MAX_SPANS = 5_000  # that wait for the collector
_MAX_SUBTASK_SPANS = 256  # of one checkpoint; the slowest


@dataclass(frozen=True)
class OtelSettings:
    endpoint: str  # base URL; /v1/metrics and /v1/traces are below it
    headers: Mapping[str, str]
    interval_s: float

    @staticmethod
    def from_configuration(configuration: Configuration) -> OtelSettings | None:
        """None: nothing is pushed. Raises ConfigurationError when what it takes is not installed."""
        endpoint = options.read(configuration, options.OTEL_ENDPOINT)
        if not endpoint:
            return None
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{options.OTEL_ENDPOINT.key} = {endpoint} is not allowed: the URL of a collector's OTLP/HTTP port is "
                "wanted, such as http://localhost:4318"
            )
        try:
            import opentelemetry.exporter.otlp.proto.http
            import opentelemetry.sdk.trace  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                f"{options.OTEL_ENDPOINT.key} needs OpenTelemetry: pip install 'tidegate[otel]'"
            ) from error
        return OtelSettings(
            endpoint.rstrip("/"),
            options.read(configuration, options.OTEL_HEADERS),
            options.read(configuration, options.OTEL_INTERVAL) / 1000,
        )


class SpanQueue:
    """Spans on their way to the collector, the oldest first. Thread-safe."""

    def __init__(self, view: JobView, limit: int = _MAX_SPANS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._traces = Traces(view)
        self._waiting: deque[ReadableSpan] = deque()  # at most `limit`
        self._dropped = 0

    def look(self, view: JobView) -> None:
        """Makes spans of what has ended since the last look."""
        with self._lock:
            self._waiting.extend(self._traces.new_in(view))
            while len(self._waiting) > self._limit:
                self._waiting.popleft()
                self._dropped += 1

    def take(self) -> list[ReadableSpan]:
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            return taken

    def give_back(self, taken: list[ReadableSpan]) -> None:
        """They did not reach the collector."""
        with self._lock:
            room = max(0, self._limit - len(self._waiting))
            kept = taken[len(taken) - room :] if room < len(taken) else taken
            self._dropped += len(taken) - len(kept)
            self._waiting.extendleft(reversed(kept))

    @property
    def lost(self) -> tuple[int, int]:
        """So far: spans that there was no room for, and checkpoints that were gone from the view before the next
        look."""
        with self._lock:
            return self._dropped, self._traces.missed


class OtelPush:
    """`start` when the job begins; `close` when it has ended pushes once more and waits a few seconds at most."""

    def __init__(self, settings: OtelSettings, view: Callable[[], JobView]) -> None:
        self._settings = settings
        self._view = view
        self._over = threading.Event()
        self._failing = False  # and it was said
        self._told_lost = (0, 0)
        self._thread = threading.Thread(target=self._run, name="tidegate-otel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(_LAST_S)

    def _run(self) -> None:
        try:
            self._push_until_the_end()
        except Exception as error:  # nothing here may disturb the job
            log.warning("job %s: nothing more is pushed to OpenTelemetry: %s", self._view().name, error)

    def _look_until_the_end(self, queue: SpanQueue) -> None:
        while not self._over.wait(min(_LOOK_S, self._settings.interval_s)):
            queue.look(self._view())

    def _push_until_the_end(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        for noisy in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)  # they tell of every try; it is told here, once
        endpoint, headers = self._settings.endpoint, dict(self._settings.headers)
        metrics = OTLPMetricExporter(f"{endpoint}/v1/metrics", headers=headers, timeout=_TIMEOUT_S)
        spans = OTLPSpanExporter(f"{endpoint}/v1/traces", headers=headers, timeout=_TIMEOUT_S)
        queue = SpanQueue(self._view())
        threading.Thread(target=self._look_until_the_end, args=(queue,), name="tidegate-otel-look", daemon=True).start()
        over = False
        while not over:
            over = self._over.wait(self._settings.interval_s)
            view = self._view()
            queue.look(view)
            taken = metrics.export(metrics_of(view, time.time() * 1000)).name == "SUCCESS"
            waiting = queue.take() if taken else []
            if waiting and spans.export(waiting).name != "SUCCESS":
                taken = False
                queue.give_back(waiting)
            self._tell(taken)
            self._tell_lost(queue.lost, taken or over)

    def _tell(self, taken: bool) -> None:
        if taken == self._failing:
            name, endpoint = self._view().name, self._settings.endpoint
            if taken:
                log.info("job %s: the OpenTelemetry collector at %s answers again", name, endpoint)
            else:
                log.warning("job %s: the OpenTelemetry collector at %s does not take what is pushed", name, endpoint)
            self._failing = not taken

    def _tell_lost(self, lost: tuple[int, int], answers: bool) -> None:
        """When it begins, and then how many it became when the collector answers again or the job is over."""
        if lost == self._told_lost or not (answers or self._told_lost == (0, 0)):
            return
        self._told_lost = lost
        log.warning(
            "job %s: OpenTelemetry lacks %d spans so far that had to be dropped, since the collector at %s did not "
            "take them in time, and %d checkpoints that came too fast to be seen",
            self._view().name,
            lost[0],
            self._settings.endpoint,
            lost[1],
        )


def _resource(view: JobView) -> Resource:
    from opentelemetry.sdk.resources import Resource

    return Resource.create(
        {
            "service.name": view.name,
            "service.instance.id": view.job_id,
            "tidegate.version": tidegate.__version__,
            "tidegate.mode": view.mode,
        }
    )


# ---------------------------------------------------------------- metrics


def metrics_of(view: JobView, now_ms: float) -> MetricsData:
    """All metrics of the job at this moment, summed up over nothing: a data point for each subtask."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    found = [*_of_job(view, now_ms), *_of_tasks(view, now_ms)]
    scope = ScopeMetrics(InstrumentationScope("tidegate", tidegate.__version__), found, "")
    return MetricsData([ResourceMetrics(_resource(view), [scope], "")])


def _of_job(view: JobView, now_ms: float) -> Iterator[Metric]:
    for name, value in job_figures(view, now_ms).items():
        yield _metric(f"tidegate.job.{name}", GaugeValue(float(value)), [({}, GaugeValue(float(value)))], view, now_ms)


def _of_tasks(view: JobView, now_ms: float) -> Iterator[Metric]:
    names, operators = {v.vertex: v.name for v in view.vertices}, view.operator_names()
    points: dict[tuple[str, type], list[tuple[dict[str, Any], Any]]] = {}
    for metric in view.metrics:
        place: dict[str, Any] = {"vertex": names.get(metric.vertex, ""), "subtask": metric.subtask}
        prefix = "tidegate.task"
        if metric.operator:
            prefix = "tidegate.operator"
            place |= {"operator": operators.get(metric.operator, ""), "group": ".".join(metric.scope[2:])}
        if _is_number(metric):
            points.setdefault((f"{prefix}.{metric.name}", type(metric.value)), []).append((place, metric.value))
        if metric.operator and isinstance(metric.value, MeterValue):  # a task has a counter besides
            count = CounterValue(metric.value.count)
            points.setdefault((f"{prefix}.{metric.name}.count", CounterValue), []).append((place, count))
    for (name, _), found in points.items():
        yield _metric(name, found[0][1], found, view, now_ms)


def _is_number(metric: MetricReport) -> bool:
    value = metric.value
    return not isinstance(value, GaugeValue) or (value.value is not None and math.isfinite(value.value))


def _metric(name: str, kind: Any, points: Iterable[tuple[dict[str, Any], Any]], view: JobView, now_ms: float) -> Metric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        NumberDataPoint,
        Sum,
    )

    # Counters begin anew with each attempt.
    began = max((c.at_ms for c in view.status_history if c.status_name == "RUNNING"), default=view.started_ms)
    start, now = _ns(began), _ns(now_ms)
    data: Gauge | Sum | Histogram
    match kind:
        case CounterValue():
            counted = [NumberDataPoint(place, start, now, value.count) for place, value in points]
            grows = not name.startswith("tidegate.operator.")  # functions may count down
            data = Sum(counted, AggregationTemporality.CUMULATIVE, is_monotonic=grows)
        case HistogramValue():
            spread = [
                HistogramDataPoint(
                    place, start, now, v.count, v.total, [v.count], [], v.minimum or 0.0, v.maximum or 0.0
                )
                for place, v in points
            ]
            data = Histogram(spread, AggregationTemporality.CUMULATIVE)
        case MeterValue():
            data = Gauge([NumberDataPoint(place, start, now, value.rate) for place, value in points])
        case _:
            data = Gauge([NumberDataPoint(place, start, now, value.value) for place, value in points])
    return Metric(name, "", "", data)


# ---------------------------------------------------------------- traces


class Traces:
    """Makes spans of what has ended since the last look."""

    def __init__(self, view: JobView) -> None:
        from opentelemetry.sdk.trace import TracerProvider

        self._ended: list[ReadableSpan] = []
        provider = TracerProvider(resource=_resource(view), shutdown_on_exit=False)
        provider.add_span_processor(_keeping(self._ended))
        self._tracer = provider.get_tracer("tidegate", tidegate.__version__)
        self._checkpoints: set[int] = set()  # that were told, of those in the view
        self._told = 0  # checkpoints
        self.missed = 0  # checkpoints that have ended, and were not in the view any more
        self._recovered = -1  # the latest attempt whose recovery was told

    def new_in(self, view: JobView) -> list[ReadableSpan]:
        ended = {c.checkpoint_id: c for c in view.checkpoints.history if c.ended_ms is not None}
        for number, checkpoint in ended.items():
            if number not in self._checkpoints:
                self._told += 1
                self._tell_checkpoint(view, checkpoint)
        self._checkpoints = set(ended)
        self.missed = max(self.missed, view.checkpoints.completed + view.checkpoints.failed - self._told)
        for recovery in view.recoveries:
            if recovery.running_ms is not None and recovery.attempt > self._recovered:
                self._recovered = recovery.attempt
                self._tell_recovery(view, recovery)
        found = self._ended[:]
        self._ended.clear()
        return found

    def _tell_checkpoint(self, view: JobView, checkpoint: CheckpointView) -> None:
        attributes = {
            "jobId": view.job_id,
            "checkpointId": checkpoint.checkpoint_id,
            "checkpointStatus": checkpoint.status.name,
            "checkpointType": checkpoint.kind.value,
            "checkpointedSize": checkpoint.state_bytes,
            "fullSize": checkpoint.full_bytes,
            "inFlightSize": checkpoint.inflight_bytes,
            "isUnaligned": checkpoint.unaligned,
            "attempt": checkpoint.attempt,
        }
        failed = checkpoint.reason_name
        with self._span(
            "Checkpoint", checkpoint.triggered_ms, checkpoint.ended_ms, attributes, failed, checkpoint.detail
        ):
            names = {v.vertex: v.name for v in view.vertices}
            slowest = sorted(checkpoint.acknowledged, key=lambda part: -part.end_to_end_ms)[:_MAX_SUBTASK_SPANS]
            for part in slowest:
                m = part.metrics
                own = {
                    "vertex": names.get(part.vertex, str(part.vertex)),
                    "subtask": part.subtask,
                    "startDelayMs": m.start_delay_ms,
                    "alignmentMs": m.alignment_ms,
                    "syncMs": m.sync_ms,
                    "asyncMs": m.async_ms,
                    "checkpointedSize": m.state_bytes,
                    "fullSize": m.full_bytes,
                    "isUnaligned": m.unaligned,
                }
                with self._span("CheckpointSubtask", checkpoint.triggered_ms, part.acknowledged_ms, own):
                    pass

    def _tell_recovery(self, view: JobView, recovery: RecoveryView) -> None:
        failure = next((f for f in view.failures if f.attempt == recovery.attempt), None)
        running = recovery.running_ms or recovery.failed_ms
        restored = [r for r in view.checkpoints.restores if recovery.failed_ms <= r.at_ms <= running]
        attributes: dict[str, Any] = {"jobId": view.job_id, "failedAttempt": recovery.attempt}
        if failure is not None:
            attributes |= {
                "cause": failure.failure.summary,
                "operator": failure.failure.operator,
                "verdict": failure.verdict,
            }
        if restored:
            attributes["checkpointId"] = restored[-1].checkpoint_id
        with self._span("Recovery", recovery.failed_ms, running, attributes):
            pass

    def _span(
        self,
        name: str,
        began_ms: float,
        ended_ms: float | None,
        attributes: dict[str, Any],
        failed: str | None = None,
        detail: str = "",
    ) -> Any:
        from opentelemetry import trace

        span = self._tracer.start_span(name, start_time=_ns(began_ms), attributes=attributes)
        if failed is not None:
            span.set_status(trace.StatusCode.ERROR, f"{failed}: {detail}")
        return _Current(trace.use_span(span, end_on_exit=False), span, _ns(ended_ms or began_ms))


class _Current:
    """Spans that are made within it are children of the span, which ends at a time of its own."""

    def __init__(self, context: Any, span: Any, end_ns: int) -> None:
        self._context, self._span, self._end = context, span, end_ns

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._context.__exit__(*exception)
        self._span.end(end_time=self._end)


def _keeping(ended: list[ReadableSpan]) -> SpanProcessor:
    from opentelemetry.sdk.trace import SpanProcessor

    class Keeping(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span)

    return Keeping()


def _ns(ms: float) -> int:
    return int(ms * 1_000_000)
