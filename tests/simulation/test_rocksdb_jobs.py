"""Random jobs whose keyed state is in RocksDB, on random schedules with failures."""

from __future__ import annotations

import pytest

from tests.simulation.runner import run_seed
from tests.simulation.scenario import Mode, Variation

SCHEDULES = 30
MODES = [Mode.ALIGNED, Mode.CONCURRENT, Mode.UNALIGNED, Mode.TIMEOUT, Mode.AT_LEAST_ONCE]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_failures_do_not_show_in_output_and_state(mode: Mode) -> None:
    restored = 0
    for seed in range(SCHEDULES):
        restored += len(run_seed(seed, mode, variation=Variation.ROCKSDB).restored)
    assert restored > 0
