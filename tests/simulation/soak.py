"""Runs schedules without end and prints the command that repeats any failure: `python -m tests.simulation.soak`."""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import multiprocessing
import queue
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.runner import SimulationFailed, run_seed
from tests.simulation.scenario import Mode, Variation
from tests.simulation.world_soak import soak_worlds

FIRST_SEED = 10**6
"""The tests use seeds below this one."""
_REPORT_EVERY_S = 10.0

Kind = tuple[Variation, Mode]


@dataclass
class Tally:
    """What was run and what struck; those of several processes add up."""

    schedules: Counter[Kind] = field(default_factory=Counter)
    faulty: int = 0  # of them, those in which something struck
    struck: Counter[str] = field(default_factory=Counter)
    hit: Counter[str] = field(default_factory=Counter)  # kind of fault -> schedules that it struck in
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.faulty += other.faulty
        self.struck += other.struck
        self.hit += other.hit
        self.failures += other.failures

    @property
    def total(self) -> int:
        return sum(self.schedules.values())

    def table(self) -> str:
        modes = list(Mode)
        lines = ["", f"{'schedules':<14}" + "".join(f"{mode.value:>15}" for mode in modes)]
        for variation in Variation:
            counts = [self.schedules[variation, mode] for mode in modes]
            lines.append(f"{variation.value:<14}" + "".join(f"{count:>15,}" for count in counts))
        lines += ["", f"{'faults that struck':<44}{'times':>12}{'in schedules':>16}"]
        lines += [f"{what:<44}{times:>12,}{self.hit[what]:>16,}" for what, times in sorted(self.struck.items())]
        lines += ["", f"{self.total:,} schedules, {self.faulty:,} of those faulty, {len(self.failures)} failures"]
        return "\n".join(lines)


def tallies(first: int, step: int, kinds: list[Kind]) -> Iterator[Tally]:
    """One for each schedule: of the seeds first, first + step, first + 2 * step and so on, each in all kinds, every
    second schedule with the harsher faults."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # the default spends a tenth of the time on looking at what is still in use
    for turn, seed in enumerate(itertools.count(first, step)):
        for place, (variation, mode) in enumerate(kinds):
            harsher = mode is not Mode.NONE and (turn + place) % 2 == 1
            tally = Tally(Counter({(variation, mode): 1}))
            try:
                simulation = run_seed(seed, mode, mode is not Mode.NONE, variation, harsher)
                tally.struck = +simulation.struck
                tally.hit = Counter(tally.struck.keys())
                tally.faulty = int(bool(tally.struck))
            except SimulationFailed as failure:
                tally.failures.append(str(failure))
            yield tally


def _work(first: int, step: int, kinds: list[Kind], results: Any) -> None:
    """In a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    _be_quiet()
    for tally in tallies(first, step, kinds):
        results.put(tally)


def _from_processes(first: int, processes: int, kinds: list[Kind]) -> Iterator[Tally]:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue(maxsize=1000)
    workers = [
        context.Process(target=_work, args=(first + i, processes, kinds, results), daemon=True)
        for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    try:
        while True:
            try:
                yield results.get(timeout=_REPORT_EVERY_S)
            except queue.Empty:
                dead = [worker.exitcode for worker in workers if not worker.is_alive()]
                if dead:
                    raise SystemExit(f"a process of the soak ended by itself, exit code {dead[0]}") from None
    finally:
        for worker in workers:
            worker.terminate()


def _be_quiet() -> None:
    logging.disable(logging.WARNING)  # what goes wrong is planned
    warnings.simplefilter("ignore")


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after so long (default: never)")
    parser.add_argument("--first-seed", type=int, help="default: a random one")
    parser.add_argument("--processes", type=int, default=1, help="seeds are dealt out among them (default: 1)")
    parser.add_argument("--worlds", type=int, metavar="N", help="instead: N worlds of leases and of leaders")
    parser.add_argument("--mode", choices=[m.value for m in Mode], help="default: all in turn")
    parser.add_argument("--variation", choices=[v.value for v in Variation], help="default: all in turn")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    if arguments.worlds is not None:
        return soak_worlds(arguments.first_seed or random.SystemRandom().randrange(FIRST_SEED, 10**9), arguments.worlds)
    modes = [Mode(arguments.mode)] if arguments.mode else list(Mode)
    variations = [Variation(arguments.variation)] if arguments.variation else list(Variation)
    kinds = [kind for kind in itertools.product(variations, modes) if kind != (Variation.LED, Mode.NONE)]  # no record
    first: int = arguments.first_seed or random.SystemRandom().randrange(FIRST_SEED, 10**9)
    print(f"seeds from {first} on: {', '.join(f'{m.value} {v.value}' for v, m in kinds)}", flush=True)
    _be_quiet()
    several = arguments.processes > 1
    source = _from_processes(first, arguments.processes, kinds) if several else tallies(first, 1, kinds)
    total = Tally()
    started = reported = time.monotonic()
    try:
        for tally in source:
            total.add(tally)
            for failure in tally.failures:
                print(f"FAILED: {failure}", flush=True)
            now = time.monotonic()
            if now - reported > _REPORT_EVERY_S:
                reported = now
                rate = total.total / (now - started)
                print(f"{total.total:,} schedules, {len(total.failures)} failures, {rate:.1f} per second", flush=True)
            if arguments.minutes is not None and now - started > arguments.minutes * 60:
                break
    except KeyboardInterrupt:
        print("stopped", flush=True)
    print(total.table(), flush=True)
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
