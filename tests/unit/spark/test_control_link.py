"""The slot's connection to the JobManager, on real sockets: heartbeats, and the end of a task that does not leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import zmq

from tests.cut_proxy import CutProxy
from tidegate.common.ids import AttemptNumber, OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.metric_values import CounterValue, MetricReport
from tidegate.network.zmq_transport import JobKeys, authenticate
from tidegate.protocol.codec import decode_from_slot, encode
from tidegate.protocol.messages import (
    Deploy,
    FailureInfo,
    Leave,
    MasterHeartbeat,
    MasterToSlot,
    SlotFinished,
    SlotHeartbeat,
    SlotReady,
    SlotWarning,
    StateReport,
    TaskFailed,
)
from tidegate.spark.streaming import control_link
from tidegate.spark.streaming.control_link import ControlLink
from tidegate.spark.streaming.printing import PRINTED
from tidegate.storage.leases.keeper import steady_ms
from tidegate.taskmanager.clock import SystemClock

T = TypeVar("T")
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

    def link(self, **settings: Any) -> ControlLink:
        defaults: dict[str, Any] = {
            "heartbeat_interval_ms": 20.0,
            "heartbeat_timeout_ms": 60_000.0,
            "leave_grace_ms": 1_000.0,
            "metrics": lambda: (METRIC,),
        }
        link = ControlLink(
            self.context,
            self.address,
            self.keys,
            incarnation="me",
            attempt=AttemptNumber(0),
            slot=SlotIndex(3),
            clock=SystemClock(),
            deliver=self.delivered.append,
            **{**defaults, **settings},
        )
        link.start()
        self.links.append(link)
        return link

    def receive(self) -> Any:
        assert self.router.poll(5_000)
        return decode_from_slot(self.router.recv_multipart()[1])

    def receive_a(self, kind: type[T]) -> T:
        """The next message of that kind; heartbeats may come before it."""
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message

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


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
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


def test_the_text_of_a_users_exception_does_not_stop_the_heartbeats(master: Master) -> None:
    link = master.link()
    link.send(TaskFailed(attempt=AttemptNumber(0), slot=SlotIndex(3), failure=FailureInfo(summary="\ud800 is half")))
    heard = [master.receive() for _ in range(4)]
    assert [m.failure.summary for m in heard if isinstance(m, TaskFailed)] == ["\\ud800 is half"]
    assert isinstance(heard[-1], SlotHeartbeat)


def test_a_metric_that_cannot_be_sent_is_left_out_and_said_once(
    master: Master, caplog: pytest.LogCaptureFixture
) -> None:
    master.link(metrics=lambda: (MetricReport(0, 0, "huge", CounterValue(2**70)),))
    beats = [master.receive() for _ in range(3)]
    assert beats == [SlotHeartbeat(attempt=AttemptNumber(0), slot=SlotIndex(3))] * 3
    assert [r.getMessage() for r in caplog.records if "left out" in r.getMessage()][1:] == []
    assert "OverflowError" in caplog.text


HUGE = MetricReport(0, 0, "huge", CounterValue(2**70))


def test_the_end_of_a_slot_is_told_without_a_metric_that_cannot_be_sent(master: Master) -> None:
    link = master.link()
    link.send(SlotFinished(attempt=AttemptNumber(0), slot=SlotIndex(3), accumulators=b"sums", metrics=(HUGE, METRIC)))
    while not isinstance(message := master.receive(), SlotFinished):
        assert not isinstance(message, TaskFailed), message
    assert message == SlotFinished(attempt=AttemptNumber(0), slot=SlotIndex(3), accumulators=b"sums")


def test_a_heartbeat_without_its_metrics_still_says_when_it_was_sent_and_all_else(master: Master) -> None:
    """With high availability the driver tells the worker by that time for how long it leads."""
    state = StateReport(
        vertex=VertexId(0),
        subtask=SubtaskIndex(0),
        operator_id=OperatorId("o"),
        state="s",
        kind="value",
        per_window=False,
        type="",
        key_types=(),
        entries=1,
        exact=True,
        bytes=1,
    )
    states = (state,)
    master.link(metrics=lambda: (HUGE,), accumulators=lambda: b"sums", states=lambda: states, lease_ms=60_000.0)
    first, second = master.receive_a(SlotHeartbeat), master.receive_a(SlotHeartbeat)
    assert (first.metrics, first.accumulators, first.states) == ((), b"sums", states)
    assert 0 < first.sent_ms < second.sent_ms


def test_bytes_that_are_no_message_fail_the_attempt_with_the_cause(master: Master) -> None:
    master.link()
    master.receive()
    master.router.send_multipart((b"me", b"\xc1 nonsense"))
    failed = master.receive_a(TaskFailed)
    assert "slot 3: from the driver: a control message of 10 bytes cannot be read" in failed.failure.summary
    assert isinstance(master.receive(), SlotHeartbeat)


def test_a_control_thread_that_dies_says_why(master: Master, kills: list[int]) -> None:
    def broken() -> tuple[MetricReport, ...]:
        raise RuntimeError("no metrics today")

    link = master.link(metrics=broken)
    failed = master.receive_a(TaskFailed)
    assert "its control thread failed: RuntimeError: no metrics today" in failed.failure.summary
    assert "in broken" in failed.failure.traceback
    assert eventually(lambda: master.delivered)
    left = master.delivered[0]
    assert isinstance(left, Leave)
    assert "no metrics today" in left.reason
    link.main_left.set()


# ---------------------------------------------------------------- partitions between a slot and the driver


@pytest.fixture
def proxy(master: Master) -> Iterator[CutProxy]:
    made = CutProxy(master.address)
    master.address = made.address
    yield made
    made.close()


WAYS = pytest.mark.parametrize(("forth", "back"), [(True, False), (False, True), (True, True)])


@WAYS
def test_a_partition_shorter_than_the_timeout_is_not_noticed(
    master: Master, proxy: CutProxy, forth: bool, back: bool
) -> None:
    link = master.link(heartbeat_timeout_ms=3_000)
    master.receive()
    for n in range(2):
        proxy.stop(forth, back)
        link.send(SlotReady(attempt=AttemptNumber(0), slot=SlotIndex(n)))
        time.sleep(0.3)
        proxy.go_on()
        assert master.receive_a(SlotReady).slot == n
        master.router.send_multipart((b"me", encode(MasterHeartbeat(attempt=AttemptNumber(0)))))
        assert eventually(lambda n=n: len(master.delivered) == n + 1)
    assert not any(isinstance(m, Leave) for m in master.delivered)


@pytest.mark.parametrize("forth", [True, False])
def test_a_slot_that_does_not_hear_the_driver_for_too_long_leaves(
    master: Master, proxy: CutProxy, kills: list[int], forth: bool
) -> None:
    link = master.link(heartbeat_timeout_ms=300)
    master.receive()
    proxy.stop(forth=forth, back=True)
    assert eventually(lambda: master.delivered)
    left = master.delivered[0]
    assert isinstance(left, Leave)
    assert "has not answered" in left.reason
    link.main_left.set()


def test_a_slow_connection_to_the_driver_is_none_that_is_lost(master: Master, proxy: CutProxy) -> None:
    """A chunk of a few bytes takes its time, every message of them many; but the driver is heard more often than the
    timeout asks for."""
    proxy.slow_down(chunk=100, pause_s=0.05)  # a heartbeat each way needs several
    link = master.link(heartbeat_interval_ms=100, heartbeat_timeout_ms=20_000)
    for n in range(3):
        link.send(SlotReady(attempt=AttemptNumber(0), slot=SlotIndex(n)))
        assert master.receive_a(SlotReady).slot == n
        master.router.send_multipart((b"me", encode(MasterHeartbeat(attempt=AttemptNumber(0)))))
        assert eventually(lambda n=n: len(master.delivered) == n + 1)
    assert not any(isinstance(message, Leave) for message in master.delivered)


def test_a_connection_that_is_slower_than_the_timeout_is_one_that_is_lost(
    master: Master, proxy: CutProxy, kills: list[int]
) -> None:
    """What the driver says is under way all the time, and comes later than the slot waits for it."""
    link = master.link(heartbeat_timeout_ms=400)
    master.receive()
    master.router.send_multipart((b"me", encode(MasterHeartbeat(attempt=AttemptNumber(0)))))
    assert eventually(lambda: master.delivered)
    proxy.slow_down(chunk=10, pause_s=1.0)  # some ten chunks for a heartbeat
    while not any(isinstance(message, Leave) for message in master.delivered):
        master.router.send_multipart((b"me", encode(MasterHeartbeat(attempt=AttemptNumber(0)))))
        time.sleep(0.05)
    left = master.delivered[-1]
    assert isinstance(left, Leave)
    assert "has not answered" in left.reason
    link.main_left.set()


def test_a_broken_connection_to_the_driver_is_noticed_at_once(master: Master, proxy: CutProxy) -> None:
    link = master.link()
    master.receive()
    proxy.break_connections()
    assert eventually(lambda: master.delivered)
    left = master.delivered[0]
    assert isinstance(left, Leave)
    assert "was lost" in left.reason
    link.main_left.set()


def test_what_is_to_be_printed_goes_out_in_order_with_the_messages(master: Master) -> None:
    written: list[bytes] = []
    link = master.link(heartbeat_interval_ms=60_000, heartbeat_timeout_ms=120_000, printed=written.append)
    link.send_printed(b"1one\n")
    link.send_printed(b"2two\n")
    link.send(TaskFailed(attempt=AttemptNumber(0), slot=SlotIndex(3), failure=FailureInfo(summary="x")))
    assert master.router.recv_multipart() == [b"me", PRINTED, b"1one\n"]
    assert master.router.recv_multipart() == [b"me", PRINTED, b"2two\n"]
    assert isinstance(master.receive(), TaskFailed)
    master.router.send_multipart((b"me", PRINTED, b"10"))
    master.tell_to_leave()
    assert eventually(lambda: master.delivered)
    assert written == [b"10"]


def test_the_first_bound_that_a_driver_says_replaces_the_guess(master: Master, kills: list[int]) -> None:
    """A gang may be deployed when little is left of the lease: the whole length of one would reach into the reign of
    the next leader."""
    link = master.link(lease_ms=60_000.0)
    sent = master.receive_a(SlotHeartbeat).sent_ms
    deploy = Deploy(attempt=AttemptNumber(0), addresses=b"\x90", plan=b"", heard_ms=sent, valid_ms=500.0)
    master.router.send_multipart((b"me", encode(deploy)))
    assert eventually(lambda: any(isinstance(message, Leave) for message in master.delivered), 20)
    link.main_left.set()


def test_what_comes_when_the_bound_is_over_is_not_carried_out(master: Master, kills: list[int]) -> None:
    link = master.link(lease_ms=60_000.0)
    sent = master.receive_a(SlotHeartbeat).sent_ms
    deploy = Deploy(attempt=AttemptNumber(0), addresses=b"\x90", plan=b"", heard_ms=sent - 1_000.0, valid_ms=500.0)
    master.router.send_multipart((b"me", encode(deploy)))
    assert eventually(lambda: master.delivered, 20)
    assert [type(message) for message in master.delivered] == [Leave]
    link.main_left.set()


def test_a_worker_leaves_when_its_driver_may_not_lead_any_more(master: Master, kills: list[int]) -> None:
    """Whatever else it hears of it."""
    link = master.link(lease_ms=1_000.0)
    first = master.receive_a(SlotHeartbeat)
    assert first.sent_ms > 0

    def beat(**lease: float) -> None:
        master.router.send_multipart((b"me", encode(MasterHeartbeat(attempt=AttemptNumber(0), **lease))))

    beat(heard_ms=first.sent_ms, valid_ms=1_500.0)
    while not any(isinstance(message, Leave) for message in master.delivered):
        beat()  # says nothing of a lease
        beat(heard_ms=first.sent_ms - 5_000.0, valid_ms=3_000.0)  # late
        time.sleep(0.02)
    assert steady_ms() >= first.sent_ms + 1_490.0
    left = master.delivered[-1]
    assert isinstance(left, Leave)
    assert "nothing was heard of its lease in time" in left.reason
    link.main_left.set()


def test_the_time_in_which_the_machine_slept_is_over_for_the_lease_too(
    master: Master, kills: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clocks stand still meanwhile."""
    slept_ms = 0.0
    monkeypatch.setattr(control_link, "steady_ms", lambda: steady_ms() + slept_ms)
    link = master.link(lease_ms=60_000.0)
    assert abs(master.receive_a(SlotHeartbeat).sent_ms - steady_ms()) < 60_000.0
    slept_ms = 61_000.0
    assert eventually(lambda: any(isinstance(message, Leave) for message in master.delivered), 20)
    link.main_left.set()


def test_a_call_of_the_storage_that_hangs_is_told_of(master: Master) -> None:
    text = "operator 'count': read s3://bucket/file: the storage has not answered for 5 s"
    texts = [text]
    master.link(hanging=lambda: [texts.pop()] if texts else [])
    warning = master.receive_a(SlotWarning)
    assert (warning.slot, warning.text) == (3, text)
