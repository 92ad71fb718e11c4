"""The HTTP server of jobs. On the loopback interface by default, on others with TLS (`rest_settings.py`). What it
answers is `api.py`'s business; here are the sockets, the limits, and the headers that every answer has.

A request is let in by its head alone, before its body is read. Connections are bounded (`connections.py`), as are calls
and streams under way.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidegate.common.texts import bounded
from tidegate.web.access import Gate
from tidegate.web.api import Answer, Api, problem
from tidegate.web.jobs import Jobs
from tidegate.web.rest_settings import RestSettings

if TYPE_CHECKING:
    import ssl
    from http.server import BaseHTTPRequestHandler

    from tidegate.web.connections import BoundedHTTPServer

log = logging.getLogger("tidegate.rest")

_MAX_BODY = 64 * 1024
_MAX_SENTENCE = 300
_MAX_CALLS = 32
_MAX_STREAMS = 16
_LAST_ANSWERS_S = 2.0
_PORTS_TRIED = 100  # from the one that is asked for on; then any free one is taken
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RestServer:
    """`start` binds the port; each call runs on a thread of its own. `close` lets calls that are under way answer."""

    def __init__(self, jobs: Jobs, settings: RestSettings | None = None) -> None:
        self.gate = Gate()
        self._closing = threading.Event()
        self.api = Api(jobs, self.gate, self._closing)
        self._settings = settings or RestSettings()
        self._server: Any = None
        self._lock = threading.Lock()
        self._calls = 0  # under way, at most _MAX_CALLS
        self._streams = 0  # open, at most _MAX_STREAMS

    @property
    def token(self) -> str:
        return self.gate.token

    def start(self, what: str = "the page") -> str:
        """The URL, of the next free port when the one that was asked for is in use, which the log says of `what`.
        Raises OSError when no port can be bound, ConfigurationError when it cannot be encrypted."""
        chosen = self._settings
        context = None if chosen.tls is None else chosen.tls.context()
        self._server = server = self._bound(context)
        if chosen.port not in (0, server.server_port):
            log.warning("%s: port %d is in use, %d is taken instead", what, chosen.port, server.server_port)
        if context is not None:
            self.gate.attributes += "; Secure"
        self.gate.cookie = f"tidegate_{server.server_port}"  # browsers send cookies to all ports of a host
        threading.Thread(target=server.serve, name="tidegate-rest", daemon=True).start()
        return chosen.url(server.server_port)

    def _bound(self, context: ssl.SSLContext | None) -> BoundedHTTPServer:
        from tidegate.web.connections import BoundedHTTPServer

        host, wanted = self._settings.host, self._settings.port
        handler = _handler_class(self)
        for port in range(wanted, min(wanted + _PORTS_TRIED, 65536)) if wanted else ():
            try:
                return BoundedHTTPServer((host, port), handler, tls=context)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        return BoundedHTTPServer((host, 0), handler, tls=context)  # any

    def close(self) -> None:
        self._closing.set()
        if self._server is None:
            return
        end = time.monotonic() + _LAST_ANSWERS_S
        while (self._calls or self._streams) and time.monotonic() < end:
            time.sleep(0.005)
        threading.Thread(target=self._shut_down, daemon=True).start()  # takes up to a poll: nobody waits for that

    def _shut_down(self) -> None:
        self._server.shutdown()
        self._server.server_close()

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

    @contextlib.contextmanager
    def streaming(self) -> Iterator[bool]:
        """Around a stream, as `under_way`."""
        with self._lock:
            admitted = self._streams < _MAX_STREAMS
            self._streams += admitted
        try:
            yield admitted
        finally:
            with self._lock:
                self._streams -= admitted


def _handler_class(server: RestServer) -> type[BaseHTTPRequestHandler]:
    """Made late: http.server takes a while to import, and is not needed to start a job."""
    from http import HTTPStatus
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        server: BoundedHTTPServer
        server_version = "tidegate"
        sys_version = ""

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve_another(self) -> None:
            """A method that no call has: told as all else that there is not."""
            self._serve(self.command)

        do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_QUERY = _serve_another

        def _serve(self, method: str) -> None:
            path, _, query = self.path.partition("?")
            refusal = server.api.admit(method, path, self.headers)  # type: ignore[arg-type]
            with contextlib.suppress(OSError):  # the caller has gone
                if refusal is not None:
                    self._send(refusal)
                    return
                if server.api.is_public(method, path):  # takes no place from those who have a token
                    self._send(self._answer(method, path, query))
                    return
                self.server.admitted(self.connection)
                with server.under_way() as admitted:
                    answer = (
                        self._answer(method, path, query) if admitted else problem(503, "too many calls: try again")
                    )
                    if answer.stream is None:
                        self._send(answer)
                if answer.stream is not None:
                    self._send_stream(answer, answer.stream)

        def _answer(self, method: str, path: str, query: str) -> Answer:
            length = self.headers.get("Content-Length", "0")
            if not (length.isascii() and length.isdigit()) or len(length) > 9 or int(length) > _MAX_BODY:
                return problem(400, f"the body may have at most {_MAX_BODY} bytes")
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                return problem(400, "the body is shorter than it was said to be")
            self.server.received(self.connection)
            return server.api.answer(method, path, self.headers, body, query)  # type: ignore[arg-type]

        def _send(self, answer: Answer) -> None:
            self._send_head(answer)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.wfile.flush()

        def _send_stream(self, answer: Answer, stream: Iterator[bytes]) -> None:
            with server.streaming() as admitted:
                if not admitted:
                    self._send(problem(503, "too many pages are open: close one"))
                    return
                self._send_head(answer)
                self.end_headers()
                for part in stream:
                    self.wfile.write(part)
                    self.wfile.flush()

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """Called by the standard library for what it does not take as a request: too long, with too many headers,
            of a method or version that it does not know."""
            sentence = bounded(message or HTTPStatus(code).phrase, _MAX_SENTENCE)
            self.close_connection = True
            self.request_version = "HTTP/1.0"  # what it would be of a broken head gets an answer without a head
            with contextlib.suppress(OSError):
                self._send(problem(code, sentence))

        def _send_head(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            for name, value in {**_HEADERS, **answer.headers}.items():
                self.send_header(name, value)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return Handler
