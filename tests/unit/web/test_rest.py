"""The server: who is let in, what a wrong request gets, and its end."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.unit.web.web_kit import FakeJobs
from tidegate.web.rest import RestServer

JOB = "/v1/jobs/" + "abcd" * 8
Server = tuple[RestServer, str]


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


@pytest.fixture
def server(jobs: FakeJobs) -> Iterator[Server]:
    rest = RestServer(jobs)
    yield rest, rest.start()
    rest.close()


def request(
    server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    parts = urlsplit(server[1])
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    data = body if isinstance(body, str | bytes) else None if body is None else json.dumps(body)
    connection.request(method, path, data, headers or {})
    response = connection.getresponse()
    return response, response.read()


def ask(server: Server, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
    headers = {} if token == "" else {"Authorization": f"Bearer {token or server[0].token}"}
    response, data = request(server, method, path, body, headers)
    return response.status, json.loads(data)


def test_the_port_is_on_the_loopback_and_answers_with_json(server: Server) -> None:
    assert server[1].startswith("http://127.0.0.1:")
    status, answer = ask(server, "GET", JOB)
    assert (status, answer["job_id"], answer["job_name"], answer["status"]) == (200, "abcd" * 8, "my job", "RUNNING")


@pytest.mark.parametrize("token", ["", "wrong", "é"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", JOB), ("POST", f"{JOB}/cancel"), ("GET", "/nowhere"), ("GET", "/metrics"), ("GET", f"{JOB}/events")],
)
def test_a_call_without_the_token_gets_nothing(
    server: Server, jobs: FakeJobs, token: str, method: str, path: str
) -> None:
    status, answer = ask(server, method, path, token=token.encode("utf-8").decode("latin-1"))
    assert status == 401
    assert "token" in answer["error"]
    assert jobs.calls == []


def test_the_token_is_looked_at_before_the_body_is_waited_for(server: Server) -> None:
    parts = urlsplit(server[1])
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as caller:
        caller.sendall(f"POST {JOB}/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n".encode())
        assert b" 401 " in caller.recv(4096)


def test_the_read_only_token_looks_and_changes_nothing(server: Server, jobs: FakeJobs) -> None:
    token = server[0].gate.read_token
    assert ask(server, "GET", JOB, token=token)[0] == 200
    assert ask(server, "GET", "/v1/session", token=token) == (200, {"access": "read"})
    for change in ("savepoint", "stop", "cancel"):
        assert ask(server, "POST", f"{JOB}/{change}", {}, token=token)[0] == 403
    assert jobs.calls == []


def test_arguments_reach_the_job_and_its_refusal_comes_back_as_a_sentence(server: Server, jobs: FakeJobs) -> None:
    assert ask(server, "POST", f"{JOB}/savepoint", {"directory": "/d"}) == (200, {"path": "/d/savepoint-1"})
    assert ask(server, "POST", f"{JOB}/savepoint", {}) == (409, {"error": "no folder was given"})
    assert ask(server, "POST", f"{JOB}/stop", {"drain": True, "directory": "/d"}) == (200, {"path": "there"})
    assert jobs.calls[-1] == ("stop", True, "/d")


@pytest.mark.parametrize(
    "body", ["{", "[1]", '{"directory": 5}', '{"drain": "yes"}', '{"drian": true}', "[" * 60_000, "x" * 70_000]
)
def test_a_wrong_body_is_refused(server: Server, jobs: FakeJobs, body: str) -> None:
    status, answer = ask(server, "POST", f"{JOB}/stop", body)
    assert status == 400
    assert answer["error"]
    assert jobs.calls == []


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "\u00b2", "9" * 5000, "70000", "5, 5", ""])
def test_an_odd_content_length_is_a_wrong_request(server: Server, length: str) -> None:
    parts = urlsplit(server[1])
    with socket.create_connection((parts.hostname, parts.port), timeout=5) as caller:
        head = (
            f"POST {JOB}/stop HTTP/1.1\r\nAuthorization: Bearer {server[0].token}\r\nContent-Length: {length}\r\n\r\n"
        )
        caller.sendall(head.encode("latin-1"))
        assert b" 400 " in caller.recv(100)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"a" * 65_532, 414),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101, 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 65_534, 431),
        (b"BREW /<b> HTTP/1.1\r\n\r\n", 501),
        (b"<script>alert(1)</script>\r\n\r\n", 400),
        (b"GET / HTTP/nine\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"\xff\x00 \xfe HTTP/1.1 x\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_gets_an_answer_like_all_others(server: Server, head: bytes, status: int) -> None:
    parts = urlsplit(server[1])
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as caller:
        caller.sendall(head)
        response = http.client.HTTPResponse(caller)
        response.begin()
        document = json.loads(response.read())
    assert (response.status, list(document)) == (status, ["error"])
    assert 0 < len(document["error"]) < 500
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, "GET", JOB)[0] == 200


def test_callers_without_the_token_do_not_lock_the_others_out(server: Server) -> None:
    parts = urlsplit(server[1])
    strangers = []
    for path in ("/v1/login", f"{JOB}/cancel") * 60:
        stranger = socket.create_connection((parts.hostname, parts.port), timeout=5)
        stranger.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: 60000\r\n\r\n".encode())
        strangers.append(stranger)
    assert ask(server, "GET", JOB)[0] == 200
    assert b" 401 " in strangers[-1].recv(100)  # before its body has come
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/job", 404),
        ("GET", "/v1/jobs/unknown", 404),
        ("GET", f"{JOB}/vertices/9", 404),
        ("GET", f"{JOB}/vertices/one", 400),
        ("GET", f"{JOB}/vertices/²", 400),
        ("GET", f"{JOB}/checkpoints/{'9' * 40}", 400),
        ("GET", f"{JOB}/checkpoints/999999", 404),
        ("POST", JOB, 405),
        ("GET", f"{JOB}/stop", 405),
        ("DELETE", JOB, 405),
        ("QUERY", "/nowhere", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/static/../rest.py", 404),
    ],
)
def test_what_there_is_not_is_told(server: Server, method: str, path: str, status: int) -> None:
    found, answer = ask(server, method, path.replace("²", "%C2%B2"))
    assert found == status
    assert answer["error"]


def test_a_browser_gets_a_session_that_scripts_cannot_read(server: Server, jobs: FakeJobs) -> None:
    rest, _ = server
    assert request(server, "POST", "/v1/login", {"token": "wrong"})[0].status == 401
    assert request(server, "POST", "/v1/login", {"token": 5})[0].status == 400
    response, data = request(server, "POST", "/v1/login", {"token": rest.token})
    assert json.loads(data) == {"access": "full"}
    cookie = response.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert rest.token not in cookie
    session = {"Cookie": f"other=1; {cookie.partition(';')[0]}"}
    assert request(server, "GET", JOB, headers=session)[0].status == 200
    change = f"{JOB}/savepoint"
    assert request(server, "POST", change, {"directory": "/d"}, session)[0].status == 403  # another site could send it
    assert jobs.calls == []
    with_header = {**session, "X-Tidegate-Request": "1"}
    assert request(server, "POST", change, {"directory": "/d"}, with_header)[0].status == 200
    removed = request(server, "POST", "/v1/logout", {}, with_header)[0].headers["Set-Cookie"]
    assert "Max-Age=0" in removed
    assert request(server, "GET", JOB, headers=session)[0].status == 401


def test_a_session_of_the_read_only_token_changes_nothing(server: Server, jobs: FakeJobs) -> None:
    response, _ = request(server, "POST", "/v1/login", {"token": server[0].gate.read_token})
    session = {"Cookie": response.headers["Set-Cookie"].partition(";")[0], "X-Tidegate-Request": "1"}
    assert request(server, "POST", f"{JOB}/cancel", {}, session)[0].status == 403
    assert jobs.calls == []


def test_sessions_are_bounded_and_the_oldest_goes(server: Server) -> None:
    gate = server[0].gate
    first = gate.login(gate.token)[1].partition(";")[0]
    for _ in range(100):
        gate.login(gate.token)
    assert len(gate._sessions) == 64
    assert request(server, "GET", JOB, headers={"Cookie": first})[0].status == 401


def test_every_answer_forbids_what_a_page_does_not_need(server: Server) -> None:
    for path in ("/", "/app.js", "/v1/jobs", "/nowhere"):
        headers = request(server, "GET", path)[0].headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Cache-Control"] == "no-store"


def test_events_tell_of_changes_and_of_the_end(server: Server, jobs: FakeJobs) -> None:
    parts = urlsplit(server[1])
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", f"{JOB}/events", headers={"Authorization": f"Bearer {server[0].token}"})
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.readline() == b"event: job\n"
    assert json.loads(response.readline()[6:])["status"] == "RUNNING"
    jobs.shown = msgspec.structs.replace(jobs.shown, status_name="FINISHED", ended_ms=jobs.shown.started_ms + 5)
    rest = response.read().decode()
    assert '"status":"FINISHED"' in rest
    assert rest.endswith("event: end\ndata: {}\n\n")


def test_streams_are_bounded_apart_from_calls_and_end_with_the_port(jobs: FakeJobs) -> None:
    rest = RestServer(jobs)
    server = rest, rest.start()
    parts = urlsplit(server[1])
    open_ones = []
    headers = {"Authorization": f"Bearer {rest.token}"}
    for _ in range(16):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
        connection.request("GET", f"{JOB}/events", headers=headers)
        open_ones.append((connection, connection.getresponse()))
    assert request(server, "GET", f"{JOB}/events", headers=headers)[0].status == 503
    assert ask(server, "GET", JOB)[0] == 200
    rest.close()
    assert all(b"event: end" in response.read() for _, response in open_ones)


def test_a_call_that_waits_for_the_end_of_the_job_gets_its_answer_before_the_port_closes(jobs: FakeJobs) -> None:
    rest = RestServer(jobs)
    server = rest, rest.start()
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(ask(server, "POST", f"{JOB}/cancel")))
    caller.start()
    while not rest._calls:
        time.sleep(0.005)
    jobs.over.set()
    rest.close()
    caller.join(10)
    assert answers == [(200, {"status": "CANCELED"})]
