"""What `tidegate ui` and the commands show of jobs that run elsewhere: also of those that are frozen, of another
version, or do not let them in. A frozen one is a port that takes connections and says nothing."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.web.test_rest import Server, ask, request
from tests.unit.web.web_kit import FakeJobs, sample_view
from tidegate.cli.main import main
from tidegate.common.errors import StateNotReadableError
from tidegate.jobmanager.job_view import JobView
from tidegate.web import remote
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History
from tidegate.web.job_port import JobPort
from tidegate.web.live_state import StateQuestion
from tidegate.web.registry import JobRecord, publish, running_jobs
from tidegate.web.rest import RestServer

pytestmark = pytest.mark.timeout(60)  # what is looked for here is a hang

FROZEN = "f" * 32
RUNNING = "abcd" * 8


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(remote, "_LOOK_S", 0.5)


@pytest.fixture
def frozen() -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as port:
        register(FROZEN, f"http://127.0.0.1:{port.getsockname()[1]}")
        yield


def register(job_id: str, url: str) -> None:
    publish(
        JobRecord(job_id=job_id, job_name="silent", pid=os.getpid(), process_start="", url=url, token="t", started_ms=5)
    )


@pytest.fixture
def running() -> Iterator[FakeJobs]:
    jobs = FakeJobs()
    port = JobPort(jobs, jobs.shown.job_id, jobs.shown.name, 1.0)
    port.open()
    port.address(10)
    yield jobs
    jobs.over.set()
    port.close()


@pytest.fixture
def ui() -> Iterator[Server]:
    rest = RestServer(AllJobs(History()))
    yield rest, rest.start()
    rest.close()


def test_a_frozen_job_hangs_nobody_and_is_listed_as_silent(frozen: None, running: FakeJobs, ui: Server) -> None:
    status, answer = ask(ui, "GET", "/v1/jobs")
    assert status == 200
    assert [(job["job_id"], job["status"]) for job in answer["jobs"]] == [(FROZEN, "?"), (RUNNING, "RUNNING")]
    assert "does not answer: its process" in answer["jobs"][0]["error"]
    status, answer = ask(ui, "GET", f"/v1/jobs/{FROZEN}")
    assert status == 503
    assert "does not answer" in answer["error"]
    response, text = request(ui, "GET", "/metrics", headers={"Authorization": f"Bearer {ui[0].token}"})
    assert response.status == 200
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    answers = {sample.labels["job_id"]: sample.value for sample in families["tidegate_job_answers"].samples}
    assert answers == {FROZEN: 0.0, RUNNING: 1.0}
    running_series = families["tidegate_job_running"].samples  # of the frozen one nothing else is known
    assert [sample.labels["job_name"] for sample in running_series] == ["my job"]


def test_the_commands_tell_that_a_job_is_frozen(frozen: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "job ffffffffffffffffffffffffffffffff (silent) does not answer: its process" in capsys.readouterr().out
    assert main(["show", FROZEN]) == 1
    assert "does not answer" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["savepoint", "stop", "cancel"])
def test_a_change_of_a_frozen_job_is_refused_at_once(
    frozen: None, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, FROZEN, *([str(tmp_path)] if command == "savepoint" else [])]) == 1
    assert "does not answer: its process" in capsys.readouterr().err


def test_a_job_that_freezes_while_it_is_changed_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PROBE_EVERY_S", 0.05)
    asked: list[str] = []
    frozen = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if len(asked) > 3:
                frozen.wait()
            asked.append("GET")
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_POST(self) -> None:
            asked.append("POST")
            frozen.wait()

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    register(FROZEN, f"http://127.0.0.1:{server.server_port}")
    (job,) = running_jobs()
    try:
        with pytest.raises(remote.RemoteJobError, match=r"does not answer.*may be done all the same"):
            remote.call(job, "POST", "/savepoint", {})
    finally:
        frozen.set()
        server.shutdown()
        server.server_close()
    assert asked[0] == "GET"
    assert asked.count("POST") == 1


def test_frozen_jobs_are_asked_at_the_same_time(frozen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(8, timeout=30)
    monkeypatch.setattr(remote, "summary", lambda record: {"job_id": record.job_id, "n": together.wait()})
    (record,) = running_jobs()
    for n in range(7):
        register(f"{n:032d}", record.url)
    assert len(AllJobs(History()).summaries()) == 8


def test_a_job_of_another_version_is_shown_by_what_it_says(running: FakeJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(data: bytes) -> JobView:
        raise msgspec.ValidationError("Object missing required field `planets`")

    monkeypatch.setattr(JobView, "from_json", staticmethod(other))
    jobs = AllJobs(History())
    assert [job["status"] for job in jobs.summaries()] == ["RUNNING"]
    assert json.loads(jobs.document(RUNNING, "") or b"")["job_name"] == "my job"
    with pytest.raises(remote.RemoteJobError, match="it runs another version of Tidegate"):
        jobs.view(RUNNING)


def test_a_look_at_a_running_job_moves_its_answer_and_not_its_view(
    running: FakeJobs, ui: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "view_of", lambda record: pytest.fail("the whole view was fetched"))
    for path in ("", "/vertices", "/vertices/1", "/checkpoints", "/exceptions", "/metrics", "/config", "/state"):
        assert ask(ui, "GET", f"/v1/jobs/{RUNNING}{path}")[0] == 200, path
    assert ask(ui, "GET", f"/v1/jobs/{RUNNING}/vertices/9")[0] == 404
    assert ask(ui, "GET", f"/v1/jobs/{RUNNING}/vertices/x")[0] == 400
    assert [job["job_id"] for job in ask(ui, "GET", "/v1/jobs")[1]["jobs"]] == [RUNNING]


def test_archived_jobs_are_listed_without_reading_their_views(monkeypatch: pytest.MonkeyPatch) -> None:
    view = msgspec.structs.replace(sample_view(), job_id="a" * 32, name="done", status_name="FINISHED", ended_ms=9e12)
    History().keep(view)
    read = JobView.from_json
    monkeypatch.setattr(JobView, "from_json", staticmethod(lambda data: pytest.fail("a view was decoded")))
    (listed,) = AllJobs(History()).summaries()
    assert (listed["job_name"], listed["ended_ms"], listed["status"]) == ("done", 9_000_000_000_000, "FINISHED")
    monkeypatch.setattr(JobView, "from_json", staticmethod(read))
    (summary,) = (Path(os.environ["XDG_STATE_HOME"]) / "tidegate" / "history").glob("*.summary")
    for damage in (summary.unlink, lambda: summary.write_bytes(b"{")):  # as an earlier version leaves it; damaged
        damage()
        assert AllJobs(History()).summaries() == [listed]


def test_a_job_that_does_not_take_its_token_does_not_ask_the_caller_to_log_in(running: FakeJobs, ui: Server) -> None:
    (record,) = running_jobs()
    publish(msgspec.structs.replace(record, token="of an earlier run"))
    for method, path in (("GET", ""), ("GET", "/checkpoints"), ("POST", "/cancel")):
        status, answer = ask(ui, method, f"/v1/jobs/{RUNNING}{path}", {} if method == "POST" else None)
        assert status == 409
        assert "does not take the token of its file" in answer["error"]


def test_when_to_try_again_is_passed_on(running: FakeJobs, ui: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def restarting(job_id: str, operator: str, state: str, question: StateQuestion) -> Any:
        raise StateNotReadableError("the job is restarting")

    monkeypatch.setattr(running, "read_state", restarting)
    headers = {"Authorization": f"Bearer {ui[0].token}"}
    response, _ = request(ui, "GET", f"/v1/jobs/{RUNNING}/state/o/s?key=k", headers=headers)
    assert (response.status, response.headers["Retry-After"]) == (409, "1")


def test_events_of_a_job_that_falls_silent_say_so_and_go_on(running: FakeJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = RestServer(AllJobs(History()))
    events = rest.api._events(RUNNING)
    monkeypatch.setattr(rest._closing, "wait", lambda timeout: False)
    assert next(events).startswith(b"event: job\n")
    (record,) = running_jobs()
    with socket.create_server(("127.0.0.1", 0)) as port:
        publish(msgspec.structs.replace(record, url=f"http://127.0.0.1:{port.getsockname()[1]}"))
        assert next(events).startswith(b"event: silent\n")
    publish(record)
    assert next(events).startswith(b"event: job\n")
    running.shown = msgspec.structs.replace(running.shown, status_name="FINISHED", ended_ms=9e12)
    assert b"FINISHED" in next(events)
    assert next(events).startswith(b"event: end\n")


def test_the_address_of_a_page_is_logged(running: FakeJobs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidegate.rest")
    port = JobPort(running, "c" * 32, "another", 1.0)
    port.open()
    url = port.address(10)
    try:
        assert f"job another: its page and REST are at {url} (tidegate ui logs in to it)" in caplog.text
    finally:
        port.close()
