"""A TCP proxy on the loopback that can be cut: what a partition of the network looks like from both ends.

A direction that is stopped keeps its connections and passes nothing on, as a network that drops packets does; what was
sent meanwhile arrives when it goes on. A connection that is broken is reset on both sides.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Any

_CHUNK = 65_536
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class CutProxy:
    """In front of one port. `address` is what clients connect to. Thread-safe."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._flows = {True: threading.Event(), False: threading.Event()}  # True: towards the target
        for flow in self._flows.values():
            flow.set()
        self._pause_s = 0.0  # before each chunk that is passed on
        self._chunk = _CHUNK
        self._ends: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        self._start(self._accept)

    # ------------------------------------------------------------ faults
    def stop(self, forth: bool = True, back: bool = True) -> None:
        """Nothing is passed on towards the target, or back from it."""
        for flow, stopped in ((self._flows[True], forth), (self._flows[False], back)):
            if stopped:
                flow.clear()

    def go_on(self) -> None:
        for flow in self._flows.values():
            flow.set()

    def slow_down(self, chunk: int, pause_s: float) -> None:
        self._chunk, self._pause_s = chunk, pause_s

    def break_connections(self) -> None:
        """All that there are now; new ones can be made."""
        ends, self._ends = self._ends, []
        for pair in ends:
            for end in pair:
                _reset(end)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.go_on()
        self.break_connections()

    # ------------------------------------------------------------ threads
    def _start(self, target: Any, *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, name="cut-proxy", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            self._ends.append((client, server))
            self._start(self._pass_on, client, server, True)
            self._start(self._pass_on, server, client, False)

    def _pass_on(self, source: socket.socket, target: socket.socket, forth: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self._chunk):
                time.sleep(self._pause_s)
                self._flows[forth].wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        end.close()
