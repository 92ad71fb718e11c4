"""Drivers that are frozen, killed and started again: the job goes on, and its output is exact."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.components import needs_module, provided
from tests.connectors.zookeeper import ZooKeeper, zookeeper
from tests.spark.ha_kit import START_S, Driver, settings
from tests.spark.programs import environment
from tests.spark.recovery_kit import assert_exact, is_alive, kill, until, visible_lines
from tidegate.storage.job_directory import LOCK, METADATA_NAME
from tidegate.storage.leases.zookeeper import open_zookeeper_cells

RECORDS = 60_000
SLOWLY, AT_ONCE = 100.0, 1e9  # records per second

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Drivers:
    """Starts drivers of one job."""

    def __init__(self, folder: Path, configuration: dict[str, Any]) -> None:
        self._folder = folder
        self._configuration = configuration
        self.made: list[Driver] = []

    def __call__(self, per_second: float = SLOWLY, **arguments: Any) -> Driver:
        self.made.append(Driver(self._folder, RECORDS, per_second, self._configuration, **arguments))
        return self.made[-1]

    def record(self) -> dict[str, Any]:
        quorum = self._configuration.get("high-availability.zookeeper.quorum")
        data = record_in_files(self._folder) if quorum is None else record_in_zookeeper(quorum)
        found: dict[str, Any] = json.loads(data)
        return found


def record_in_files(folder: Path) -> bytes:
    files = (folder / "ha" / "counting").glob("job-*")
    return max(files, key=lambda path: int(path.name.removeprefix("job-"))).read_bytes()


def record_in_zookeeper(quorum: str) -> bytes:
    (cell,) = open_zookeeper_cells(quorum, "/tidegate/counting", ("job",), request_s=30.0)
    try:
        content = cell.read()
        assert content is not None
        return content.data
    finally:
        cell.close()


def in_zookeeper(server: ZooKeeper) -> dict[str, Any]:
    return {"high-availability.type": "zookeeper", "high-availability.zookeeper.quorum": server.quorum}


@pytest.fixture(params=["filesystem", pytest.param("zookeeper", marks=pytest.mark.soak)])
def drivers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Drivers]:
    with provided(), contextlib.ExitStack() as stack:
        configuration = settings(tmp_path)
        if request.param == "zookeeper":
            needs_module("kazoo")
            server = stack.enter_context(zookeeper(tmp_path / "zookeeper"))
            configuration |= in_zookeeper(server)
        started = Drivers(tmp_path, configuration)
        yield started
        for driver in started.made:
            driver.end()


def written(folder: Path, job_id: str, epoch: int) -> dict[str, tuple[int, bytes]]:
    """What a leader has written of its checkpoints: when, and what. Without its lock, which it takes away itself when
    it leaves: the directory is nobody else's."""
    (directory,) = (folder / "checkpoints").glob(f"{job_id}-e{epoch}")
    found = {}
    for path in directory.rglob("*"):
        if path.name != LOCK:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # deleted meanwhile
                found[str(path.relative_to(directory))] = (path.stat().st_mtime_ns, path.read_bytes())
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "workers_too", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["driver", "driver and workers"]
)
def test_a_leader_that_was_frozen_leaves_and_a_killed_one_is_followed(
    drivers: Drivers, tmp_path: Path, workers_too: bool
) -> None:
    first = drivers()
    led = first.until_completed(3)
    second = drivers(standby=True)
    second.until_standing_by()

    frozen = led["pids"] if workers_too else []
    try:
        first.signal(signal.SIGSTOP)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        taken = second.until_completed(2)
        assert taken["job_id"] == led["job_id"]
        assert taken["restores"] == 1
        before, had_written = drivers.record(), written(tmp_path, led["job_id"], 1)
        assert any(path.endswith(METADATA_NAME) for path in had_written)
    finally:
        for pid in frozen:
            kill(pid, signal.SIGCONT)
    first.signal(signal.SIGCONT)
    assert first.process.wait(120) != 0
    assert "does not lead the job any more" in first.output
    until(lambda: not any(map(is_alive, led["pids"])), "the end of the frozen leader's workers", 60)
    # Nothing is new. A worker that was frozen in the middle of a snapshot may write it to its end, for a checkpoint
    # that nobody completes any more.
    new = written(tmp_path, led["job_id"], 1).items() - had_written.items()
    assert not [path for path, _ in new if not workers_too or path.endswith(METADATA_NAME)]
    after = drivers.record()
    assert before["epoch"] == after["epoch"] == 2
    assert before["owner"] == after["owner"]

    third = drivers(AT_ONCE, standby=True)  # a process supervisor starts the first one again
    third.until_standing_by()
    second.process.kill()
    assert third.process.wait(240) == 0, third.output[-3000:]
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)
    ended = drivers.record()
    assert (ended["status"], ended["epoch"], ended["job_id"]) == ("FINISHED", 3, led["job_id"])

    fourth = drivers(AT_ONCE)  # and again: nothing is done twice
    assert fourth.process.wait(240) == 0, fourth.output[-3000:]
    assert "has ended as FINISHED, and is not started again" in fourth.output
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)
    assert drivers.record() == ended


