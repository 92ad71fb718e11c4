from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tidegate.common.errors import SnapshotError
from tidegate.web import registry
from tidegate.web.job_port import JobPort
from tidegate.web.registry import JobRecord, publish, running_jobs
from tidegate.web.rest import RestServer


class FakeControl:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.over = threading.Event()

    def describe(self) -> dict[str, Any]:
        return {"job_id": "abc", "job_name": "fake", "status": "RUNNING"}

    def checkpoints(self) -> list[dict[str, Any]]:
        return [{"id": 1}]

    def savepoint(self, directory: str | None) -> str:
        self.calls.append(("savepoint", directory))
        if directory is None:
            raise SnapshotError("no folder was given")
        return f"{directory}/savepoint-1"

    def stop(self, drain: bool, directory: str | None) -> str:
        self.calls.append(("stop", drain, directory))
        return "there"

    def cancel(self) -> str:
        self.over.wait(10)
        return "CANCELED"


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
def server(control: FakeControl) -> Iterator[tuple[RestServer, str]]:
    rest = RestServer(control)
    yield rest, rest.start()
    rest.close()


def ask(
    server: tuple[RestServer, str], method: str, path: str, body: Any = None, token: str | None = None
) -> tuple[int, dict[str, Any]]:
    parts = urlsplit(server[1])
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    headers = {} if token == "" else {"Authorization": f"Bearer {token or server[0].token}"}
    data = body if isinstance(body, str | bytes) else None if body is None else json.dumps(body)
    connection.request(method, path, data, headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_the_port_is_on_the_loopback_and_answers_with_json(server: tuple[RestServer, str]) -> None:
    assert server[1].startswith("http://127.0.0.1:")
    assert ask(server, "GET", "/v1/job") == (200, {"job_id": "abc", "job_name": "fake", "status": "RUNNING"})
    assert ask(server, "GET", "/v1/checkpoints") == (200, {"checkpoints": [{"id": 1}]})


@pytest.mark.parametrize("token", ["", "wrong", "é"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/job"), ("POST", "/v1/cancel"), ("GET", "/nowhere")])
def test_a_call_without_the_token_gets_nothing(
    server: tuple[RestServer, str], control: FakeControl, token: str, method: str, path: str
) -> None:
    status, answer = ask(server, method, path, token=token.encode("utf-8").decode("latin-1"))
    assert status == 401
    assert "token" in answer["error"]
    assert control.calls == []


def test_arguments_reach_the_job_and_its_refusal_comes_back_as_a_sentence(
    server: tuple[RestServer, str], control: FakeControl
) -> None:
    assert ask(server, "POST", "/v1/savepoint", {"directory": "/d"}) == (200, {"path": "/d/savepoint-1"})
    assert ask(server, "POST", "/v1/savepoint", {}) == (409, {"error": "no folder was given"})
    assert ask(server, "POST", "/v1/stop", {"drain": True, "directory": "/d"}) == (200, {"path": "there"})
    assert control.calls[-1] == ("stop", True, "/d")


@pytest.mark.parametrize("body", ["{", "[1]", '{"directory": 5}', '{"drain": "yes"}', "x" * 70_000])
def test_a_wrong_body_is_refused(server: tuple[RestServer, str], control: FakeControl, body: str) -> None:
    status, answer = ask(server, "POST", "/v1/stop", body)
    assert status == 400
    assert answer["error"]
    assert control.calls == []


def test_an_unknown_path_is_told(server: tuple[RestServer, str]) -> None:
    assert ask(server, "GET", "/v2/job")[0] == 404


def test_a_call_that_waits_for_the_end_of_the_job_gets_its_answer_before_the_port_closes(
    control: FakeControl,
) -> None:
    rest = RestServer(control)
    server = rest, rest.start()
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(ask(server, "POST", "/v1/cancel")))
    caller.start()
    while not rest._calls:
        time.sleep(0.005)
    control.over.set()
    rest.close()
    caller.join(10)
    assert answers == [(200, {"status": "CANCELED"})]


# ---------------------------------------------------------------- registry


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def record(job_id: str = "a" * 32, pid: int | None = None, started_ms: int = 5) -> JobRecord:
    pid = os.getpid() if pid is None else pid
    start = registry.process_start(pid)
    return JobRecord(
        job_id=job_id, job_name="n", pid=pid, process_start=start, url="http://x", token="t", started_ms=started_ms
    )


def test_the_file_of_a_job_can_be_read_by_its_user_only(state_home: Path) -> None:
    path = publish(record())
    assert path == state_home / "tidegate" / "jobs" / f"{'a' * 32}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert running_jobs() == [record()]


def test_files_of_dead_processes_and_broken_ones_are_removed(state_home: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = publish(record("b" * 32, pid=gone.pid))
    reused = publish(JobRecord(**{**_fields(record("c" * 32)), "process_start": "1"}))
    broken = dead.with_name("broken.json")
    broken.write_text("{")
    elsewhere = publish(JobRecord(**{**_fields(record("e" * 32, pid=gone.pid)), "host": "another machine"}))
    alive = publish(record())
    assert [j.job_id for j in running_jobs()] == ["a" * 32]
    assert alive.exists()
    assert elsewhere.exists()
    assert not dead.exists()
    assert not reused.exists() or not registry.process_start(os.getpid())
    assert not broken.exists()


def _fields(of: JobRecord) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


def test_a_job_port_is_published_and_withdrawn(state_home: Path, control: FakeControl) -> None:
    port = JobPort(control, "d" * 32, "name", 1.0, "127.0.0.1", 0)
    port.open()
    port._thread.join()
    (found,) = running_jobs()
    assert (found.job_id, found.url) == ("d" * 32, port.url)
    port.close()
    assert running_jobs() == []
    assert list((state_home / "tidegate" / "jobs").iterdir()) == []


def test_a_port_that_cannot_be_opened_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, control: FakeControl, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    port = JobPort(control, "d" * 32, "name", 1.0, "127.0.0.1", 0)
    port.open()
    port.close()
    assert "cannot be reached by the tidegate command" in caplog.text


def test_callers_without_the_token_do_not_lock_the_others_out(server: tuple[RestServer, str]) -> None:
    parts = urlsplit(server[1])
    strangers = []
    for _ in range(120):
        stranger = socket.create_connection((parts.hostname, parts.port), timeout=5)
        stranger.sendall(b"POST /v1/cancel HTTP/1.1\r\nContent-Length: 60000\r\n\r\n")
        strangers.append(stranger)
    assert ask(server, "GET", "/v1/job")[0] == 200
    assert b" 401 " in strangers[-1].recv(100)  # before its body has come
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "\u00b2", "9" * 5000, "70000", "5, 5", ""])
def test_an_odd_content_length_is_a_wrong_request(server: tuple[RestServer, str], length: str) -> None:
    parts = urlsplit(server[1])
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as caller:
        head = (
            f"POST /v1/cancel HTTP/1.1\r\nAuthorization: Bearer {server[0].token}\r\nContent-Length: {length}\r\n\r\n"
        )
        caller.sendall(head.encode("latin-1"))
        assert b" 400 " in caller.recv(100)


def test_nested_json_is_a_wrong_request(server: tuple[RestServer, str]) -> None:
    status, answer = ask(server, "POST", "/v1/stop", "[" * 60_000)
    assert status == 400
    assert "JSON" in answer["error"]
