"""Whole jobs on real sockets: bad messages with the right key, and networks that are cut. The output is exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from tests.cut_network import Network
from tests.spark.recovery_kit import assert_exact, completed, counted, file_sink, visible_lines, with_checkpoints
from tests.unit.spark.job_on_threads import start_job, until
from tests.unit.taskmanager.small_jobs import environment
from tidegate.common.ids import AttemptNumber, SlotIndex, SubtaskIndex, VertexId
from tidegate.protocol.codec import encode
from tidegate.protocol.messages import SlotReady, TaskEndOfData
from tidegate.spark.streaming.job_manager import JobManager

RECORDS = 4_000
HEARTBEATS = {"heartbeat.interval": "100 ms", "heartbeat.timeout": "1500 ms", "rest.enabled": "false"}


def start(tmp_path: Path, patch: pytest.MonkeyPatch) -> JobManager:
    env = environment(HEARTBEATS, parallelism=2)
    with_checkpoints(env, tmp_path / "checkpoints", interval_ms=100)
    counted(env, RECORDS, 1000).sink_to(file_sink(tmp_path / "out"))
    manager = start_job(env, patch)
    until(lambda: completed(manager.client), "checkpoint")
    return manager


def finish(manager: JobManager, tmp_path: Path) -> None:
    manager.client.get_job_execution_result().result(60)
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)


UNKNOWN = [
    TaskEndOfData(attempt=AttemptNumber(0), vertex=VertexId(99), subtask=SubtaskIndex(0)),
    SlotReady(attempt=AttemptNumber(0), slot=SlotIndex(17)),
]


@pytest.mark.parametrize("message", UNKNOWN, ids=lambda m: type(m).__name__)
def test_a_message_that_cannot_be_true_fails_the_attempt_and_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: TaskEndOfData | SlotReady
) -> None:
    manager = start(tmp_path, monkeypatch)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        manager._keys.secure_client(dealer)
        dealer.connect(manager._address)
        for nonsense in ([b"\xc1"], [b""], [b"a", b"b"], [b"\x91" * 100_000]):  # of nobody in the attempt: logged
            dealer.send_multipart(nonsense)
        time.sleep(0.3)
        assert manager.client.attempt() == 0
        dealer.send(encode(message))
        until(lambda: manager.client.attempt() == 1, "second attempt")
    assert "which this job does not have" in manager.client.failures()[0].failure.summary
    finish(manager, tmp_path)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network(monkeypatch)
    yield made
    made.close()


def short_cuts(network: Network) -> None:
    for forth, back in ((True, False), (False, True), (True, True)):
        for proxy in (*network.data, *network.control):
            proxy.stop(forth, back)
        time.sleep(0.3)
        for proxy in (*network.data, *network.control):
            proxy.go_on()


def broken_between_slots(network: Network) -> None:
    network.data[-1].break_connections()


def driver_hears_nobody(network: Network) -> None:
    network.control[0].stop(forth=True, back=False)
    time.sleep(2.5)
    network.control[0].go_on()


def nobody_hears_the_driver(network: Network) -> None:
    network.control[0].stop(forth=False, back=True)
    time.sleep(2.5)
    network.control[0].go_on()


def slow_to_the_driver(network: Network) -> None:
    """Each message takes some hundred ms on its way and back: less than the timeout of the heartbeats."""
    network.control[0].slow_down(chunk=16_000, pause_s=0.1)
    time.sleep(2.5)
    network.control[0].slow_down(chunk=65_536, pause_s=0.0)


def too_slow_to_the_driver(network: Network) -> None:
    """A heartbeat takes longer than the timeout, though something is under way all the time."""
    network.control[0].slow_down(chunk=20, pause_s=1.0)
    time.sleep(4.0)
    network.control[0].slow_down(chunk=65_536, pause_s=0.0)


@pytest.mark.parametrize(
    ("hurt", "attempts"),
    [
        (short_cuts, 0),
        (broken_between_slots, 1),
        (driver_hears_nobody, 1),
        (nobody_hears_the_driver, 1),
        (slow_to_the_driver, 0),
        (too_slow_to_the_driver, 1),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_the_output_is_exact_after_a_partition(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    network: Network,
    hurt: Callable[[Network], None],
    attempts: int,
) -> None:
    manager = start(tmp_path, monkeypatch)
    hurt(network)
    finish(manager, tmp_path)
    assert (manager.client.attempt() > 0) == bool(attempts)
