"""`python -m tests.spark.micro_batch.soak [--kills N] [--minutes M] [--seed S] [--first N]`; `make soak-micro-batch`.

Jobs in MICRO_BATCH mode, one after the other: windows, timers, a count into files, from Kafka to Kafka, into PostgreSQL
(the last two where these are to be had). Python workers, executors, Spark's JVM and the driver are killed at random
moments; a driver that is gone is started again. Each round ends by comparing the whole output with what it has to be.
Ends with 1 when it was not that. A round takes its kills from the seed and its number, so `--first` repeats one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.spark.micro_batch.kills import a_batch_more, batches, kill, kill_all
from tests.spark.micro_batch.soak_job import IN_FILES, expected
from tests.spark.programs import spark_installation
from tests.spark.recovery_kit import visible_lines
from tests.spark.soak_targets import Targets

MASTERS = (
    ("local[2]", ("worker", "worker", "worker", "driver", "jvm")),
    ("local-cluster[2,1,1024]", ("executor", "worker", "executor", "driver")),
)
"""And who is killed there, drawn from these."""
CLUSTER_EACH = 4  # rounds
KILLS_PER_ROUND = 6
PATIENT = {"SPARK_AUTH_SOCKET_TIMEOUT": "300"}  # s; Spark's Python processes give up after 15 on a busy machine


class Round:
    def __init__(self, targets: Targets, kind: str, seed: int, number: int) -> None:
        self.kind = kind
        self._targets = targets
        self._draw = random.Random(f"{seed} {number}")
        self._master, self._victims = MASTERS[number % CLUSTER_EACH == CLUSTER_EACH - 1]
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-soak-")) / f"round{number}"
        self._folder.mkdir()
        self.killed: Counter[str] = Counter()
        self.lost = self.doubled = self.batches = 0

    def run(self) -> str:
        """What was wrong with it; "" for nothing."""
        self._targets.make(self.kind, str(self._folder))
        try:
            problem = self._until_finished()
            if not problem:
                self.lost, self.doubled = self._lost_and_doubled()
                problem = f"lost {self.lost}, doubled {self.doubled}" if self.lost or self.doubled else ""
            self.batches = batches(self._folder)
            return problem
        finally:
            shutil.rmtree(self._folder.parent, ignore_errors=True)

    def _until_finished(self) -> str:
        command = [sys.executable, "-m", "tests.spark.micro_batch.soak_job", self.kind, str(self._folder), self._master]
        log = self._folder / "log"
        for _ in range(KILLS_PER_ROUND + 1):  # each of them may have ended a driver
            with open(log, "ab") as out:
                driver = subprocess.Popen(
                    command, stdout=out, stderr=out, env=os.environ | spark_installation() | PATIENT
                )
            try:
                killed = self._killing(driver)
                while a_batch_more(self._folder, driver):
                    pass
                code = driver.poll()
            finally:
                kill_all(driver)
            if code == 0:
                return ""
            if code is None:
                return f"no batch more has come:\n{log.read_text()[-3000:]}"
            if killed not in ("driver", "jvm"):
                return f"the driver ended with {code}, and nobody had killed it:\n{log.read_text()[-3000:]}"
        return f"it has ended more often than it was killed:\n{log.read_text()[-3000:]}"

    def _killing(self, driver: subprocess.Popen[bytes]) -> str:
        """Returns the last victim, when the driver is gone or all kills are done."""
        victim = ""
        while self.killed.total() < KILLS_PER_ROUND and a_batch_more(self._folder, driver):
            time.sleep(self._draw.random() * 2)
            chosen = self._draw.choice(self._victims)
            if driver.poll() is None and kill(driver.pid, chosen):
                victim = chosen
                self.killed[victim] += 1
        return victim

    def _lost_and_doubled(self) -> tuple[int, int]:
        if self.kind not in IN_FILES:
            return self._targets.lost_and_doubled(self.kind, str(self._folder))
        found, wanted = visible_lines(self._folder / "out"), expected(self.kind)
        return (wanted - found).total(), (found - wanted).total()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no other round after so long")
    parser.add_argument("--first", type=int, default=0, help="the number of the round to begin with")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    killed, of_kinds, broken = Counter[str](), Counter[str](), list[str]()
    began = time.monotonic()
    with Targets() as targets:
        kinds = (*IN_FILES, *targets.kinds)
        for number in itertools.count(arguments.first):
            if killed.total() >= arguments.kills or time.monotonic() - began > arguments.minutes * 60:
                break
            one = Round(targets, kinds[number % len(kinds)], arguments.seed, number)
            started = time.monotonic()
            problem = one.run()
            killed.update(one.killed)
            of_kinds[one.kind] += 1
            took = f"{one.batches} batches in {time.monotonic() - started:.0f} s, kills: {dict(one.killed)}"
            print(f"round {number} ({one.kind}): {problem or 'exact'}; {took}", flush=True)
            if problem:
                broken.append(f"--seed {arguments.seed} --first {number}")
    print(f"{of_kinds.total()} rounds {dict(of_kinds)}, {killed.total()} kills {dict(killed)}", flush=True)
    print(*(f"BROKEN: {one}" for one in broken), sep="\n", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
