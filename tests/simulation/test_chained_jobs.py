"""Random jobs of long chains, inside which records wait when barriers come: they are part of the checkpoint, and where
the job goes on at another parallelism an older one without any is taken, or the parallelism stays."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.runner import run_seed
from tests.simulation.scenario import Mode, Variation

MODES = [mode for mode in Mode if mode is not Mode.NONE]
SEEDS = 8


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.value)
def test_records_inside_chains_survive_failures_once_and_in_their_order(mode: Mode) -> None:
    seen: Counter[str] = Counter()
    for seed in range(8 * SEEDS):
        if seed >= SEEDS and seen["waiting"] and seen["restored"]:
            break  # what is rare is looked for in further ones
        run = run_seed(seed, mode, variation=Variation.CHAINED)
        seen["waiting"] += run.with_waiting
        seen["restored"] += run.with_waiting > 0 and len(run.restored) > 0
    assert seen["waiting"], seen
    assert seen["restored"], seen
