"""Drivers that are frozen, killed and started again: the job goes on, and its output is exact."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.ha_kit import Driver, settings
from tests.spark.recovery_kit import assert_exact, is_alive, until, visible_lines

RECORDS = 60_000
SLOWLY, AT_ONCE = 100.0, 1e9  # records per second

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Any]:
    """Starts drivers of one job."""
    made: list[Driver] = []
    configuration = settings(tmp_path)

    def start(per_second: float = SLOWLY, **arguments: Any) -> Driver:
        driver = Driver(tmp_path, RECORDS, per_second, configuration, **arguments)
        made.append(driver)
        return driver

    yield start
    for driver in made:
        driver.end()


def record_of(folder: Path) -> dict[str, Any]:
    newest = max((folder / "ha" / "counting").glob("job-*"), key=lambda path: int(path.name.removeprefix("job-")))
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


@pytest.mark.timeout(900)
def test_a_leader_that_was_frozen_leaves_and_a_killed_one_is_followed(drivers: Any, tmp_path: Path) -> None:
    first = drivers()
    led = first.until_completed(3)
    second = drivers(standby=True)
    second.until_standing_by()

    first.signal(signal.SIGSTOP)
    taken = second.until_completed(2)
    assert taken["job_id"] == led["job_id"]
    assert taken["restores"] == 1
    before = record_of(tmp_path)
    first.signal(signal.SIGCONT)
    assert first.process.wait(120) != 0
    assert "does not lead the job any more" in first.output
    until(lambda: not any(map(is_alive, led["pids"])), "the end of the frozen leader's workers", 60)
    after = record_of(tmp_path)
    assert before["epoch"] == after["epoch"] == 2
    assert before["owner"] == after["owner"]

    third = drivers(AT_ONCE, standby=True)  # a process supervisor starts the first one again
    third.until_standing_by()
    second.process.kill()
    assert third.process.wait(240) == 0, third.output[-3000:]
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)
    ended = record_of(tmp_path)
    assert (ended["status"], ended["epoch"], ended["job_id"]) == ("FINISHED", 3, led["job_id"])

    fourth = drivers(AT_ONCE)  # and again: nothing is done twice
    assert fourth.process.wait(240) == 0, fourth.output[-3000:]
    assert "has ended as FINISHED, and is not started again" in fourth.output
    assert_exact(visible_lines(tmp_path / "out"), RECORDS)
    assert record_of(tmp_path) == ended
