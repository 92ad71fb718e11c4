"""A job of the soak in MICRO_BATCH mode, as a program that is killed and started again: `soak_job.py KIND FOLDER
MASTER`. The jobs are those of `chaos_jobs/soak_job.py`; windows and timers write their results to files."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

from tests.spark.chaos_jobs.soak_job import KEYS, RECORDS, WITH_TARGETS, build, build_with_target
from tests.spark.recovery_kit import file_sink
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment

PER_BATCH = 2_000
IN_FILES = ("windows", "timers")
_WINDOW = 2_000  # records: 20 s, one each 10 ms


def expected(kind: str) -> Counter[str]:
    """The lines of those `IN_FILES`."""
    if kind == "timers":
        totals, lines = Counter[int](), Counter[str]()
        for i in range(RECORDS):
            key = i % KEYS
            totals[key] += i
            lines[str((f"k{key}", totals[key]))] += 1
            if i % 50 == 0:
                lines[str((f"timer of k{key}", i * 10 + 5_000))] += 1
        return lines
    windows = Counter[tuple[int, int]]()
    for i in range(RECORDS):
        windows[i % KEYS, i // _WINDOW] += i
    return Counter(str((f"k{key}", total)) for (key, _), total in windows.items())


def build_into_files(env: StreamExecutionEnvironment, kind: str, folder: str) -> None:
    build(env, kind).map(str).sink_to(file_sink(Path(folder) / "out"))


def main(kind: str, folder: str, master: str) -> None:
    os.environ["TIDEGATE_CHAOS_FOLDER"] = folder
    settings = {
        "execution.runtime-mode": "MICRO_BATCH",
        "spark.master": master,
        "tidegate.micro-batch.checkpoint-location": os.path.join(folder, "location"),
        "tidegate.micro-batch.max-records": str(PER_BATCH),
        "spark.python.authenticate.socketTimeout": "300s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000",
        "restart-strategy.fixed-delay.delay": "100 ms",
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings))
    env.set_parallelism(2)
    if kind in WITH_TARGETS:
        build_with_target(env, kind)
    else:
        build_into_files(env, kind, folder)
    env.execute(kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
