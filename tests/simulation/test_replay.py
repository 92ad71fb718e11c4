"""A seed is a schedule: it runs the same way every time, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.scenario import Mode, Variation, draw_scenario
from tests.simulation.simulation import Simulation


def trace_of(seed: int, mode: Mode, variation: Variation = Variation.PLAIN) -> list[str]:
    lines = Simulation(draw_scenario(seed, mode, True, variation), trace=True).run().lines
    assert lines
    return lines


@pytest.mark.parametrize("mode", [m for m in Mode if m is not Mode.NONE], ids=lambda m: m.value)
def test_the_same_seed_gives_the_same_trace(mode: Mode) -> None:
    for seed in range(5):
        assert trace_of(seed, mode) == trace_of(seed, mode)


def test_the_same_seed_gives_the_same_trace_with_restarts_at_another_parallelism() -> None:
    for seed in range(4):
        once = trace_of(seed, Mode.UNALIGNED, Variation.RESCALE)
        assert once == trace_of(seed, Mode.UNALIGNED, Variation.RESCALE)


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3", "--mode", "unaligned", "--trace"]
    outputs = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=60)
        outputs.add(ran.stdout)
    assert len(outputs) == 1
    assert "seed 3: fine after" in outputs.pop()
