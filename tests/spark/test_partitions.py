"""A real job on a network that is cut: between the slots, and between slots and driver. The output is exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cut_network import Network
from tests.spark.recovery_kit import (
    assert_exact,
    completed,
    counted,
    file_sink,
    until,
    visible_lines,
    with_checkpoints,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network(monkeypatch)
    yield made
    made.close()


def test_the_output_is_exact_after_partitions_of_every_kind(
    make_env: Callable[..., Any], tmp_path: Path, network: Network
) -> None:
    records = 24_000
    env = make_env(2, {"heartbeat.interval": "100 ms", "heartbeat.timeout": "1500 ms"})
    with_checkpoints(env, tmp_path / "checkpoints", interval_ms=100)
    counted(env, records, 3000).sink_to(file_sink(tmp_path / "out"))
    client = env.execute_async("partitions")
    result = client.get_job_execution_result()

    def runs(attempt: int) -> None:
        until(lambda: result.done() or completed(client, attempt), f"a checkpoint of attempt {attempt}")
        assert not result.done()

    runs(0)
    for forth, back in ((True, False), (False, True), (True, True)):  # shorter than every heartbeat: nothing happens
        for proxy in (*network.data, *network.control):
            proxy.stop(forth, back)
        time.sleep(0.3)
        for proxy in (*network.data, *network.control):
            proxy.go_on()
    assert client.attempt() == 0

    network.data[-1].slow_down(chunk=1_000, pause_s=0.001)
    time.sleep(0.3)
    network.data[-1].slow_down(chunk=65_536, pause_s=0.0)
    network.data[-1].break_connections()  # between the slots
    runs(1)

    network.control[0].stop(forth=True, back=False)  # the driver hears nobody, for longer than the heartbeat
    until(lambda: client.attempt() == 2, "the next attempt")
    network.control[0].go_on()
    runs(2)

    network.control[0].stop(forth=False, back=True)  # nobody hears the driver
    time.sleep(2.5)
    network.control[0].go_on()
    runs(3)

    network.data[-1].stop(forth=True, back=True)  # between the slots, for longer than their heartbeat
    until(lambda: client.attempt() == 4, "the next attempt")
    network.data[-1].go_on()
    runs(4)

    result.result()
    assert_exact(visible_lines(tmp_path / "out"), records)


@pytest.mark.soak
@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
def test_the_output_is_exact_when_slots_do_not_hear_each_other_for_long(
    make_env: Callable[..., Any], tmp_path: Path, network: Network, unaligned: bool
) -> None:
    """One way, the other, both; in each attempt the data of one slot, and what comes back."""
    records = 30_000
    env = make_env(2, {"heartbeat.interval": "100 ms", "heartbeat.timeout": "3 s"})
    with_checkpoints(env, tmp_path / "checkpoints", interval_ms=100)
    env.get_checkpoint_config().enable_unaligned_checkpoints(unaligned)
    counted(env, records, 3000).sink_to(file_sink(tmp_path / "out"))
    client = env.execute_async("long partitions")
    result = client.get_job_execution_result()
    for attempt, (forth, back) in enumerate(((True, False), (False, True), (True, True))):
        until(lambda n=attempt: result.done() or completed(client, n), f"a checkpoint of attempt {attempt}")  # type: ignore[misc]
        assert not result.done()
        proxy = network.data[-1]
        proxy.stop(forth, back)
        until(lambda n=attempt: client.attempt() == n + 1, "the next attempt")  # type: ignore[misc]
        proxy.go_on()
    result.result()
    assert_exact(visible_lines(tmp_path / "out"), records)
