"""The real transport: ZeroMQ over TCP with CURVE on every socket.

Each slot binds one PULL socket and connects one PUSH socket per peer. ZeroMQ's I/O thread is C++ and needs no GIL; the
mailbox thread polls. Credits bound what is in flight, so high-water marks are off: a send never blocks. ZeroMQ would
reconnect silently and lose what was in flight, so a lost connection is watched for and ends the attempt, and frames are
numbered: a gap is an error, never a silent loss.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.network.door import Door
from tidegate.network.transport import ConnectionLostError
from tidegate.network.wire import Frame, FrameError, decode, encode_header

_ZAP_DOMAIN = "tidegate"
_MAX_FRAMES_PER_RECEIVE = 256
_COPIED = 1 << 16  # smaller parts are copied into the message: it is cheaper than watching over them
_MAX_SOCKETS = 16_384  # three for each peer (one to send on, two to watch it): ZeroMQ's own default is enough for 340
HANDSHAKE_MS = 3_000  # for a connection to authenticate: until then anybody may have made it
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2_000, 6_000  # of a data connection
_BACKLOG = 256  # all slots of a gang connect at once


def new_context() -> zmq.Context[Any]:
    """A context for all sockets of one process."""
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    return context


@dataclass(frozen=True)
class JobKeys:
    """CURVE keys of one job, made by the driver and shipped inside the Spark closure (never over an open socket).

    Servers (everything that binds) use the server pair; clients use the client pair, and a server accepts no other."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @staticmethod
    def generate() -> JobKeys:
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        return JobKeys(server_public, server_secret, client_public, client_secret)

    def secure_server(self, socket: Any) -> None:
        """Must be called before bind; the socket's context needs an `authenticate` first. Connections that do not
        authenticate in time are dropped: each takes a file descriptor."""
        socket.handshake_ivl = HANDSHAKE_MS
        socket.backlog = _BACKLOG
        socket.curve_server = True
        socket.curve_secretkey = self.server_secret
        socket.curve_publickey = self.server_public
        socket.zap_domain = _ZAP_DOMAIN.encode()

    def secure_client(self, socket: Any) -> None:
        socket.curve_serverkey = self.server_public
        socket.curve_publickey = self.client_public
        socket.curve_secretkey = self.client_secret


class _OnlyOurClients:
    def __init__(self, keys: JobKeys) -> None:
        self._accepted = keys.client_public

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._accepted)  # both in Z85


def authenticate(context: zmq.Context[Any], keys: JobKeys) -> ThreadAuthenticator:
    """Start the context's authenticator: from now on its CURVE servers accept only the job's client key."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(domain=_ZAP_DOMAIN, credentials_provider=_OnlyOurClients(keys))
    return authenticator


class ZmqTransport:
    """Implements `DataTransport`. Owned by the mailbox thread, except `address`, which is known after construction."""

    def __init__(self, context: zmq.Context[Any], keys: JobKeys, host: str, attempt: AttemptNumber) -> None:
        self._context = context
        self._keys = keys
        self._attempt = attempt
        self._pull = context.socket(zmq.PULL)
        self._pull.setsockopt(zmq.RCVHWM, 0)
        self._pull.setsockopt(zmq.LINGER, 0)
        keys.secure_server(self._pull)
        self._door = Door(self._pull, "a data port")
        port = self._pull.bind_to_random_port(f"tcp://{host}")
        self.address = f"tcp://{host}:{port}"
        self._peers: dict[SlotIndex, Any] = {}
        self._monitors: dict[Any, SlotIndex] = {}
        self._sent: dict[SlotIndex, int] = {}  # frames sent to each peer
        self._received: dict[SlotIndex, int] = {}  # frames received from each peer
        self.poller = zmq.Poller()
        self.poller.register(self._pull, zmq.POLLIN)

    def connect(self, addresses: list[str], me: SlotIndex) -> None:
        self._door.expect(2 * len(addresses))  # a peer that comes again, or comes twice, before the first one is gone
        for i, address in enumerate(addresses):
            if i == me:
                continue
            slot = SlotIndex(i)
            push = self._context.socket(zmq.PUSH)
            push.setsockopt(zmq.SNDHWM, 0)
            push.setsockopt(zmq.LINGER, 0)
            push.setsockopt(zmq.RECONNECT_IVL, 20)
            push.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            push.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
            self._keys.secure_client(push)
            monitor = push.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
            push.connect(address)
            self._peers[slot] = push
            self._monitors[monitor] = slot
            self._sent[slot] = self._received[slot] = 0
            self.poller.register(monitor, zmq.POLLIN)

    def send(self, to: SlotIndex, frame: Frame) -> None:
        sequence = self._sent[to]
        self._sent[to] = sequence + 1
        header = encode_header(frame._replace(sequence=sequence))
        peer = self._peers[to]
        if not frame.buffers and len(frame.payload) < _COPIED:
            peer.send_multipart((header, frame.payload), zmq.NOBLOCK)
            return
        parts = [frame.payload, *frame.buffers]
        peer.send(header, zmq.NOBLOCK | zmq.SNDMORE)
        for i, part in enumerate(parts, 1):
            more = zmq.SNDMORE if i < len(parts) else 0
            # Bytes cannot change any more and are sent as they are. Other buffers belong to the user's objects, which
            # may change before the I/O thread comes to them: half of one record and half of the next would be sent.
            peer.send(part, zmq.NOBLOCK | more, copy=not isinstance(part, bytes))

    def receive(self) -> list[Frame]:
        frames: list[Frame] = []
        pull = self._pull
        while len(frames) < _MAX_FRAMES_PER_RECEIVE:
            try:
                # Not copied: what is unpickled from it (or refers to it: large arrays) keeps the message alive.
                parts = pull.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            if len(parts) < 2:
                raise FrameError(f"a frame came in {len(parts)} parts")
            header, payload, *buffers = [part.buffer for part in parts]
            frame = decode(header, payload, buffers)
            if frame.attempt != self._attempt:
                continue  # a worker of an earlier attempt whose peer had this port: fenced, and not in our numbering
            expected = self._received.get(frame.sender, 0)
            if frame.sequence != expected:
                raise ConnectionLostError(
                    f"messages from slot {frame.sender} were lost (got number {frame.sequence}, expected {expected})"
                )
            self._received[frame.sender] = expected + 1
            frames.append(frame)
        return frames

    def is_monitor(self, ready: Any) -> bool:
        """Whether what the poller saw is news of a connection: call `check_connections` then."""
        return ready in self._monitors

    def check_connections(self) -> None:
        """Raise when a peer went away. Called when the poller saw a monitor event, and now and then."""
        for monitor, slot in self._monitors.items():
            if monitor.poll(0):
                event = recv_monitor_message(monitor)
                raise ConnectionLostError(f"the connection to slot {slot} was lost ({zmq.Event(event['event']).name})")

    def close(self) -> None:
        for monitor in self._monitors:
            self.poller.unregister(monitor)
        for push in self._peers.values():
            push.disable_monitor()
            push.close(0)
        self._door.close(self._pull)
        self._pull.close(0)
