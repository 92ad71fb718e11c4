"""What is pushed to OpenTelemetry, against a receiver that speaks OTLP/HTTP. The receiver is a double: it answers on a
real socket and decodes the real messages, and keeps them; no collector is run."""

from __future__ import annotations

import builtins
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.spark.job_on_threads import start_job, until
from tests.unit.taskmanager.small_jobs import Count, environment, ticks
from tests.unit.web.web_kit import MARKUP, sample_view
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, JobCancelledError
from tidegate.common.metric_values import CounterValue, GaugeValue, HistogramValue, MeterValue, MetricReport
from tidegate.datastream.connectors import CollectSink
from tidegate.jobmanager.catch_up import RecoveryView
from tidegate.jobmanager.job_view import JobView
from tidegate.web.otel import OtelPush, OtelSettings, SpanQueue
from tidegate.web.prometheus import text

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'tidegate[otel]'")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """Keeps what it is sent; `status` is what it answers with."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.traces: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()
        self.held = False  # somebody waits for an answer, or has waited
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if not receiver.hold.is_set():
                    receiver.held = True
                    receiver.hold.wait(4)
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                if receiver.status == 200:
                    metrics = self.path == "/v1/metrics"
                    kind = ExportMetricsServiceRequest if metrics else ExportTraceServiceRequest
                    (receiver.metrics if metrics else receiver.traces).append(kind.FromString(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def points(self) -> dict[str, Any]:
        """Of the latest push, by name."""
        (resource,) = self.metrics[-1].resource_metrics
        return {m.name: m for scope in resource.scope_metrics for m in scope.metrics}

    def spans(self) -> list[Any]:
        return [s for t in self.traces for r in t.resource_spans for scope in r.scope_spans for s in scope.spans]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def push(receiver: Receiver, view: JobView, **more: str) -> None:
    """A job that is over at once: what it ends with is pushed."""
    settings = OtelSettings.from_configuration(
        Configuration.from_dict({"tidegate.otel.endpoint": receiver.url, **more})
    )
    assert settings is not None
    pushing = OtelPush(settings, lambda: view)
    pushing.start()
    pushing.close()


def attributes(of: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in of.attributes}


def test_a_job_pushes_what_its_setting_says(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"tidegate.otel.endpoint": receiver.url, "execution.checkpointing.interval": "20 ms"}
    env = environment({**settings, "rest.enabled": "false", "tidegate.history.size": "0"})
    ticks(env, burst=10).key_by(lambda i: i % 3).process(Count()).uid("count").sink_to(CollectSink())
    manager = start_job(env, monkeypatch)
    until(lambda: manager.client.view().checkpoints.completed > 2, "checkpoints")
    manager.client.cancel()
    with pytest.raises(JobCancelledError):
        manager.client.get_job_execution_result().result(30)
    manager.join(10)
    assert receiver.points()["tidegate.job.numberOfCompletedCheckpoints"].gauge.data_points[0].as_double > 2
    assert {"Checkpoint", "CheckpointSubtask"} <= {span.name for span in receiver.spans()}


def test_what_is_pushed_of_a_job_is_what_prometheus_is_told(receiver: Receiver) -> None:
    view = msgspec.structs.replace(sample_view(), metrics=())
    push(receiver, view)
    pushed = {name.removeprefix("tidegate.job.") for name in receiver.points()}
    told = {f.name.removeprefix("tidegate_job_") for f in text_string_to_metric_families(text([view], 0).decode())}
    assert pushed == told - {"answers"}
    assert {"running", "lastCompletedCheckpointId", "lastCheckpointCompletedTimestamp"} < pushed


def test_metrics_have_their_kinds_and_their_places(receiver: Receiver) -> None:
    view = sample_view()
    operator = view.vertices[1].operators[0].operator_id
    spread = MetricReport(1, 0, "sizes", HistogramValue(3, 12.0, 2.0, 7.0), operator, ("count", "0", "parser"))
    odd = MetricReport(1, 0, "odd", GaugeValue(float("nan")), operator, ("count", "0"))
    fewer = MetricReport(1, 0, "open", CounterValue(-2), operator, ("count", "0"))
    meter = MetricReport(1, 0, "events", MeterValue(30, 1.5), operator, ("count", "0"))
    push(receiver, msgspec.structs.replace(view, metrics=(*view.metrics, spread, odd, fewer, meter)))
    (resource,) = receiver.metrics[-1].resource_metrics
    assert attributes(resource.resource)["service.name"] == MARKUP
    assert attributes(resource.resource)["service.instance.id"] == view.job_id
    points = receiver.points()
    records = points["tidegate.task.numRecordsIn"].sum
    assert records.is_monotonic
    assert sum(p.as_int for p in records.data_points if attributes(p)["vertex"] == view.vertices[1].name) == view.total(
        "numRecordsIn", 1
    )
    assert {attributes(p)["subtask"] for p in records.data_points} == {0, 1}
    assert points["tidegate.task.busyTimeMsPerSecond"].WhichOneof("data") == "gauge"
    assert points["tidegate.task.numRecordsInPerSecond"].WhichOneof("data") == "gauge"
    assert not points["tidegate.operator.open"].sum.is_monotonic  # functions may count down
    assert points["tidegate.operator.open"].sum.data_points[0].as_int == -2
    assert points["tidegate.operator.events"].gauge.data_points[0].as_double == 1.5
    assert points["tidegate.operator.events.count"].sum.data_points[0].as_int == 30
    (sizes,) = points["tidegate.operator.sizes"].histogram.data_points
    assert (sizes.count, sizes.sum, sizes.min, sizes.max) == (3, 12.0, 2.0, 7.0)
    assert (attributes(sizes)["operator"], attributes(sizes)["group"]) == (f"{MARKUP} count", "parser")
    assert points["tidegate.job.numRestarts"].gauge.data_points[0].as_double == 1
    assert points["tidegate.job.lastCheckpointDuration"].gauge.data_points[0].as_double >= 0
    assert "tidegate.operator.odd" not in points  # not a number


def test_a_span_for_each_checkpoint_with_a_child_for_each_subtask(receiver: Receiver) -> None:
    view = sample_view()
    push(receiver, view)
    ended = [c for c in view.checkpoints.history if c.ended_ms is not None]
    spans = receiver.spans()
    checkpoints = {attributes(s)["checkpointId"]: s for s in spans if s.name == "Checkpoint"}
    assert set(checkpoints) == {c.checkpoint_id for c in ended}
    done = next(c for c in reversed(ended) if c.status.name == "COMPLETED")
    span = checkpoints[done.checkpoint_id]
    assert span.start_time_unix_nano == int(done.triggered_ms * 1e6)
    assert span.end_time_unix_nano == int((done.ended_ms or 0) * 1e6)
    assert attributes(span)["checkpointStatus"] == "COMPLETED"
    assert attributes(span)["checkpointedSize"] == done.state_bytes
    children = [s for s in spans if s.parent_span_id == span.span_id]
    assert {s.name for s in children} == {"CheckpointSubtask"}
    assert len(children) == len(done.acknowledged) == 3
    assert {s.trace_id for s in children} == {span.trace_id}
    assert len({s.trace_id for s in checkpoints.values()}) == len(checkpoints)
    part = done.acknowledged[-1]
    child = next(
        s
        for s in children
        if (attributes(s)["vertex"], attributes(s)["subtask"]) == (view.vertices[part.vertex].name, part.subtask)
    )
    assert child.end_time_unix_nano == int(part.acknowledged_ms * 1e6)
    failed = [c for c in ended if c.status.name == "FAILED"]
    for checkpoint in failed:
        assert checkpoints[checkpoint.checkpoint_id].status.code == 2


def test_a_span_for_each_recovery(receiver: Receiver) -> None:
    view = sample_view()
    (recovery,) = view.recoveries
    open_one = RecoveryView(attempt=1, failed_ms=recovery.failed_ms + 1e6)
    push(receiver, msgspec.structs.replace(view, recoveries=(recovery, open_one)))
    (span,) = [s for s in receiver.spans() if s.name == "Recovery"]
    assert span.start_time_unix_nano == int(recovery.failed_ms * 1e6)
    assert span.end_time_unix_nano == int((recovery.running_ms or 0) * 1e6)
    told = attributes(span)
    assert told["failedAttempt"] == 0
    assert "ValueError" in told["cause"]
    assert told["verdict"] == "restart after 0.01 s"
    assert told["checkpointId"] == view.checkpoints.restores[0].checkpoint_id


def test_it_goes_on_while_the_job_runs_and_tells_of_nothing_twice(receiver: Receiver) -> None:
    view = sample_view()
    settings = OtelSettings(receiver.url, {"X-Own": "abc"}, 0.1)
    shown = [view]
    pushing = OtelPush(settings, lambda: shown[0])
    pushing.start()
    _until(lambda: len(receiver.metrics) >= 2)
    newest = view.checkpoints.history[-2]
    more = msgspec.structs.replace(newest, checkpoint_id=9_999)
    history = (*view.checkpoints.history[1:], more)
    shown[0] = msgspec.structs.replace(view, checkpoints=msgspec.structs.replace(view.checkpoints, history=history))
    pushing.close()
    ids = [attributes(s)["checkpointId"] for s in receiver.spans() if s.name == "Checkpoint"]
    assert len(ids) == len(set(ids))
    assert 9_999 in ids
    assert all(h["x-own"] == "abc" for h in receiver.headers)


def test_a_collector_that_fails_is_told_once_and_gets_the_spans_later(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidegate.otel")
    receiver.status = 400
    view = sample_view()
    pushing = OtelPush(OtelSettings(receiver.url, {}, 0.1), lambda: view)
    pushing.start()
    _until(lambda: len(receiver.headers) >= 3)
    assert caplog.text.count("does not take what is pushed") == 1
    receiver.status = 200
    _until(lambda: receiver.traces)
    pushing.close()
    assert "answers again" in caplog.text
    ended = [c for c in view.checkpoints.history if c.ended_ms is not None]
    assert len([s for s in receiver.spans() if s.name == "Checkpoint"]) == len(ended)


def test_checkpoints_are_seen_while_a_push_takes_long(receiver: Receiver) -> None:
    """The history of the view has room for one, which is another one at each look."""
    view = sample_view()
    newest = view.checkpoints.history[-2]
    looks: list[int] = []

    def shown() -> JobView:
        number = 100 + len(looks)
        looks.append(number)
        history = (msgspec.structs.replace(newest, checkpoint_id=number),)
        return msgspec.structs.replace(view, checkpoints=msgspec.structs.replace(view.checkpoints, history=history))

    receiver.hold.clear()
    pushing = OtelPush(OtelSettings(receiver.url, {}, 0.02), shown)
    pushing.start()
    _until(lambda: receiver.held)
    seen = len(looks)
    _until(lambda: len(looks) >= seen + 20)
    receiver.hold.set()
    _until(lambda: len([s for s in receiver.spans() if s.name == "Checkpoint"]) >= seen + 10)
    pushing.close()


def test_what_is_lost_is_counted_and_told(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    view = sample_view()
    ended = [c for c in view.checkpoints.history if c.ended_ms is not None]
    more = msgspec.structs.replace(view.checkpoints, completed=len(ended) + 7, failed=0)
    view = msgspec.structs.replace(view, checkpoints=more, recoveries=())
    queue = SpanQueue(view, limit=3)
    queue.look(view)
    taken = queue.take()
    assert len(taken) == 3
    dropped, missed = queue.lost
    assert (dropped > 0, missed) == (True, 7)
    queue.look(view)
    queue.give_back(taken)
    assert queue.lost == (dropped, 7)
    assert queue.take() == taken
    queue.give_back([*taken, *taken[:2]])
    assert queue.lost == (dropped + 2, 7)
    assert queue.take() == [taken[2], *taken[:2]]  # the oldest are dropped
    push(receiver, view)
    assert "lacks 0 spans" in caplog.text
    assert "7 checkpoints that came too fast" in caplog.text


def test_settings_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(values: dict[str, str]) -> OtelSettings | None:
        return OtelSettings.from_configuration(Configuration.from_dict(values))

    assert given({}) is None
    found = given(
        {
            "tidegate.otel.endpoint": "http://there:4318/",
            "tidegate.otel.interval": "2 s",
            "tidegate.otel.headers": "Authorization:Bearer abc",
        }
    )
    assert found == OtelSettings("http://there:4318", {"Authorization": "Bearer abc"}, 2.0)
    hidden = Configuration.from_dict({"tidegate.otel.headers": "Authorization:Bearer abc"})
    assert "abc" not in str(hidden)
    with pytest.raises(ConfigurationError, match="http://localhost:4318"):
        given({"tidegate.otel.endpoint": "there:4317"})
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[otel\]'"):
        given({"tidegate.otel.endpoint": "http://there:4318"})


def _until(what: Any) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)
