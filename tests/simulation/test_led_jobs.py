"""Jobs with high availability: whole jobs on the real JobMaster, coordinator and slots, whose drivers are killed or
frozen between and within the steps that make a checkpoint complete. Who leads: `test_leaders.py`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.simulation.fake_storage import FakeStorage
from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import Mode, Variation
from tests.simulation.user_savepoints import UserSavepoints
from tidegate.fault_tolerance.barriers.coordinator import CheckpointCoordinator

SCHEDULES = 12


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.CONCURRENT, Mode.UNALIGNED], ids=lambda mode: mode.value)
def test_the_next_driver_goes_on_from_what_is_recorded(mode: Mode) -> None:
    runs = [run_seed(seed, mode, variation=Variation.LED) for seed in range(SCHEDULES)]
    struck = sum((run.struck for run in runs), Counter())
    assert struck["the driver is killed"] > 1
    assert struck["the driver freezes"] > 1
    led = [run.led for run in runs if run.led is not None]
    assert sum(drivers.record for drivers in led) > SCHEDULES
    if not any(drivers.late for drivers in led):  # few of those that freeze are in the middle of something
        assert any(goes_on_late(seed, mode) for seed in range(SCHEDULES, 5 * SCHEDULES))


def goes_on_late(seed: int, mode: Mode) -> bool:
    led = run_seed(seed, mode, variation=Variation.LED).led
    return led is not None and led.late > 0


def stopped_jobs(schedules: int) -> Counter[str]:
    """Until some have been ended by another driver than the one that stopped them."""
    seen: Counter[str] = Counter()
    for seed in range(schedules):
        run = run_seed(seed, Mode.ALIGNED, variation=Variation.LED)
        assert run.led is not None
        seen["stopped"] += run.savepoints_taken.stops
        seen["ended for another"] += run.led.ended_for_another
        if seen["ended for another"]:
            break
    return seen


def test_the_next_driver_ends_a_job_that_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UserSavepoints, "stop_share", 1.0)
    seen = stopped_jobs(60)
    assert seen["ended for another"], seen
    assert seen["stopped"]


def test_a_driver_that_runs_a_stopped_job_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the savepoint for one to go on from."""
    make = CheckpointCoordinator.__init__

    def forgetful(self: Any, *arguments: Any, stopped: bool = False, **more: Any) -> None:
        make(self, *arguments, **more)

    monkeypatch.setattr(UserSavepoints, "stop_share", 1.0)
    monkeypatch.setattr(CheckpointCoordinator, "__init__", forgetful)
    with pytest.raises(SimulationFailed, match="of a later driver is recorded"):
        stopped_jobs(60)


def test_a_leader_that_deletes_what_its_record_still_names_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier leaders have left, as soon as there is a single checkpoint in its place."""
    keep = CheckpointCoordinator._keep

    def hasty(self: Any, *arguments: Any) -> None:
        keep(self, *arguments)
        self._delete_claimed()

    monkeypatch.setattr(CheckpointCoordinator, "_keep", hasty)
    for seed in range(200):  # few have three leaders and retain more than one
        try:
            run_seed(seed, Mode.ALIGNED, variation=Variation.LED)
        except SimulationFailed:
            return
    raise AssertionError("200 seeds did not find it")


def test_leaders_that_share_a_directory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one that was frozen still writes or deletes then hits its successor."""
    monkeypatch.setattr(FakeStorage, "successor", lambda storage, job_id: storage)
    for seed in range(60):
        try:
            run_seed(seed, Mode.CONCURRENT, variation=Variation.LED)
        except SimulationFailed:
            return
    raise AssertionError("60 seeds did not find it")
