"""Runs one schedule again: `python -m tests.simulation --seed 1234 --mode unaligned --trace`."""

from __future__ import annotations

import argparse
import sys
import traceback

from tests.simulation.scenario import Mode, Variation, draw_scenario
from tests.simulation.simulation import Simulation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--mode", choices=[m.value for m in Mode], default=Mode.ALIGNED.value)
    parser.add_argument("--variation", choices=[v.value for v in Variation], default=Variation.PLAIN.value)
    parser.add_argument("--no-faults", action="store_true", help="the schedule without failures")
    parser.add_argument("--harsher", action="store_true", help="the schedule with the harsher faults")
    parser.add_argument("--trace", action="store_true", help="print every step")
    arguments = parser.parse_args()
    scenario = draw_scenario(
        arguments.seed,
        Mode(arguments.mode),
        not arguments.no_faults,
        Variation(arguments.variation),
        arguments.harsher,
    )
    simulation = Simulation(scenario, trace=arguments.trace)
    failure: Exception | None = None
    try:
        simulation.run()
    except Exception as error:
        failure = error
    for line in simulation.lines or ():
        print(line)
    print("\n".join(scenario.job.description))
    print(scenario.runtime, scenario.checkpoints, sep="\n")
    for vertex in scenario.job.graph.vertices:
        print(f"vertex {vertex.vertex_id}: {vertex.name} p={vertex.parallelism} group {vertex.slot_sharing_group}")
    for edge in scenario.job.graph.edges:
        print(f"edge {edge.edge_id}: {edge.source} -> {edge.target}:{edge.target_input} {edge.partition.kind.value}")
    if failure is None:
        print(f"seed {scenario.seed}: fine after {simulation.steps} steps and {simulation.master.attempt} restarts")
        return 0
    traceback.print_exception(failure)
    return 1


if __name__ == "__main__":
    sys.exit(main())
