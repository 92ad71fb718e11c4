"""The REST port of a job's JobManager. On the loopback interface by default; every call needs the job's token.

    GET  /v1/job           -> {"job_id", "job_name", "status", ...}
    GET  /v1/checkpoints   -> {"checkpoints": [...]}
    POST /v1/savepoint     {"directory"}           -> {"path"}      answers when the savepoint is complete
    POST /v1/stop          {"directory", "drain"}  -> {"path"}      answers when the job has ended
    POST /v1/cancel                                -> {"status"}    answers when the job has ended

with the header `Authorization: Bearer <token>`. Errors are {"error": sentence}: 400 for a wrong request, 401 without
the token, 404 for an unknown path, 409 when the job cannot do it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.common.errors import TidegateError

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from tidegate.web.connections import BoundedHTTPServer

log = logging.getLogger("tidegate.rest")

_MAX_BODY = 64 * 1024
_MAX_CALLS = 32
_LAST_ANSWERS_S = 2.0


class JobControl(Protocol):
    """What the port offers. The last three block until it is done; TidegateError says why it cannot be."""

    def describe(self) -> dict[str, Any]: ...

    def checkpoints(self) -> list[dict[str, Any]]: ...

    def savepoint(self, directory: str | None) -> str: ...

    def stop(self, drain: bool, directory: str | None) -> str: ...

    def cancel(self) -> str: ...


class RestServer:
    """`start` binds the port; each call runs on a thread of its own. `close` lets calls that are under way answer."""

    def __init__(self, control: JobControl, host: str = "127.0.0.1", port: int = 0) -> None:
        self._control = control
        self._host = host
        self._port = port
        self.token = secrets.token_urlsafe(32)
        self._server: Any = None
        self._lock = threading.Lock()
        self._calls = 0  # under way, at most _MAX_CALLS

    def start(self) -> str:
        """The URL. Raises OSError when the port cannot be bound."""
        from tidegate.web.connections import BoundedHTTPServer

        self._server = server = BoundedHTTPServer((self._host, self._port), _handler_class(self))
        threading.Thread(target=server.serve, name="tidegate-rest", daemon=True).start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{server.server_port}"

    def close(self) -> None:
        if self._server is None:
            return
        end = time.monotonic() + _LAST_ANSWERS_S
        while self._calls and time.monotonic() < end:
            time.sleep(0.005)
        threading.Thread(target=self._shut_down, daemon=True).start()  # takes up to a poll: nobody waits for that

    def _shut_down(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # ------------------------------------------------------------ one call
    def knows(self, authorization: str) -> bool:
        """Whether a call may be made, by its `Authorization` header."""
        return hmac.compare_digest(authorization.encode(errors="replace"), f"Bearer {self.token}".encode())

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """(HTTP status, JSON) of a call that may be made."""
        try:
            return self._dispatch(method, path, body)
        except TidegateError as error:
            return 409, {"error": str(error)}
        except Exception as error:
            log.exception("%s %s failed", method, path)
            return 500, {"error": f"{type(error).__name__}: {error}"}

    @contextlib.contextmanager
    def under_way(self) -> Iterator[bool]:
        """Around a call, until its answer has been sent. False: there are too many."""
        with self._lock:
            admitted = self._calls < _MAX_CALLS
            self._calls += admitted
        try:
            yield admitted
        finally:
            with self._lock:
                self._calls -= admitted

    def _dispatch(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        control = self._control
        try:
            arguments = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            return 400, {"error": "the body is not JSON, or too deep"}
        if not isinstance(arguments, dict):
            return 400, {"error": "the body has to be a JSON object"}
        directory, drain = arguments.get("directory"), arguments.get("drain", False)
        if not isinstance(directory, str | None) or not isinstance(drain, bool):
            return 400, {"error": "'directory' has to be a string, 'drain' true or false"}
        match (method, path):
            case ("GET", "/v1/job"):
                return 200, control.describe()
            case ("GET", "/v1/checkpoints"):
                return 200, {"checkpoints": control.checkpoints()}
            case ("POST", "/v1/savepoint"):
                return 200, {"path": control.savepoint(directory)}
            case ("POST", "/v1/stop"):
                return 200, {"path": control.stop(drain, directory)}
            case ("POST", "/v1/cancel"):
                return 200, {"status": control.cancel()}
        return 404, {"error": f"there is no {method} {path}"}


def _handler_class(server: RestServer) -> type[BaseHTTPRequestHandler]:
    """Made late: http.server takes a while to import, and is not needed to start a job."""
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        server: BoundedHTTPServer
        server_version = "tidegate"
        sys_version = ""

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve(self, method: str) -> None:
            if not server.knows(self.headers.get("Authorization", "")):
                self._send(401, {"error": "this call needs the job's token (Authorization: Bearer ...)"})
                return
            self.server.admitted(self.connection)
            with server.under_way() as admitted:
                self._send(*(self._answer(method) if admitted else (503, {"error": "too many calls: try again"})))

        def _answer(self, method: str) -> tuple[int, dict[str, Any]]:
            length = self.headers.get("Content-Length", "0")
            if not (length.isascii() and length.isdigit()) or len(length) > 9 or int(length) > _MAX_BODY:
                return 400, {"error": f"the body may have at most {_MAX_BODY} bytes"}
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                return 400, {"error": "the body is shorter than it was said to be"}
            self.server.received(self.connection)
            return server.answer(method, self.path, body)

        def _send(self, status: int, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            with contextlib.suppress(OSError):  # the caller has gone
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Handler
