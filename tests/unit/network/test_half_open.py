"""Connections that never authenticate: they are dropped after a moment, and leave room for those that do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tidegate.network import zmq_transport
from tidegate.network.zmq_transport import JobKeys, authenticate, new_context

SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
import zmq
from tidegate.common.file_limits import raise_file_limit
from tidegate.network import zmq_transport
from tidegate.network.zmq_transport import JobKeys, authenticate, new_context
raise_file_limit()
zmq_transport.HANDSHAKE_MS = 60_000  # only the limit helps here
keys = JobKeys(*[part.encode() for part in sys.argv[1:5]])
context = new_context()
authenticator = authenticate(context, keys)
router = context.socket(zmq.ROUTER)
keys.secure_server(router)
print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while True:
    router.send_multipart(router.recv_multipart())
"""

GUARDED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
import zmq
from tidegate.network import door, zmq_transport
from tidegate.network.zmq_transport import JobKeys, authenticate, new_context
zmq_transport.HANDSHAKE_MS = 60_000  # only the count helps here
door.STRANGERS = 20
keys = JobKeys(*[part.encode() for part in sys.argv[1:5]])
context = new_context()
authenticator = authenticate(context, keys)
router = context.socket(zmq.ROUTER)
keys.secure_server(router)
guard = door.Door(router, "the port")
guard.expect(2)
print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
while True:
    sender, message = router.recv_multipart()
    with open("/dev/null"):
        router.send_multipart((sender, message))
"""


@pytest.fixture
def keys() -> JobKeys:
    return JobKeys.generate()


@pytest.fixture
def port(keys: JobKeys) -> Iterator[int]:
    parts = [keys.server_public, keys.server_secret, keys.client_public, keys.client_secret]
    command = [sys.executable, "-c", SERVER, *[part.decode() for part in parts]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.fixture
def guarded(keys: JobKeys) -> Iterator[int]:
    """A port of a process that may open 100 files and answers by opening one."""
    parts = [keys.server_public, keys.server_secret, keys.client_public, keys.client_secret]
    command = [sys.executable, "-c", GUARDED, *[part.decode() for part in parts]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def echoed(port: int, keys: JobKeys) -> bool:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        keys.secure_client(dealer)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"hello")
        return bool(dealer.poll(5_000)) and dealer.recv() == b"hello"


def test_half_open_connections_beyond_the_usual_limit_do_not_keep_a_worker_out(port: int, keys: JobKeys) -> None:
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(400)]
    assert echoed(port, keys)
    for stranger in strangers:
        stranger.close()


@pytest.mark.skipif(sys.platform != "linux", reason="turning connections away needs Linux's socket filters")
def test_strangers_do_not_take_the_files_that_a_process_needs(guarded: int, keys: JobKeys) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        keys.secure_client(dealer)
        dealer.connect(f"tcp://127.0.0.1:{guarded}")
        dealer.send(b"before")
        assert dealer.poll(10_000)
        assert dealer.recv() == b"before"
        strangers = [socket.socket() for _ in range(300)]
        for stranger in strangers:
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", guarded))
            time.sleep(0.001)  # all at once would find the door open
        for i in range(20):
            dealer.send(b"%d" % i)
            assert dealer.poll(10_000)
            assert dealer.recv() == b"%d" % i
        for stranger in strangers:
            stranger.close()
    assert echoed(guarded, keys)  # the door is open again


def test_a_connection_that_does_not_authenticate_is_dropped_in_time(
    keys: JobKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert zmq_transport.HANDSHAKE_MS <= 5_000
    monkeypatch.setattr(zmq_transport, "HANDSHAKE_MS", 300)
    context: zmq.Context[Any] = new_context()
    authenticator = authenticate(context, keys)
    router = context.socket(zmq.ROUTER)
    keys.secure_server(router)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    before = len(os.listdir("/proc/self/fd"))
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
    for stranger in strangers:
        while stranger.recv(100):  # ZeroMQ's greeting, then the end
            pass
        stranger.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    authenticator.stop()
    context.destroy(linger=0)


def test_a_slot_can_have_more_peers_than_zeromq_allows_by_default() -> None:
    context = new_context()
    assert context.get(zmq.MAX_SOCKETS) >= 3 * 5_000  # a peer takes three: one to send on, two to watch it
    context.destroy(linger=0)
