"""Partitions between slots, and between a slot and the driver, on real sockets through a proxy that can be cut.

What is promised: frames arrive once, in order, without a gap; or somebody is told that the connection was lost. A
partition that is shorter than the heartbeat's timeout is not noticed at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tests.cut_proxy import CutProxy
from tidegate.common.ids import AttemptNumber, ChannelAddress, EdgeId, SlotIndex, SubtaskIndex
from tidegate.network import zmq_transport
from tidegate.network.serialization import ROWS
from tidegate.network.transport import ConnectionLostError
from tidegate.network.wire import Frame
from tidegate.network.zmq_transport import JobKeys, ZmqTransport, authenticate, new_context

CHANNEL = ChannelAddress(EdgeId(0), SubtaskIndex(0), SubtaskIndex(1))
ONE_WAY = {"forth": True, "back": False}
OTHER_WAY = {"forth": False, "back": True}
BOTH_WAYS = {"forth": True, "back": True}
WAYS = pytest.mark.parametrize("ways", [ONE_WAY, OTHER_WAY, BOTH_WAYS], ids=["forth", "back", "both"])


class TwoSlots:
    """Slot 0 sends to slot 1, through the proxy."""

    def __init__(self) -> None:
        self.keys = JobKeys.generate()
        self.contexts: list[zmq.Context[Any]] = [new_context(), new_context()]
        self.authenticators = [authenticate(context, self.keys) for context in self.contexts]
        self.slots = [ZmqTransport(c, self.keys, "127.0.0.1", AttemptNumber(0)) for c in self.contexts]
        self.proxy = CutProxy(self.slots[1].address)
        self.slots[0].connect([self.slots[0].address, self.proxy.address], SlotIndex(0))
        self.sent = 0
        self.arrived: list[int] = []

    def send(self, count: int, size: int = 10) -> None:
        for _ in range(count):
            payload = self.sent.to_bytes(4, "big") + bytes(size)
            self.slots[0].send(SlotIndex(1), Frame(ROWS, AttemptNumber(0), SlotIndex(0), 0, CHANNEL, 1, payload))
            self.sent += 1

    def work(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """As the loops of both slots do: raises ConnectionLostError when either notices."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            self.arrived += [int.from_bytes(f.payload[:4], "big") for f in self.slots[1].receive()]
            assert self.arrived == list(range(len(self.arrived)))  # once, in order, without a gap
            self.slots[0].check_connections()
            time.sleep(0.005)

    def all_arrive(self, seconds: float = 10.0) -> None:
        self.work(seconds, lambda: len(self.arrived) == self.sent)
        assert self.arrived == list(range(self.sent))

    def close(self) -> None:
        self.proxy.close()
        for slot, authenticator, context in zip(self.slots, self.authenticators, self.contexts, strict=True):
            slot.close()
            authenticator.stop()
            context.destroy(linger=0)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoSlots]:
    monkeypatch.setattr(zmq_transport, "HEARTBEAT_MS", 200)
    monkeypatch.setattr(zmq_transport, "HEARTBEAT_TIMEOUT_MS", 1_500)
    made = TwoSlots()
    made.send(10)
    made.all_arrive()
    yield made
    made.close()


@WAYS
def test_a_partition_shorter_than_the_heartbeat_is_not_noticed(two: TwoSlots, ways: dict[str, bool]) -> None:
    for _ in range(3):
        two.proxy.stop(**ways)
        two.send(50, size=10_000)
        two.work(0.4)
        two.proxy.go_on()
        two.all_arrive()


@WAYS
def test_a_partition_longer_than_the_heartbeat_is_an_error(two: TwoSlots, ways: dict[str, bool]) -> None:
    two.proxy.stop(**ways)
    two.send(50)
    with pytest.raises(ConnectionLostError, match="the connection to slot 1 was lost"):
        two.work(10)


def test_a_slow_network_is_only_slow(two: TwoSlots) -> None:
    """As long as what is under way takes less time than the heartbeat's timeout: heartbeats queue behind data."""
    two.proxy.slow_down(chunk=1_000, pause_s=0.002)
    for _ in range(4):
        two.send(10, size=10_000)
        two.all_arrive(30)


def test_a_connection_that_breaks_under_load_loses_nothing_silently(two: TwoSlots) -> None:
    two.proxy.slow_down(chunk=3_000, pause_s=0.005)
    two.send(200, size=10_000)
    two.work(0.3)
    two.proxy.break_connections()

    def go_on_sending() -> None:
        for _ in range(100):
            two.send(1)
            two.work(0.05)

    with pytest.raises(ConnectionLostError):
        go_on_sending()


def test_what_arrives_on_a_new_connection_after_a_loss_is_not_taken(two: TwoSlots) -> None:
    """Even if the sender did not notice: the receiver sees the gap by itself."""
    two.proxy.stop(forth=True, back=False)
    two.send(5)
    time.sleep(0.2)  # they are in the proxy, and are lost with it
    two.proxy.break_connections()
    two.proxy.go_on()
    two.send(5)

    def receive() -> None:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            two.arrived += [int.from_bytes(f.payload[:4], "big") for f in two.slots[1].receive()]
            time.sleep(0.005)

    with pytest.raises(ConnectionLostError, match="messages from slot 0 were lost"):
        receive()
    assert two.arrived == list(range(10))
