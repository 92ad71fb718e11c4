"""Jobs with high availability: whole jobs on the real JobMaster, coordinator and slots, whose drivers are killed
between and within the steps that make a checkpoint complete. Leaders that are frozen or cut off: `test_leaders.py`."""

from __future__ import annotations

import pytest

from tests.simulation.runner import run_seed
from tests.simulation.scenario import Mode, Variation

SCHEDULES = 12


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.CONCURRENT, Mode.UNALIGNED], ids=lambda mode: mode.value)
def test_the_next_driver_goes_on_from_what_is_recorded(mode: Mode) -> None:
    runs = [run_seed(seed, mode, variation=Variation.LED) for seed in range(SCHEDULES)]
    assert sum(run.run_number for run in runs) > 1
    assert sum(run.record for run in runs) > SCHEDULES
