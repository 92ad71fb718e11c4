"""The slot's connection to the JobManager, on real sockets: heartbeats, and the end of a task that does not leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.common.metric_values import CounterValue, MetricReport
from tidegate.network.zmq_transport import JobKeys, authenticate
from tidegate.protocol.messages import Leave, MasterToSlot, SlotHeartbeat, decode_from_slot, encode
from tidegate.spark.streaming import control_link
from tidegate.spark.streaming.control_link import ControlLink
from tidegate.taskmanager.clock import SystemClock

METRIC = MetricReport(0, 0, "numRecordsIn", CounterValue(1))


class Master:
    """The JobManager's end of one connection."""

    def __init__(self) -> None:
        self.keys = JobKeys.generate()
        self.context: zmq.Context[Any] = zmq.Context()
        self.authenticator = authenticate(self.context, self.keys)
        self.router = self.context.socket(zmq.ROUTER)
        self.keys.secure_server(self.router)
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self.delivered: list[MasterToSlot] = []
        self.links: list[ControlLink] = []

    def link(self, **settings: float) -> ControlLink:
        times = {"heartbeat_interval_ms": 20.0, "heartbeat_timeout_ms": 60_000.0, "leave_grace_ms": 1_000.0}
        link = ControlLink(
            self.context,
            self.address,
            self.keys,
            incarnation="me",
            attempt=AttemptNumber(0),
            slot=SlotIndex(3),
            clock=SystemClock(),
            deliver=self.delivered.append,
            metrics=lambda: (METRIC,),
            **{**times, **settings},
        )
        link.start()
        self.links.append(link)
        return link

    def receive(self) -> Any:
        assert self.router.poll(5_000)
        return decode_from_slot(self.router.recv_multipart()[1])

    def tell_to_leave(self) -> None:
        self.router.send_multipart((b"me", encode(Leave(attempt=AttemptNumber(0), reason="enough"))))

    def close(self) -> None:
        for link in self.links:
            link.main_left.set()
            link.stop()
        self.router.close(linger=0)
        self.authenticator.stop()
        self.context.destroy(linger=0)


@pytest.fixture
def master() -> Iterator[Master]:
    made = Master()
    yield made
    made.close()


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Instead of the end of this process."""
    found: list[int] = []
    monkeypatch.setattr(control_link.os, "kill", lambda pid, signal: found.append(pid))
    return found


def eventually(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_heartbeats_go_out_at_their_interval(master: Master) -> None:
    master.link(heartbeat_interval_ms=20)
    began = time.monotonic()
    beats = [master.receive() for _ in range(5)]
    assert beats == [SlotHeartbeat(attempt=AttemptNumber(0), slot=SlotIndex(3), metrics=(METRIC,))] * 5
    assert time.monotonic() - began >= 0.08


def test_a_silent_driver_is_taken_for_dead(master: Master, kills: list[int]) -> None:
    link = master.link(heartbeat_timeout_ms=60)
    assert eventually(lambda: master.delivered)
    left = master.delivered[0]
    assert isinstance(left, Leave)
    assert "has not answered" in left.reason
    link.main_left.set()
    assert kills == []


def test_a_task_that_does_not_leave_in_time_is_ended_with_its_process(master: Master, kills: list[int]) -> None:
    master.link(leave_grace_ms=50)
    master.receive()
    master.tell_to_leave()
    assert eventually(lambda: kills)


@pytest.mark.parametrize(("grace", "leaves"), [(50.0, True), (0.0, False)])
def test_a_task_that_leaves_or_may_take_its_time_is_not(
    master: Master, kills: list[int], grace: float, leaves: bool
) -> None:
    link = master.link(leave_grace_ms=grace)
    master.receive()
    if leaves:
        link.main_left.set()
    master.tell_to_leave()
    assert eventually(lambda: master.delivered)
    time.sleep(0.15)
    assert kills == []
