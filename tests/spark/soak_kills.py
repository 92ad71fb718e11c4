"""Real faults without end: `python -m tests.spark.soak_kills [--minutes M] [--faults N] [--seed S] [--first N]`.

Takes the jobs of `chaos_jobs/soak_job.py` in turn, with both backends, aligned and unaligned, and puts each under
`tidegate chaos`: most with recorders for sinks, some with their own (files, and Kafka and PostgreSQL where they are to
be had). In some turns, drawn from the seed too, only drivers are killed and jobs rescaled: beside the faults of workers
those would be rare. Prints a line for each round with its faults, a line a minute, and a table at the end, also when it
is stopped (SIGINT, SIGTERM) or fails itself; ends with 1 when a guarantee was broken, and with the command that repeats
it: the folder of such a job is kept. A job that cannot be judged, since its run without faults fails on a busy machine,
say, is counted and left.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.spark.chaos_jobs.soak_job import RECORDS
from tests.spark.soak_targets import Targets
from tidegate.chaos.comparison import Verdict, compare, ordered_sinks
from tidegate.chaos.differences import SinkVerdict
from tidegate.chaos.draws import DRIVER_KINDS, KINDS
from tidegate.chaos.rewriting import ChaosError
from tidegate.chaos.rounds import Rounds
from tidegate.chaos.segment import DamagedRunError
from tidegate.chaos.wishes import Wishes

JOB = str(Path(__file__).parent / "chaos_jobs" / "soak_job.py")
JOBS = ("timers", "windows", "joins", "broadcast", "async", "sliding")
MOST_UNJUDGED = 10  # jobs one after the other: then it is not the machine that was busy
_MOST_KEPT = 10  # folders of jobs with a broken round
WAYS = (("hashmap", "aligned"), ("rocksdb", "unaligned"), ("hashmap", "unaligned"), ("rocksdb", "aligned"))


class Soak:
    def __init__(self, arguments: argparse.Namespace, targets: Targets) -> None:
        self._arguments = arguments
        self._targets = targets
        self._began = time.monotonic()
        self.faults: Counter[str] = Counter()  # by kind
        self.aligned: dict[str, Counter[str]] = {"aligned": Counter(), "unaligned": Counter()}  # likewise
        self.of_jobs: Counter[str] = Counter()  # faults by the kind of job
        self.rounds: Counter[tuple[str, str, str]] = Counter()
        self.sums: Counter[str] = Counter()
        self.broken: list[str] = []
        self.uncompared = 0  # rounds whose state at the end could not be held against the undisturbed one
        self.unjudged: list[str] = []  # jobs that could not be put under faults, or not to their end, and why

    @property
    def over(self) -> bool:
        minutes = (time.monotonic() - self._began) / 60
        limit = self._arguments.minutes
        return self.faults.total() >= self._arguments.faults or (limit is not None and minutes >= limit)

    def run(self) -> None:
        draw = random.Random(self._arguments.seed)
        of_jobs = (*JOBS, *self._targets.kinds)
        jobs = [(kind, *ways) for ways in WAYS for kind in of_jobs]  # soon one of each kind, and both alignments
        in_a_row = 0
        for job in itertools.islice(itertools.cycle(jobs), self._arguments.first % len(jobs), None):
            while self._arguments.pause_while is not None and os.path.exists(self._arguments.pause_while):
                time.sleep(1)
            if self.over:
                return
            kinds = tuple(self._arguments.kinds.split(","))
            seed, only_drivers = draw.randrange(2**31), draw.random() < self._arguments.drivers
            if only_drivers:
                kinds = tuple(kind for kind in kinds if kind in DRIVER_KINDS) or kinds
            try:
                self._job(job, seed, kinds)
                in_a_row = 0
            except (ChaosError, DamagedRunError) as error:
                self.unjudged.append(f"{' '.join(job)}, seed {seed}: {error}")
                print(f"NOT JUDGED: {self.unjudged[-1]}", flush=True)
                in_a_row += 1
                if in_a_row == MOST_UNJUDGED:
                    raise

    def _job(self, job: tuple[str, str, str], seed: int, kinds: tuple[str, ...]) -> None:
        own_target = job[0] in self._targets.kinds
        wishes = Wishes(
            program=JOB,
            arguments=job,
            rounds=self._arguments.rounds,
            seed=seed,
            kinds=kinds,
            every_s=self._arguments.every,
            faults_per_round=self._arguments.per_round,
            stretch_s=self._arguments.stretch,
            keep_sinks=own_target,
            looked_at=own_target,
            settings=(("heartbeat.timeout", "2 s"),),  # workers are frozen for longer than that
        )
        folder = tempfile.mkdtemp(prefix="tidegate-soak-")
        broken_before = len(self.broken)
        try:
            for name in ("undisturbed-1", *(f"round-{n + 1}" for n in range(wishes.rounds))):
                self._targets.make(job[0], f"{folder}/{name}")
            rounds = Rounds(wishes, folder)
            expected = rounds.measured()
            if not expected.ended:  # nothing can be held against it
                raise ChaosError(f"the job fails without any fault: {expected.problem}")
            ordered = ordered_sinks(expected, expected)
            for run in rounds.disturbed():
                verdict = compare(expected, run, ordered)
                if own_target and run.ended:
                    lost, doubled = self._targets.lost_and_doubled(job[0], run.folder)
                    handed_badly = [sink for sink in verdict.sinks if not sink.held]
                    verdict.sinks = [*handed_badly, SinkVerdict(job[0], "exactly once", RECORDS, lost, doubled)]
                self._count(job, wishes, verdict)
                if self.over:
                    return
        finally:
            if len(self.broken) > broken_before and len(self.broken) <= _MOST_KEPT:
                print(f"what its processes have left is kept in {folder}", flush=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)

    def _count(self, job: tuple[str, str, str], wishes: Wishes, verdict: Verdict) -> None:
        self.rounds[job] += 1
        faults = Counter(str(fault["kind"]) for fault in verdict.run.faults)
        self.faults.update(faults)
        self.aligned[job[2]].update(faults)
        self.of_jobs[job[0]] += faults.total()
        for sink in verdict.sinks:
            counts = {"records": sink.records, "lost": sink.lost, "doubled": sink.doubled, "changed": sink.changed}
            self.sums.update({**counts, "out of order": sink.out_of_order})
        word = "held" if verdict.held else "BROKEN"
        if verdict.uncompared:
            self.uncompared += 1
            word += ", the state at the end NOT COMPARED"
            print(f"NOT COMPARED: {'; '.join(verdict.uncompared)}", flush=True)
        if not verdict.held:
            number = int(verdict.run.name.removeprefix("round "))
            examples = [
                e for s in verdict.sinks for e in s.examples or [f"{s.name}: lost {s.lost}, doubled {s.doubled}"]
            ]
            why = verdict.run.problem or "; ".join([*examples, *verdict.state])
            self.broken.append(f"{wishes.command(number)}: {why}")
            print(f"BROKEN: {self.broken[-1]}", flush=True)
        print(
            f"{' '.join(job)}: {word}, {faults.total()} faults in {verdict.run.seconds:.0f} s "
            f"({', '.join(f'{kind} {count}' for kind, count in faults.items())}) of {self._records(verdict)} records; "
            f"{self._so_far()}",
            flush=True,
        )

    @staticmethod
    def _records(verdict: Verdict) -> int:
        return sum(sink.records for sink in verdict.sinks)

    def _so_far(self) -> str:
        return f"in all {self.faults.total()} faults, lost {self.sums['lost']}, doubled {self.sums['doubled']}"

    def a_line_a_minute(self) -> None:
        while True:
            time.sleep(60)
            minutes = (time.monotonic() - self._began) / 60
            print(f"{minutes:.0f} min, {self.rounds.total()} rounds: {self._so_far()}", flush=True)

    def table(self) -> Iterator[str]:
        """Line by line, as docs/chaos.md has it."""
        columns = [self.aligned["aligned"], self.aligned["unaligned"], self.faults]
        yield "| fault | aligned | unaligned | all |"
        yield "|---|---|---|---|"
        for kind in KINDS:
            yield f"| {KINDS[kind]} | {' | '.join(f'{column[kind]:,}' for column in columns)} |"
        yield f"| **faults** | {' | '.join(f'**{column.total():,}**' for column in columns)} |"
        yield ""
        yield f"| job | {' | '.join(self.of_jobs)} |"
        yield f"|---|{'---|' * len(self.of_jobs)}"
        yield f"| faults | {' | '.join(f'{count:,}' for count in self.of_jobs.values())} |"
        yield ""
        sums = (f"{name} {self.sums[name]:,}" for name in ("records", "lost", "doubled", "changed", "out of order"))
        yield f"{self.rounds.total()} rounds, {len(self.broken)} of them broken; {', '.join(sums)}"
        if self.uncompared:
            yield f"the state at the end was not compared in {self.uncompared} of them"
        for one in self.broken:
            yield f"BROKEN: {one}"
        for one in self.unjudged:
            yield f"NOT JUDGED: {one}"

    def run_and_tell(self) -> int:
        """The exit code. The table is printed whatever ends it."""
        try:
            with contextlib.suppress(KeyboardInterrupt):
                self.run()
        finally:
            print("", *self.table(), sep="\n", flush=True)
        return 1 if self.broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, help="stop after so long (default: never)")
    parser.add_argument("--faults", type=int, default=sys.maxsize, help="stop after so many")
    parser.add_argument("--per-round", type=int, default=15, help="faults of a round, at most")
    parser.add_argument("--rounds", type=int, default=2, help="of each job before the next one's turn")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of faults, as `tidegate chaos --faults`")
    parser.add_argument(
        "--drivers",
        type=float,
        default=0.35,
        help="share of the turns with faults of the driver alone (those of --kinds)",
    )
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two faults, on average")
    parser.add_argument("--first", type=int, default=0, help="the place in the list of the job to begin with")
    parser.add_argument("--stretch", type=float, default=25.0, help="seconds that an undisturbed run lasts")
    parser.add_argument("--pause-while", metavar="FILE", help="begin with no other job while there is this file")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    for stopped in (signal.SIGINT, signal.SIGTERM):  # also where a shell has it ignored, in the background
        signal.signal(stopped, signal.default_int_handler)
    with Targets() as targets:
        soak = Soak(arguments, targets)
        threading.Thread(target=soak.a_line_a_minute, daemon=True).start()
        return soak.run_and_tell()


if __name__ == "__main__":
    sys.exit(main())
