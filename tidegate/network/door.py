"""A bound on how many connections a port has at one time, strangers included.

Whoever reaches a port can connect to it, and holds a file descriptor until the handshake that does not come is given
up. ZeroMQ accepts without a limit of its own, and a process without free descriptors cannot open its state's files.
"""

from __future__ import annotations

import ctypes
import logging
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

log = logging.getLogger(__name__)

STRANGERS = 256
"""So many connections more than are expected are let in."""

_EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # Linux; Python has no names for them
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # a packet filter: return 0 bytes of it


class Door:
    """Watches one server socket from the moment that it is made (before it is bound), on a thread of its own, which
    needs no call of the socket's owner: that one may be busy with user code.

    While there are more connections than `expect` said and `STRANGERS` more, the kernel drops requests for new ones
    (their senders try again, with pauses). Connections that are there are not touched. On systems without Linux's
    socket filters nothing is dropped, and only the warning is logged.
    """

    def __init__(self, server: zmq.Socket[Any], name: str) -> None:
        """`name`: of the port, in the warning."""
        self._name = name
        self._expected = 0
        self._open: set[int] = set()  # descriptors of connections
        self._listening: socket.socket | None = None  # a second descriptor of it: there may be none left later
        self._shut = False
        self._filters = sys.platform == "linux"
        address = f"inproc://tidegate-door-{id(self)}"
        server.monitor(address, _EVENTS)
        # A socket of the thread's own, which `Context.destroy` on another thread does not close under its feet.
        self._monitor: zmq.Socket[Any] = zmq.Context.shadow(server.context).socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # the I/O thread of the context must not wait for us
        self._monitor.connect(address)
        self._thread = threading.Thread(target=self._watch, name="tidegate-door", daemon=True)
        self._thread.start()

    def expect(self, connections: int) -> None:
        """So many may come for good reasons. From any thread."""
        self._expected = connections

    def close(self, server: zmq.Socket[Any]) -> None:
        """By the owner of the socket, before it closes that."""
        server.monitor(None, 0)
        self._thread.join()

    def _watch(self) -> None:
        try:
            while self._take(recv_monitor_message(self._monitor)):
                pass
        except zmq.ZMQError:  # the context was ended without `close`
            return
        finally:
            self._monitor.close(0)
            if self._listening is not None:
                self._listening.close()

    def _take(self, event: Mapping[str, Any]) -> bool:
        """False: it was the last one."""
        kind, value = event["event"], int(event["value"])
        if kind == zmq.EVENT_MONITOR_STOPPED:
            return False
        if kind == zmq.EVENT_LISTENING:
            self._listening = socket.fromfd(value, socket.AF_INET, socket.SOCK_STREAM)
        elif kind == zmq.EVENT_ACCEPTED:
            self._open.add(value)
        else:
            self._open.discard(value)
        most = self._expected + STRANGERS
        if not self._shut and len(self._open) > most:
            log.warning(
                "%s has %d connections, and %d are expected: until some of them have gone, new ones are turned away. "
                "See who connects to it (ss -tnp), and keep strangers out with a packet filter",
                self._name,
                len(self._open),
                self._expected,
            )
            self._turn(shut=True)
        elif self._shut and len(self._open) <= most - STRANGERS // 2:
            self._turn(shut=False)
        return True

    def _turn(self, shut: bool) -> None:
        self._shut = shut
        if self._listening is None or not self._filters:
            return
        try:
            if shut:
                program = struct.pack("HP", 1, ctypes.addressof(_DROP_ALL))
                self._listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            else:
                self._listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        except OSError as error:  # some sandboxes. This thread has to live: ZeroMQ waits for its monitor's reader
            self._filters = False
            log.warning("%s: connections cannot be turned away here: %s", self._name, error)
