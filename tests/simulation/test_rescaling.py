"""Random jobs that are stopped or killed and go on at another parallelism, between other failures.

From checkpoints, aligned and unaligned ones, and from savepoints in their real format; on the heap and in RocksDB, and
from the one to the other. Nothing lost, nothing doubled, the state as without failures (`restarts.py`)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.runner import run_seed
from tests.simulation.scenario import Mode, Variation

SEEDS = {
    Mode.NONE: range(20),  # only with savepoints, and without failures
    Mode.ALIGNED: range(30),
    Mode.CONCURRENT: range(20),
    Mode.UNALIGNED: range(40),
    Mode.TIMEOUT: range(20),
    Mode.AT_LEAST_ONCE: range(20),
}


@pytest.mark.parametrize("mode", SEEDS, ids=lambda m: m.value)
def test_another_parallelism_does_not_show_in_output_and_state(mode: Mode) -> None:
    seen: Counter[str] = Counter()
    wanted = {"rescaled", "from a savepoint"}
    if mode is Mode.ALIGNED:
        wanted |= {"on another backend", "in order"}
    for seed in range(4 * len(SEEDS[mode])):
        if seed not in SEEDS[mode] and wanted <= (+seen).keys():
            break  # what is rare is looked for in further ones
        restarts = run_seed(seed, mode, mode is not Mode.NONE, Variation.RESCALE).restarts
        assert restarts is not None
        seen["rescaled"] += restarts.rescaled
        seen["from a savepoint"] += restarts.from_savepoint
        seen["on another backend"] += restarts.backend_changed
        seen["in order"] += restarts.in_order and restarts.rescaled > 0
    assert wanted <= (+seen).keys(), seen
