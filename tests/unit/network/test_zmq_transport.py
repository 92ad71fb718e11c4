"""The real transport: order, authentication, and that a lost connection is never silent."""

import time

import pytest
import zmq

from tidegate.common.ids import ChannelAddress
from tidegate.network.transport import ConnectionLostError
from tidegate.network.wire import CREDIT, Frame, FrameError, decode, encode_header
from tidegate.network.zmq_transport import JobKeys, ZmqTransport, authenticate

ADDRESS = ChannelAddress(3, 4, 5)


class Peer:
    def __init__(self, keys):
        self.context = zmq.Context()
        self.authenticator = authenticate(self.context, keys)
        self.transport = ZmqTransport(self.context, keys, "127.0.0.1", 7)

    def close(self):
        if self.context.closed:
            return
        self.transport.close()
        self.authenticator.stop()
        self.context.destroy(linger=0)


@pytest.fixture
def keys():
    return JobKeys.generate()


@pytest.fixture
def pair(keys):
    peers = [Peer(keys), Peer(keys)]
    for i, peer in enumerate(peers):
        peer.transport.connect([p.transport.address for p in peers], i)
    yield peers
    for peer in peers:
        peer.close()


def frame(payload, sender=0):
    return Frame(1, 7, sender, 0, ADDRESS, 2, payload)


def receive(peer, count, seconds=5.0):
    frames, end = [], time.monotonic() + seconds
    while len(frames) < count and time.monotonic() < end:
        frames += peer.transport.receive()
        time.sleep(0.005)
    return frames


def test_a_header_survives_the_wire():
    original = Frame(CREDIT, 1, 2, 3, ADDRESS, 4, b"x")
    assert decode(encode_header(original), b"x") == original
    assert decode(encode_header(original._replace(cost=3)), b"x").cost == 3


def test_frames_arrive_in_order_and_are_numbered(pair):
    for i in range(100):
        pair[0].transport.send(1, frame(str(i).encode()))
    got = receive(pair[1], 100)
    assert [f.payload for f in got] == [str(i).encode() for i in range(100)]
    assert [f.sequence for f in got] == list(range(100))
    assert {f.attempt for f in got} == {7}


@pytest.mark.parametrize("parts", [(b"short", b"x"), (encode_header(frame(b"x")),), (b"", b"", b"")])
def test_what_is_no_frame_is_an_error_with_a_sentence(pair, parts):
    pair[0].transport._peers[1].send_multipart(parts)
    with pytest.raises(FrameError, match="a frame"):
        receive(pair[1], 1)


def test_large_payloads_and_buffers_arrive_as_they_were_when_they_were_sent(pair):
    buffer = bytearray(b"x" * 3_000_000)
    payload = b"p" * 2_000_000
    pair[0].transport.send(1, frame(payload)._replace(cost=3, buffers=[memoryview(buffer), b"second"]))
    buffer[:] = b"changed" + bytes(len(buffer) - 7)
    pair[0].transport.send(1, frame(b"small"))
    first, second = receive(pair[1], 2)
    assert (first.payload, first.cost) == (payload, 3)
    assert [bytes(b) for b in first.buffers] == [b"x" * 3_000_000, b"second"]
    assert not memoryview(first.buffers[0]).readonly, "arrays that are made of it can be changed"
    assert (second.payload, second.buffers) == (b"small", [])


def test_a_large_value_holds_up_neither_its_sender_nor_other_records(keys):
    """Of 40 MB each, to a worker that reads nothing meanwhile: sending returns, records to and from a third pass
    between, and each large one arrives as it was."""
    peers = [Peer(keys), Peer(keys), Peer(keys)]
    for i, peer in enumerate(peers):
        peer.transport.connect([p.transport.address for p in peers], i)
    sender, busy, other = peers
    try:
        large = [bytearray([i]) * (40 << 20) for i in range(3)]
        for i, value in enumerate(large):
            sender.transport.send(1, frame(b"large")._replace(buffers=(value,)))
            for record in range(100):
                sender.transport.send(2, frame(f"{i} {record}".encode()))
            assert [f.payload for f in receive(other, 100, 60.0)] == [f"{i} {n}".encode() for n in range(100)]
            other.transport.send(0, frame(b"back", sender=2))
            assert [f.payload for f in receive(sender, 1, 60.0)] == [b"back"]
        arrived = receive(busy, 3, 60.0)  # only now
        assert [bytes(f.buffers[0]) == bytes(value) for f, value in zip(arrived, large, strict=True)] == [True] * 3
    finally:
        for peer in peers:
            peer.close()


def test_a_gap_in_the_numbers_is_an_error(pair):
    pair[0].transport._sent[1] = 5  # as if five frames had been lost
    pair[0].transport.send(1, frame(b"late"))
    with pytest.raises(ConnectionLostError, match="lost"):
        receive(pair[1], 1)


def test_a_frame_of_another_attempt_is_dropped(pair):
    pair[0].transport.send(1, frame(b"old")._replace(attempt=6))
    pair[0].transport._sent[1] = 0
    pair[0].transport.send(1, frame(b"new"))
    assert [f.payload for f in receive(pair[1], 1)] == [b"new"]


def test_a_peer_that_goes_away_is_noticed(pair):
    pair[0].transport.send(1, frame(b"x"))
    receive(pair[1], 1)
    pair[1].close()

    def watch():
        for _ in range(500):
            pair[0].transport.check_connections()
            time.sleep(0.01)

    with pytest.raises(ConnectionLostError, match="slot 1"):
        watch()


@pytest.mark.parametrize("stranger_keys", [JobKeys.generate(), None], ids=["other keys", "no keys"])
def test_a_stranger_is_not_heard(pair, keys, stranger_keys):
    context = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.linger = 0
    if stranger_keys is not None:  # knows the server's public key, but not the client's secret
        push.curve_serverkey = keys.server_public
        push.curve_publickey = stranger_keys.client_public
        push.curve_secretkey = stranger_keys.client_secret
    push.connect(pair[1].transport.address)
    push.send_multipart((encode_header(frame(b"evil")), b"evil"))
    assert receive(pair[1], 1, seconds=0.7) == []
    pair[0].transport.send(1, frame(b"good"))
    assert [f.payload for f in receive(pair[1], 1)] == [b"good"]
    context.destroy(linger=0)
