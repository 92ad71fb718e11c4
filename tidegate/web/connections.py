"""An HTTP server whose connections are bounded: in number, and in the time that a caller may take to ask.

A thread serves each connection, so what is bounded is threads, too. A connection begins as a stranger's. Strangers have
a few seconds for their request, all in all, however slowly it trickles in; and when there are as many connections as
may be, the oldest stranger gives way to a new caller. So nobody without the token can keep those with it out. Handlers
tell how far a caller is::

    server.admitted(connection)   its head is read and the token is right: it gives way to nobody
    server.received(connection)   its body is read: the answer may take as long as it takes

Imported late: http.server takes a while, and no job needs it to start.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

MAX_CONNECTIONS = 96  # of which those with the token take at most as many calls and streams as the API allows
REQUEST_S = 10.0  # for the whole request to come
_LOOK_S = 0.5  # how often it is looked for callers that are too slow


@dataclass
class _Caller:
    connection: socket.socket
    until: float | None  # when its request has to be here; None: it is
    stranger: bool = True


class BoundedHTTPServer(ThreadingHTTPServer):
    """`serve` blocks, on a thread of its own, until `shutdown`. Thread-safe."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        max_connections: int = MAX_CONNECTIONS,
        request_s: float = REQUEST_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._max = max_connections
        self._request_s = request_s
        self._tls = tls
        self._callers: dict[int, _Caller] = {}  # by id of the socket, oldest first, at most `max_connections`
        self._guard = threading.Lock()
        super().__init__(address, handler)

    def serve(self) -> None:
        self.serve_forever(min(_LOOK_S, self._request_s / 4))

    # ------------------------------------------------------------ for handlers
    def admitted(self, connection: socket.socket) -> None:
        with self._guard:
            caller = self._callers.get(id(connection))
            if caller is not None:
                caller.stranger = False

    def received(self, connection: socket.socket) -> None:
        with self._guard:
            caller = self._callers.get(id(connection))
            if caller is not None:
                caller.until = None

    # ------------------------------------------------------------ called by the standard library
    def get_request(self) -> Any:
        connection, address = super().get_request()
        if self._tls is not None:
            # The handshake comes with the first read, on the thread of the connection and within its time: nobody who
            # does not finish one keeps others from being accepted.
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            if len(self._callers) >= self._max and not self._dismiss_a_stranger():
                super().shutdown_request(request)
                return
            self._callers[id(request)] = _Caller(request, time.monotonic() + self._request_s)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._callers.pop(id(request), None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        now = time.monotonic()
        with self._guard:
            for caller in self._callers.values():
                if caller.until is not None and now > caller.until:
                    _cut(caller)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was cut off, or has gone: nothing that anybody has to read."""

    def _dismiss_a_stranger(self) -> bool:
        """Under the guard. Its thread notices and ends; that it does so a moment later does no harm."""
        for key, caller in self._callers.items():
            if caller.stranger:
                _cut(caller)
                del self._callers[key]
                return True
        return False


def _cut(caller: _Caller) -> None:
    with contextlib.suppress(OSError):  # it has gone by itself
        caller.connection.shutdown(socket.SHUT_RDWR)
