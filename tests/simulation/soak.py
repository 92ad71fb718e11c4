"""Runs schedules without end and prints the command that repeats any failure: `python -m tests.simulation.soak`."""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import time
import warnings

from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import Mode, Variation

FIRST_SEED = 10**6
"""The tests use seeds below this one."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after so long (default: never)")
    parser.add_argument("--first-seed", type=int, help="default: a random one")
    parser.add_argument("--mode", choices=[m.value for m in Mode], help="default: all in turn")
    parser.add_argument("--variation", choices=[v.value for v in Variation], help="default: all in turn")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # what goes wrong is planned
    warnings.simplefilter("ignore")
    modes = [Mode(arguments.mode)] if arguments.mode else list(Mode)
    variations = [Variation(arguments.variation)] if arguments.variation else list(Variation)
    kinds = list(itertools.product(variations, modes))
    first: int = arguments.first_seed or random.SystemRandom().randrange(FIRST_SEED, 10**9)
    started = reported = time.monotonic()
    failures = 0
    print(f"seeds from {first} on: {', '.join(f'{m.value} {v.value}' for v, m in kinds)}", flush=True)
    try:
        for done in itertools.count():
            variation, mode = kinds[done % len(kinds)]
            try:
                run_seed(first + done // len(kinds), mode, mode is not Mode.NONE, variation)
            except SimulationFailed as failure:
                failures += 1
                print(f"FAILED: {failure}", flush=True)
            now = time.monotonic()
            if now - reported > 10:
                reported = now
                rate = (done + 1) / (now - started)
                print(f"{done + 1:,} schedules, {failures} failures, {rate:.0f} per second", flush=True)
            if arguments.minutes is not None and now - started > arguments.minutes * 60:
                print(f"{done + 1:,} schedules, {failures} failures", flush=True)
                break
    except KeyboardInterrupt:
        print(f"stopped; {failures} failures", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
