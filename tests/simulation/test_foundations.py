"""Random jobs on random schedules, without failures.

The same output and state as in a sequential run, records of a channel in order, credits never exceeded, no deadlock, a
clean end (`end_checks.py` and `Simulation.check_invariants` say what is checked in every run).
"""

from __future__ import annotations

import pytest

from tests.simulation.runner import run_seed
from tests.simulation.scenario import Mode

CHUNK = 25


@pytest.mark.parametrize("first", range(0, 300, CHUNK))
def test_a_job_without_checkpoints_gives_the_expected_output(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run_seed(seed, Mode.NONE, faulty=False)


@pytest.mark.parametrize("mode", [m for m in Mode if m is not Mode.NONE], ids=lambda m: m.value)
@pytest.mark.parametrize("first", range(0, 50, CHUNK))
def test_checkpoints_do_not_change_the_output(first: int, mode: Mode) -> None:
    for seed in range(first, first + CHUNK):
        simulation = run_seed(seed, mode, faulty=False)
        stopped = (
            simulation.run_number > 0
        )  # with a savepoint: what the next program collects holds results of this one
        assert simulation.doubled == 0 or stopped
