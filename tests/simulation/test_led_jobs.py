"""Jobs with high availability: whole jobs on the real JobMaster, coordinator and slots, whose drivers are killed or
frozen between and within the steps that make a checkpoint complete. Who leads: `test_leaders.py`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.fake_storage import FakeStorage
from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import Mode, Variation

SCHEDULES = 12


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.CONCURRENT, Mode.UNALIGNED], ids=lambda mode: mode.value)
def test_the_next_driver_goes_on_from_what_is_recorded(mode: Mode) -> None:
    runs = [run_seed(seed, mode, variation=Variation.LED) for seed in range(SCHEDULES)]
    struck = sum((run.struck for run in runs), Counter())
    assert struck["the driver is killed"] > 1
    assert struck["the driver freezes"] > 1
    led = [run.led for run in runs if run.led is not None]
    assert sum(drivers.record for drivers in led) > SCHEDULES
    assert sum(drivers.late for drivers in led) > 0


def test_leaders_that_share_a_directory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one that was frozen still writes or deletes then hits its successor."""
    monkeypatch.setattr(FakeStorage, "successor", lambda storage, job_id: storage)
    for seed in range(60):
        try:
            run_seed(seed, Mode.CONCURRENT, variation=Variation.LED)
        except SimulationFailed:
            return
    raise AssertionError("60 seeds did not find it")
