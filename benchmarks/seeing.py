"""What it costs to look at a job: throughput with the page open and metrics scraped, and the driver's memory.

`python -m benchmarks seeing` measures W1 with and without somebody looking, in turn. `python -m benchmarks.seeing
--minutes 30 --out FILE.csv` runs a job with a checkpoint every 50 ms that is looked at all the time, and writes the
memory of the driver's Python process every five seconds.

Who looks is a process of its own that asks what an open page asks for (its events, and with each the tab that it
shows) and `/metrics` once a second: a browser would take time from the job on the same machine, which it does not when
it runs on another one.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import multiprocessing
import multiprocessing.synchronize
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psutil

from benchmarks.report import Figure
from benchmarks.workloads import RunningCount, environment, first, run_w1, to_pair
from tidegate.common import WatermarkStrategy
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.web.registry import JobRecord, running_jobs

TABS = ("vertices/1", "checkpoints", "exceptions")


def look(over: multiprocessing.synchronize.Event, answers: multiprocessing.Queue[int]) -> None:
    """Until it is told to stop, at every job that turns up."""
    count = 0
    while not over.wait(1.0):
        for job in running_jobs():
            try:
                count += _page(job, count)
            except (OSError, http.client.HTTPException):  # it ended in this moment
                continue
    answers.put(count)


def _page(job: JobRecord, turn: int) -> int:
    """What a second of an open page and of Prometheus asks for. The number of answers."""
    base = f"/v1/jobs/{job.job_id}"
    paths = [base, f"{base}/{TABS[turn % len(TABS)]}", "/metrics"]
    for path in paths:
        parts = urlsplit(job.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
        connection.request("GET", path, headers={"Authorization": f"Bearer {job.read_token}"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path} was answered with {answer.status}")
    return len(paths)


@contextmanager
def looking() -> Iterator[list[int]]:
    """Afterwards the list has the number of answers."""
    spawned = multiprocessing.get_context("spawn")
    over, answers = spawned.Event(), spawned.Queue()
    process = spawned.Process(target=look, args=(over, answers), daemon=True)
    process.start()
    found: list[int] = []
    try:
        yield found
    finally:
        over.set()
        found.append(answers.get(timeout=30))
        process.join()


def run(quick: bool) -> list[Figure]:
    count, rounds = (3_000_000, 3) if quick else (12_000_000, 5)
    run_w1(1000, 1)  # start Spark and its workers
    alone, seen, answers = [], [], 0
    for turn in range(rounds):
        for watched in (False, True) if turn % 2 == 0 else (True, False):
            if watched:
                with looking() as counted:
                    time.sleep(2.0)  # it takes a while to start
                    seen.append(run_w1(count, 1))
                answers += counted[0]
            else:
                alone.append(run_w1(count, 1))
    ratio = statistics.median(alone) / statistics.median(seen)
    best = min(alone) / min(seen)
    return [
        Figure("W1, nobody looks", f"{count / statistics.median(alone) / 1e6:.2f} M/s"),
        Figure("W1, page open and metrics scraped each second", f"{count / statistics.median(seen) / 1e6:.2f} M/s"),
        Figure("ratio of the medians", f"{ratio:.3f}", ">= 0.97", ratio >= 0.97),
        Figure("ratio of the best", f"{best:.3f}"),
        Figure("answers", str(answers)),
    ]


def memory(minutes: float, out: str) -> None:
    env = environment(1, {"execution.checkpointing.interval": "50 ms"})
    source = DataGeneratorSource(lambda i: i, None, records_per_second=1000.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    stream.map(to_pair).key_by(first).process(RunningCount()).sink_to(DiscardingSink())
    with open(out, "w", newline="") as file, looking():
        rows = csv.writer(file)
        rows.writerow(("seconds", "driver MB", "completed checkpoints", "threads"))
        client = env.execute_async("memory of the driver")
        began = time.monotonic()
        here = psutil.Process()
        while time.monotonic() - began < minutes * 60:
            time.sleep(5.0)
            done = client.view().checkpoints.completed
            passed = time.monotonic() - began
            rows.writerow((f"{passed:.0f}", f"{here.memory_info().rss / 1e6:.1f}", done, here.num_threads()))
            file.flush()
        client.cancel().result()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seeing")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", default="driver-memory.csv")
    arguments = parser.parse_args()
    memory(arguments.minutes, arguments.out)


if __name__ == "__main__":
    main()
