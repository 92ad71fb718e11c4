"""Real faults without end: `python -m tests.spark.soak_kills [--minutes M] [--faults N] [--seed S]`.

Takes the jobs of `chaos_jobs/soak_job.py` in turn, with both backends, aligned and unaligned, and puts each under
`tidegate chaos`. Prints a line for each round and a table at the end; ends with 1 when a guarantee was broken, and with
the command that repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tidegate.chaos.comparison import Verdict, compare, ordered_sinks
from tidegate.chaos.draws import KINDS
from tidegate.chaos.rounds import Rounds, Wishes

JOB = str(Path(__file__).parent / "chaos_jobs" / "soak_job.py")
JOBS = ("timers", "windows", "joins", "broadcast", "async", "sliding")


class Soak:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._began = time.monotonic()
        self.faults: Counter[str] = Counter()
        self.rounds: Counter[tuple[str, str, str]] = Counter()
        self.sums: Counter[str] = Counter()
        self.broken: list[str] = []

    @property
    def over(self) -> bool:
        minutes = (time.monotonic() - self._began) / 60
        limit = self._arguments.minutes
        return self.faults.total() >= self._arguments.faults or (limit is not None and minutes >= limit)

    def run(self) -> None:
        draw = random.Random(self._arguments.seed)
        for job in itertools.cycle(itertools.product(JOBS, ("hashmap", "rocksdb"), ("aligned", "unaligned"))):
            if self.over:
                return
            self._job(job, draw.randrange(2**31))

    def _job(self, job: tuple[str, str, str], seed: int) -> None:
        wishes = Wishes(
            program=JOB,
            arguments=job,
            rounds=self._arguments.rounds,
            seed=seed,
            every_s=1.5,
            faults_per_round=self._arguments.per_round,
            stretch_s=self._arguments.stretch,
        )
        folder = tempfile.mkdtemp(prefix="tidegate-soak-")
        try:
            rounds = Rounds(wishes, folder)
            first, second = rounds.undisturbed()
            if not compare(first, second).held:
                self.broken.append(f"{' '.join(job)}: two undisturbed runs differ")
                return
            ordered = ordered_sinks(first, second)
            for run in rounds.disturbed():
                self._count(job, seed, compare(second, run, ordered))
                if self.over:
                    return
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _count(self, job: tuple[str, str, str], seed: int, verdict: Verdict) -> None:
        self.rounds[job] += 1
        self.faults.update(str(fault["kind"]) for fault in verdict.run.faults)
        for sink in verdict.sinks:
            counts = {"records": sink.records, "lost": sink.lost, "doubled": sink.doubled, "changed": sink.changed}
            self.sums.update({**counts, "out of order": sink.out_of_order})
        word = "held" if verdict.held else "BROKEN"
        if not verdict.held:
            number = verdict.run.name.removeprefix("round ")
            why = verdict.run.problem or "; ".join(e for s in verdict.sinks for e in s.examples) or verdict.state
            self.broken.append(
                f"tidegate chaos --seed {seed} --round {number} --every 1.5 --faults-per-round "
                f"{self._arguments.per_round} --stretch {self._arguments.stretch} {JOB} {' '.join(job)}: {why}"
            )
        print(
            f"{' '.join(job)}: {word}, {len(verdict.run.faults)} faults in {verdict.run.seconds:.0f} s; "
            f"in all {self.faults.total()} faults, lost {self.sums['lost']}, doubled {self.sums['doubled']}",
            flush=True,
        )

    def table(self) -> None:
        print("\n| fault | how often |\n|---|---|")
        for kind in KINDS:
            print(f"| {KINDS[kind]} | {self.faults[kind]} |")
        print(f"| all, in {self.rounds.total()} rounds of {len(self.rounds)} jobs | {self.faults.total()} |")
        print("\n" + ", ".join(f"{name} {self.sums[name]}" for name in ("records", "lost", "doubled", "out of order")))
        for one in self.broken:
            print(f"BROKEN: {one}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after so long (default: never)")
    parser.add_argument("--faults", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--per-round", type=int, default=15, help="faults of a round, at most")
    parser.add_argument("--rounds", type=int, default=2, help="of each job before the next one's turn")
    parser.add_argument("--stretch", type=float, default=25.0, help="seconds that an undisturbed run lasts")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    soak = Soak(arguments)
    with contextlib.suppress(KeyboardInterrupt):
        soak.run()
    soak.table()
    return 1 if soak.broken else 0


if __name__ == "__main__":
    sys.exit(main())
