"""What each call answers with: the figures of a job that has failed once and gone on."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.web.web_kit import MARKUP, FakeJobs, check_described, sample_view
from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import (
    BUSY_MS,
    CounterValue,
    GaugeValue,
    HistogramValue,
    MeterValue,
    MetricReport,
)
from tidegate.fault_tolerance.barriers.statistics import CheckpointStats, CheckpointStatus
from tidegate.fault_tolerance.checkpoint_view import CheckpointViews
from tidegate.jobmanager.catch_up import Lag, RecoveryView, RecoveryWatch
from tidegate.jobmanager.failure_history import FailureHistory
from tidegate.jobmanager.job_publisher import StatusHistory
from tidegate.jobmanager.job_view import JobView, OperatorView
from tidegate.protocol.messages import FailureInfo
from tidegate.spark.micro_batch.progress import Batches
from tidegate.web import documents
from tidegate.web.access import Gate
from tidegate.web.answer_schemas import ANSWERS
from tidegate.web.api import ROUTES, Api
from tidegate.web.openapi import describe
from tidegate.web.prometheus import text
from tidegate.web.remote import RemoteJobError


def ask(path: str, view: JobView | None = None) -> Any:
    view = view or sample_view()
    api = Api(FakeJobs(view), Gate(), threading.Event())
    answer = api.answer("GET", path.replace("JOB", f"/v1/jobs/{view.job_id}"), {}, b"")
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def test_the_list_of_jobs() -> None:
    (job,) = ask("/v1/jobs")["jobs"]
    assert (job["job_name"], job["status"], job["mode"], job["attempt"]) == (MARKUP, "RUNNING", "STREAMING", 1)
    assert job["last_checkpoint"] > 1
    assert job["records_in_per_second"] == pytest.approx(100, rel=0.3)
    assert job["records_out_per_second"] == pytest.approx(100, rel=0.3)


def test_one_job_has_its_graph_and_history() -> None:
    job = ask("JOB")
    assert [e["partitioning"] for e in job["edges"]] == ["hash"]
    assert [v["parallelism"] for v in job["vertices"]] == [1, 2]
    assert job["vertices"][1]["metrics"]["numRecordsIn"] > 100
    assert 0 <= job["vertices"][1]["metrics"][BUSY_MS] <= 1000
    statuses = [change["status"] for change in job["status_history"]]
    assert statuses[0] == "RUNNING"
    assert "RESTARTING" in statuses
    assert job["downtime_ms"] >= 10
    assert len(job["workers_at"]) == 2


def test_a_vertex_has_its_subtasks_with_place_metrics_and_state() -> None:
    vertex = ask("JOB/vertices/1")
    assert [s["subtask"] for s in vertex["subtasks"]] == [0, 1]
    assert all(s["host"] == "here" and s["pid"] >= 100 and s["state_bytes"] is not None for s in vertex["subtasks"])
    assert vertex["metrics"]["numRecordsIn"] == sum(s["metrics"]["numRecordsIn"] for s in vertex["subtasks"])
    assert any("parser.seen" in name for name in vertex["subtasks"][0]["operator_metrics"])
    assert ask("JOB/vertices")["vertices"][1]["metrics"] == vertex["metrics"]


def test_checkpoints_newest_first_and_one_in_detail() -> None:
    answer = ask("JOB/checkpoints")
    ids = [c["id"] for c in answer["checkpoints"]]
    assert ids == sorted(ids, reverse=True)
    assert answer["counts"]["completed"] >= len([c for c in answer["checkpoints"] if c["status"] == "COMPLETED"])
    assert answer["counts"]["restored"] == 1
    assert answer["restores"][0]["checkpoint_id"] in range(1, 100)
    done = next(c for c in answer["checkpoints"] if c["status"] == "COMPLETED")
    detail = ask(f"JOB/checkpoints/{done['id']}")
    assert {k: detail[k] for k in done} == done
    assert [(v["acknowledged"], v["missing"]) for v in detail["vertices"]] == [(1, []), (2, [])]
    delays = [s["start_delay_ms"] for v in detail["vertices"] for s in v["subtasks"]]
    assert done["start_delay_ms"] == max(delays)
    spread = detail["vertices"][1]["spread"]["end_to_end_ms"]
    assert spread["minimum"] <= spread["median"] <= spread["maximum"]


def test_a_subtask_that_did_not_answer_is_named() -> None:
    view = sample_view()
    last = view.checkpoints.history[-1]
    cut = msgspec.structs.replace(last, acknowledged=last.acknowledged[:-1])
    gone = last.acknowledged[-1]
    changed = msgspec.structs.replace(view.checkpoints, history=(cut,))
    detail = ask(f"JOB/checkpoints/{cut.checkpoint_id}", msgspec.structs.replace(view, checkpoints=changed))
    assert detail["vertices"][gone.vertex]["missing"] == [gone.subtask]


def test_exceptions_have_the_root_cause_and_the_downtime() -> None:
    (failure,) = ask("JOB/exceptions")["failures"]
    assert MARKUP in failure["summary"]
    assert failure["operator"] == f"{MARKUP} count"
    assert "ValueError" in failure["traceback"]
    assert failure["downtime_ms"] >= 10
    assert failure["verdict"] == "restart after 0.01 s"
    assert failure["caught_up"] is None  # its source does not tell how far behind it is


def test_a_catch_up_is_told_once_it_is_over() -> None:
    view = sample_view()
    before = Lag(measure="pendingRecords", value=1.0, slack=1.0)
    recovery = RecoveryView(attempt=0, failed_ms=1.0, running_ms=2_000.0, lag_before=before)
    (failure,) = ask("JOB/exceptions", msgspec.structs.replace(view, recoveries=(recovery,)))["failures"]
    assert (failure["caught_up"], failure["catch_up_ms"]) == (False, None)
    over = msgspec.structs.replace(recovery, caught_up_ms=5_500.0)
    (failure,) = ask("JOB/exceptions", msgspec.structs.replace(view, recoveries=(over,)))["failures"]
    assert (failure["caught_up"], failure["catch_up_ms"]) == (True, 3_500.0)


def test_restores_tell_of_a_damaged_checkpoint_that_was_tried_before() -> None:
    view = sample_view()
    (failed,) = view.failures
    damaged = dataclasses.replace(failed, failure=msgspec.structs.replace(failed.failure, corrupt_checkpoint=9))
    assert ask("JOB/checkpoints")["restores"][0]["fell_back_from"] is None
    answer = ask("JOB/checkpoints", msgspec.structs.replace(view, failures=(damaged,)))
    assert answer["restores"][0]["fell_back_from"] == 9


def test_a_damaged_checkpoint_before_a_restore_that_is_not_kept_is_no_note_of_the_oldest_that_is() -> None:
    stats, batches = CheckpointStats(history_size=5), Batches(kept=5)
    for number in range(30):
        stats.on_restored(CheckpointId(10 + number), 1_000.0 * number)
        batches.restored(10 + number, 1_000.0 * number)
    view = sample_view()
    (failed,) = view.failures
    damage = msgspec.structs.replace(failed.failure, corrupt_checkpoint=9)
    for kept in (CheckpointViews().of(stats), batches.view()):
        restores = kept.restores
        assert 30 == kept.restored > len(restores) >= 10
        long_ago = dataclasses.replace(failed, failure=damage, at_ms=restores[0].at_ms - 1_500.0)
        between = dataclasses.replace(failed, failure=damage, at_ms=restores[0].at_ms - 500.0)
        for failure, note in ((long_ago, None), (between, 9)):
            changed = msgspec.structs.replace(view, checkpoints=kept, failures=(failure,))
            notes = [restore["fell_back_from"] for restore in documents.checkpoints(changed)["restores"]]
            assert notes == [None] * (len(restores) - 1) + [note]


def test_the_settings_of_checkpoints_are_beside_them() -> None:
    settings = {s["key"]: s for s in ask("JOB/checkpoints")["configuration"]}
    assert settings["execution.checkpointing.interval"]["value"] == "100 ms"
    assert settings["execution.checkpointing.interval"]["source"] == "program"
    assert settings["execution.checkpointing.mode"]["value"] == "EXACTLY_ONCE"
    assert settings["state.backend.type"]["source"] == "default"
    assert "parallelism.default" not in settings


def test_the_latest_completed_checkpoint_is_told_however_many_have_failed_since() -> None:
    view = sample_view()
    latest = view.checkpoints.latest_completed
    assert latest is not None
    failed = msgspec.structs.replace(latest, checkpoint_id=latest.checkpoint_id + 1, status=CheckpointStatus.FAILED)
    checkpoints = msgspec.structs.replace(view.checkpoints, history=(failed,), older_completed=latest)
    view = msgspec.structs.replace(view, checkpoints=checkpoints)
    number = latest.checkpoint_id
    assert ask("/v1/jobs", view)["jobs"][0]["last_checkpoint"] == number
    assert [c["id"] for c in ask("JOB/checkpoints", view)["checkpoints"]] == [number + 1, number]
    assert ask(f"JOB/checkpoints/{number}", view)["status"] == "COMPLETED"
    assert "lastCheckpointCompletedTimestamp{" in text([view], 0).decode()


def test_metrics_have_their_types() -> None:
    kinds = {m["name"]: m["value"]["type"] for m in ask("JOB/metrics")["metrics"]}
    assert kinds["numRecordsIn"] == "counter"
    assert kinds["numRecordsInPerSecond"] == "meter"
    assert kinds[BUSY_MS] == "gauge"


def test_the_configuration_is_what_is_in_force_and_hides_secrets() -> None:
    settings = {s["key"]: s for s in ask("JOB/config")["configuration"]}
    assert settings["execution.checkpointing.interval"] == {
        "key": "execution.checkpointing.interval",
        "value": "100 ms",
        "given": True,
        "source": "program",
    }
    assert settings["pipeline.name"]["source"] == "configuration"
    assert settings["parallelism.default"]["source"] == "configuration"
    assert settings["pipeline.max-parallelism"]["source"] == "default"
    assert settings["heartbeat.interval"]["given"] is False
    assert settings["spark.hadoop.fs.s3a.secret.key"]["value"] == "******"
    shown = settings["execution.checkpointing.savepoint-dir"]["value"]
    assert shown == "s3://******@bucket/there?region=here&secret_key=******"
    for path in ("JOB", "JOB/config", "JOB/checkpoints", "JOB/view"):
        assert "hunter2" not in str(ask(path))
    assert b"hunter2" not in sample_view().to_json()


def test_the_view_comes_back_whole() -> None:
    view = sample_view()
    api = Api(FakeJobs(view), Gate(), threading.Event())
    assert JobView.from_json(api.answer("GET", f"/v1/jobs/{view.job_id}/view", {}, b"").body) == view


def test_prometheus_text_is_read_by_its_own_parser() -> None:
    view = sample_view()
    odd = MetricReport(1, 0, 'odd "name"\n', GaugeValue(None), view.vertices[1].operators[0].operator_id, ("op", "0"))
    view = msgspec.structs.replace(view, metrics=(*view.metrics, odd))
    families = {f.name: f for f in text_string_to_metric_families(text([view], view.started_ms + 1000).decode())}
    (restarts,) = families["tidegate_job_numRestarts"].samples
    assert (restarts.value, restarts.labels["job_name"]) == (1.0, MARKUP)
    taken = families["tidegate_task_numRecordsIn"]
    assert taken.type == "counter"
    assert sum(s.value for s in taken.samples if s.labels["vertex"] == "1") == view.total("numRecordsIn", 1)
    seen = families["tidegate_operator_seen"].samples[0]
    assert seen.labels["group"] == "parser"
    assert families["tidegate_job_lastCheckpointDuration"].samples


def test_what_functions_measure_keeps_its_meaning_for_prometheus() -> None:
    """A counter that may go down is no counter there, and nothing that was measured is left out."""
    view = sample_view()
    measured = {
        "open": CounterValue(-2),
        "events": MeterValue(30, 1.5),
        "sizes": HistogramValue(4, 12.0, 1.0, 7.0),
        "nothing yet": HistogramValue(0),
    }
    metrics = [
        MetricReport(1, 0, name, value, view.vertices[1].operators[0].operator_id, ("count", "0"))
        for name, value in measured.items()
    ]
    read = text([msgspec.structs.replace(view, metrics=tuple(metrics))], 0).decode()
    families = list(text_string_to_metric_families(read))
    kinds = {f.name: f.type for f in families if f.name.startswith("tidegate_operator")}
    values = {s.name.removeprefix("tidegate_operator_"): s.value for f in families for s in f.samples}
    assert kinds["tidegate_operator_open"] == "gauge"
    assert kinds["tidegate_operator_sizes"] == "summary"
    assert {name: values[name] for name in values if not name.startswith("tidegate_job")} == {
        "open": -2,
        "events": 1.5,
        "events_count": 30,
        "sizes_count": 4,
        "sizes_sum": 12,
        "sizes_min": 1,
        "sizes_max": 7,
        "sizes_mean": 3,
        "nothing_yet_count": 0,
        "nothing_yet_sum": 0,
    }


def test_jobs_that_have_ended_are_not_scraped() -> None:
    view = msgspec.structs.replace(sample_view(), ended_ms=5.0, status_name="FAILED")
    api = Api(FakeJobs(view), Gate(), threading.Event())
    assert api.answer("GET", "/metrics", {}, b"").body == b""


def test_the_openapi_description_is_valid_and_lists_every_call() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    description = ask("/openapi.json")
    validator.validate(description)
    assert set(description["paths"]) == {route.path for route in ROUTES}


def test_every_described_path_answers() -> None:
    view = sample_view()
    api = Api(FakeJobs(view), Gate(), threading.Event())
    last = view.checkpoints.history[-1].checkpoint_id
    for route in ROUTES:
        path = route.path.format(job=view.job_id, vertex=0, checkpoint=last, operator="count", state="seen")
        if route.method == "GET":
            answer = api.answer("GET", path, {}, b"")
            assert answer.status == 200
            assert answer.content_type.startswith(route.content_type)


def test_every_document_is_what_its_description_says() -> None:
    """Fields that are missing, that are new and that are of another kind are found."""
    view = sample_view()
    api = Api(FakeJobs(view), Gate(), threading.Event())
    last = view.checkpoints.history[-1].checkpoint_id
    for route in ROUTES:
        if route.content_type == "application/json" and route.method == "GET":
            path = route.path.format(job=view.job_id, vertex=1, checkpoint=last, operator="count", state="seen")
            for query in ("", "key=a&key=b&key=c&key=d&level=committed") if route.name == "state" else ("",):
                headers = {"Authorization": f"Bearer {api._gate.token}"}
                check_described(route.name, json.loads(api.answer("GET", path, headers, b"", query).body))


def test_sessions_are_described_and_their_answers_are_so() -> None:
    api = Api(FakeJobs(), Gate(), threading.Event())
    opened = api.answer("POST", "/v1/login", {}, msgspec.json.encode({"token": api._gate.read_token}))
    check_described("login", json.loads(opened.body))
    assert set(opened.headers) == {"Set-Cookie"}
    closed = api.answer("POST", "/v1/logout", {}, b"")
    check_described("logout", json.loads(closed.body))
    for body in (b"{}", b'{"token": "x", "more": 1}', b'{"token": null}'):
        assert api.answer("POST", "/v1/login", {}, body).status == 400
    description = describe(ROUTES)["paths"]
    assert {path for path, calls in description.items() for call in calls.values() if call.get("security") == []} == {
        "/v1/login",
        "/v1/logout",
    }


def test_every_json_answer_has_a_schema_of_its_own() -> None:
    assert {route.name for route in ROUTES if route.content_type == "application/json"} == set(ANSWERS)


def test_a_job_that_does_not_answer_is_503_as_it_is_described() -> None:
    class Silent(FakeJobs):
        def document(self, job_id: str, path: str) -> bytes | None:
            raise RemoteJobError("job x does not answer: its process 7 is there, but stopped or overloaded")

    answer = Api(Silent(), Gate(), threading.Event()).answer("GET", f"/v1/jobs/{'abcd' * 8}", {}, b"")
    assert answer.status == 503
    assert "does not answer" in json.loads(answer.body)["error"]
    for path in describe(ROUTES)["paths"].values():
        for call in path.values():
            assert "a job that does not answer" in call["responses"]["503"]["description"]


def test_downtime_of_a_job_that_has_restarted_more_often_than_its_history_goes_back() -> None:
    history, watch, failures, now = StatusHistory(), RecoveryWatch(), FailureHistory(), 0.0
    history.add(JobStatus.RUNNING, AttemptNumber(0), now)
    for attempt in range(300):
        now += 10_000
        failures.record(AttemptNumber(attempt), FailureInfo(summary="broken"), now)
        history.add(JobStatus.RESTARTING, AttemptNumber(attempt), now)
        watch.look(failures.latest, False, attempt, (), now)
        now += 500
        history.add(JobStatus.RUNNING, AttemptNumber(attempt + 1), now)
        recoveries = watch.look(failures.latest, True, attempt + 1, (), now)
    view = msgspec.structs.replace(sample_view(), failures=failures.entries, recoveries=recoveries, **history.fields())
    assert documents.downtime_ms(view, now + 1) == 300 * 500
    assert {f["downtime_ms"] for f in documents.exceptions(view)["failures"]} == {500}
    history.add(JobStatus.RESTARTING, AttemptNumber(300), now)
    history.add(JobStatus.FAILED, AttemptNumber(300), now + 70)
    assert documents.downtime_ms(msgspec.structs.replace(view, **history.fields()), now + 9_999) == 300 * 500 + 70


def test_names_that_are_one_to_prometheus_give_one_series() -> None:
    view = sample_view()
    vertex = view.vertices[1]
    twice = tuple(OperatorView(operator_id=f"id{i}", name="Map", uid=None) for i in range(2))
    vertices = (view.vertices[0], msgspec.structs.replace(vertex, operators=twice), *view.vertices[2:])
    named = [(f"id{i}", name) for i in range(2) for name in ("seen", "a-b", "a_b")]
    metrics = [MetricReport(1, 0, name, CounterValue(n), o, ("Map", "0")) for n, (o, name) in enumerate(named)]
    metrics += [MetricReport(1, 0, "sizes", HistogramValue(1, 2.0, 2.0, 2.0), "id0", ("Map", "0"))]
    metrics += [MetricReport(1, 0, f"sizes_{end}", GaugeValue(9.0), "id0", ("Map", "0")) for end in ("sum", "max")]
    view = msgspec.structs.replace(view, vertices=vertices, metrics=tuple(metrics))
    lines = [line for line in text([view], 0).decode().splitlines() if line.startswith("tidegate_operator")]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))
    assert any('operator="Map#2"' in line and line.endswith(" 3.0") for line in lines)
    assert not any(line.endswith(" 9.0") for line in lines)
    assert {name: metric.value.count for name, metric in view.function_metrics() if metric.name == "seen"} == {
        "Map.0.seen": 0,
        "Map#2.0.seen": 3,
    }
    assert documents.totals(view.metrics)[0] == MetricReport(1, -1, "seen", CounterValue(0), "id0", ("Map",))


def test_uptime_and_downtime_mean_what_flinks_mean_and_those_of_the_whole_life_have_other_names() -> None:
    history, view = StatusHistory(), msgspec.structs.replace(sample_view(), started_ms=0.0, ended_ms=None)

    def figures(now_ms: float) -> list[float]:
        shown = msgspec.structs.replace(view, **history.fields())
        found = documents.job_figures(shown, now_ms)
        told = documents.job(shown, now_ms)["uptime_ms"]
        assert told == (found["uptime"] if shown.status is JobStatus.RUNNING else None)
        return [found[name] for name in ("uptime", "downtime", "duration", "totalDowntime")]

    history.add(JobStatus.CREATED, AttemptNumber(0), 0)
    assert figures(500) == [0, 0, 500, 0]
    history.add(JobStatus.RUNNING, AttemptNumber(0), 1_000)
    assert figures(4_000) == [3_000, 0, 4_000, 0]
    history.add(JobStatus.RESTARTING, AttemptNumber(0), 5_000)
    assert figures(5_200) == [0, 200, 5_200, 200]
    history.add(JobStatus.RUNNING, AttemptNumber(1), 5_300)
    assert figures(6_000) == [700, 0, 6_000, 300]
    history.add(JobStatus.RESTARTING, AttemptNumber(1), 7_000)
    assert figures(7_500) == [0, 500, 7_500, 800]
    history.add(JobStatus.FAILED, AttemptNumber(1), 8_000)
    assert figures(60_000) == [-1, -1, 8_000, 1_300]


def test_downtime_counts_from_the_first_start_on() -> None:
    view = sample_view()
    down = next(c.at_ms for c in view.status_history if c.status_name == "RESTARTING")
    up = next(c.at_ms for c in view.status_history if c.status_name == "RUNNING" and c.at_ms > down)
    assert documents.downtime_ms(view, up + 1000) == up - down
