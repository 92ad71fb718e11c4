"""Callers without the token, or too slow, or too many: those with the token are served all the same."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tidegate.web.connections import BoundedHTTPServer

CONNECTIONS = 8


class Handler(BaseHTTPRequestHandler):
    server: BoundedHTTPServer

    def do_POST(self) -> None:
        if self.headers.get("Authorization") != "right":
            self.send_error(401)
            return
        self.server.admitted(self.connection)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received(self.connection)
        time.sleep(float(body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"done")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[BoundedHTTPServer]:
    made = BoundedHTTPServer(("127.0.0.1", 0), Handler, max_connections=CONNECTIONS, request_s=1.0)
    threading.Thread(target=made.serve, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def connect(server: BoundedHTTPServer, *sent: bytes) -> socket.socket:
    caller = socket.create_connection(("127.0.0.1", server.server_port), timeout=5)
    for part in sent:
        caller.sendall(part)
    return caller


def head(length: int, token: str = "right") -> bytes:
    return f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: {length}\r\n\r\n".encode()


def ask(server: BoundedHTTPServer, seconds: str = "0") -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.request("POST", "/", seconds, {"Authorization": "right"})
    return connection.getresponse().read()


def is_cut(caller: socket.socket) -> bool:
    try:
        return caller.recv(1000) == b""
    except ConnectionError:
        return True


def workers() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


def test_silent_strangers_keep_nobody_out_and_take_no_threads_beyond_the_bound(server: BoundedHTTPServer) -> None:
    callers = [connect(server) for _ in range(10 * CONNECTIONS)]
    assert ask(server) == b"done"
    assert workers() <= 2 * CONNECTIONS  # some that were dismissed may still be on their way out
    for caller in callers:
        caller.close()


def test_strangers_that_have_sent_half_a_head_keep_nobody_out(server: BoundedHTTPServer) -> None:
    callers = [connect(server, b"POST / HTTP/1.1\r\nX: ") for _ in range(3 * CONNECTIONS)]
    assert ask(server) == b"done"
    assert is_cut(callers[0])  # the oldest gave way
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("first", [b"POST / HTTP/1.1\r\nX: ", head(100)], ids=["head", "body"])
def test_who_sends_a_byte_now_and_then_is_cut_off_in_time(server: BoundedHTTPServer, first: bytes) -> None:
    caller = connect(server, first)
    began = time.monotonic()

    def trickle() -> None:
        while time.monotonic() - began < 60:
            caller.sendall(b"1")
            time.sleep(0.1)

    with pytest.raises(OSError, match=r"reset|[Bb]roken"):
        trickle()
    assert 0.9 <= time.monotonic() - began < 60
    caller.close()


def test_an_answer_may_take_longer_than_a_request(server: BoundedHTTPServer) -> None:
    assert ask(server, "1.7") == b"done"


def test_callers_with_the_token_give_way_to_nobody(server: BoundedHTTPServer) -> None:
    callers = [connect(server, head(3), b"0.8") for _ in range(CONNECTIONS)]
    time.sleep(0.3)
    stranger = connect(server)
    assert is_cut(stranger)
    for caller in callers:
        answer = b""
        while part := caller.recv(1000):
            answer += part
        assert answer.endswith(b"done")
