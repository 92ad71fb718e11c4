"""Runs one schedule."""

from __future__ import annotations

from tests.simulation.scenario import Mode, Variation, draw_scenario
from tests.simulation.simulation import Simulation


class SimulationFailed(AssertionError):
    """Says how to see it again."""


def run_seed(
    seed: int, mode: Mode, faulty: bool = True, variation: Variation = Variation.PLAIN, harsher: bool = False
) -> Simulation:
    scenario = draw_scenario(seed, mode, faulty, variation, harsher)
    try:
        return Simulation(scenario).run()
    except Exception as error:
        raise SimulationFailed(f"{type(error).__name__}: {error}\nto see it: {scenario.command}") from error