def newest(drivers: Drivers) -> int:
    """The number of the checkpoint in the job's record."""
    found: int = drivers.record()["checkpoint"]["checkpoint_id"]
    return found


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_leader_outlasts_a_zookeeper_that_is_away_for_less_than_its_lease_and_leaves_when_it_stays_away(
    tmp_path: Path,
) -> None:
    """Its workers with it. Nobody leads until ZooKeeper is back; then the standby goes on, and the output is exact."""
    needs_module("kazoo")
    with provided(), zookeeper(tmp_path / "zookeeper") as server:
        configuration = settings(tmp_path) | in_zookeeper(server)
        drivers = Drivers(tmp_path, configuration | {"tidegate.high-availability.lease-duration": "30 s"})
        try:
            first = drivers()
            led = first.until_completed(3)
            second = drivers(AT_ONCE, standby=True)
            second.until_standing_by()

            server.kill()
            server.start()
            before = newest(drivers)
            until(lambda: newest(drivers) >= before + 3, "checkpoints after ZooKeeper was back", START_S)
            went_on = first.until_completed(3)
            assert (went_on["restores"], went_on["pids"]) == (0, led["pids"])
            assert drivers.record()["epoch"] == 1

            server.kill()
            assert first.process.wait(240) != 0
            assert "does not lead the job any more" in first.output
            until(lambda: not any(map(is_alive, led["pids"])), "the end of the workers of the driver that left", 60)
            committed = visible_lines(tmp_path / "out")
            assert second.process.poll() is None, second.output[-3000:]
            assert second.status() is None, "nobody leads whom ZooKeeper has not made the leader"

            server.start()
            assert second.process.wait(480) == 0, second.output[-3000:]
            assert not committed - visible_lines(tmp_path / "out")
            assert_exact(visible_lines(tmp_path / "out"), RECORDS)
            ended = drivers.record()
            assert (ended["status"], ended["epoch"], ended["job_id"]) == ("FINISHED", 2, led["job_id"])
        finally:
            for driver in drivers.made:
                driver.end()


FAILS = """
from tidegate.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([1, 0]).map(lambda value: 1 // value).print()
env.execute("fails")
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_job_that_has_failed_for_good_is_told_from_one_that_goes_on(tmp_path: Path) -> None:
    """By the exit code of `tidegate run`, so that a supervisor can leave it: the first time, and every time after."""
    (tmp_path / "job.py").write_text(FAILS)
    given = settings(tmp_path) | {
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": str(tmp_path / "checkpoints"),
        "restart-strategy.type": "none",
    }
    defined = [word for key, value in given.items() for word in ("-D", f"{key}={value}")]
    command = [sys.executable, "-m", "tidegate.cli", "run", *defined, str(tmp_path / "job.py")]
    for said in ("ZeroDivisionError", "has ended as FAILED, and is not started again"):
        ran = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=2 * START_S)
        assert ran.returncode == 3, ran.stderr[-3000:]
        assert said in ran.stderr
        assert "its job is recorded as FAILED, so to start it again would do nothing" in ran.stderr
