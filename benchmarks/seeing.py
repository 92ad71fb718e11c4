"""What it costs to look at a job: throughput with the page open and metrics scraped, and the driver's memory.

`python -m benchmarks seeing` measures W1 with and without somebody looking, in turns. `python -m benchmarks.seeing
--minutes 30 --out FILE.csv` runs a job with a checkpoint every 50 ms that is looked at all the time, and writes the
memory of the driver's Python process every five seconds.

Who looks is a process of its own that asks what an open page asks for (its events, and with each the tab that it
shows) and `/metrics` once a second: a browser would take time from the job on the same machine, which it does not when
it runs on another one.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import http.client
import multiprocessing
import multiprocessing.synchronize
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.report import Figure
from benchmarks.turns import cost_of, endless_w1
from benchmarks.workloads import RunningCount, environment, first, to_pair
from tidegate.common import WatermarkStrategy
from tidegate.connectors.discard import DiscardingSink
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.web.registry import JobRecord, running_jobs

TABS = ("vertices/1", "checkpoints", "exceptions", "state", "metrics", "config")  # of the page, in turn
CHECKPOINTS = {"execution.checkpointing.interval": "1 s"}  # so that there are some to be shown
TURN_S = 4.0


def look(
    over: multiprocessing.synchronize.Event,
    watching: multiprocessing.synchronize.Event,
    answers: multiprocessing.Queue[int],
) -> None:
    """Until it is told to stop, and as long as it is to watch, at every job that turns up."""
    count = 0
    streams: dict[str, http.client.HTTPConnection] = {}  # of each job, while its page is open
    while not over.wait(1.0):
        if not watching.is_set():
            while streams:
                _hang_up(streams.popitem()[1])
            continue
        for job in running_jobs():
            try:
                if job.job_id not in streams:
                    streams[job.job_id] = _open_page(job)
                count += _second(job, count)
            except (OSError, http.client.HTTPException):  # it ended in this moment
                continue
    answers.put(count)


def _connection(job: JobRecord) -> http.client.HTTPConnection:
    parts = urlsplit(job.url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)


def _open_page(job: JobRecord) -> http.client.HTTPConnection:
    """Its events, which a thread reads."""
    connection = _connection(job)
    path = f"/v1/jobs/{job.job_id}/events"
    connection.request("GET", path, headers={"Authorization": f"Bearer {job.read_token}"})
    answer = connection.getresponse()
    threading.Thread(target=_read_on, args=(answer,), daemon=True).start()
    return connection


def _read_on(answer: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it was hung up
        while answer.readline():
            pass


def _hang_up(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


def _second(job: JobRecord, turn: int) -> int:
    """What a second of an open page, which each event makes ask for what it shows, and of Prometheus asks for. The
    number of answers."""
    base = f"/v1/jobs/{job.job_id}"
    paths = [base, f"{base}/vertices", f"{base}/{TABS[turn % len(TABS)]}", "/metrics"]
    for path in paths:
        connection = _connection(job)
        connection.request("GET", path, headers={"Authorization": f"Bearer {job.read_token}"})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path} was answered with {answer.status}")
    return len(paths)


class Onlooker:
    """The process that looks."""

    def __init__(self) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._over, self.watching, self._answers = spawned.Event(), spawned.Event(), spawned.Queue()
        arguments = (self._over, self.watching, self._answers)
        self._process = spawned.Process(target=look, args=arguments, daemon=True)
        self._process.start()

    def turn(self, on: bool) -> None:
        if on:
            self.watching.set()
        else:
            self.watching.clear()
        time.sleep(1.0)  # it looks up once a second

    def end(self) -> int:
        """The number of answers that it got."""
        self._over.set()
        count: int = self._answers.get(timeout=30)
        self._process.join()
        return count


def run(quick: bool) -> list[Figure]:
    onlooker = Onlooker()
    with endless_w1(CHECKPOINTS) as client:
        cost = cost_of(client, onlooker.turn, 3 if quick else 10, TURN_S)
    answers = onlooker.end()
    return [
        Figure("W1, nobody looks", f"{cost.alone / 1e6:.2f} M/s"),
        Figure("W1, page open and metrics scraped each second", f"{cost.by_time:.3f}", ">= 0.97", cost.by_time >= 0.97),
        Figure("the same, of the worker's processor time", f"{cost.by_cpu:.3f}"),
        Figure("answers", f"{answers / cost.disturbed_s:.1f} /s"),
    ]


def memory(minutes: float, out: str) -> None:
    env = environment(1, {"execution.checkpointing.interval": "50 ms"})
    source = DataGeneratorSource(lambda i: i, None, records_per_second=1000.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    stream.map(to_pair).key_by(first).process(RunningCount()).sink_to(DiscardingSink())
    onlooker = Onlooker()
    onlooker.watching.set()
    with open(out, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("seconds", "driver MB", "completed checkpoints", "threads"))
        client: Any = env.execute_async("memory of the driver")
        began = time.monotonic()
        here = psutil.Process()
        while time.monotonic() - began < minutes * 60:
            time.sleep(5.0)
            done = client.view().checkpoints.completed
            passed = time.monotonic() - began
            rows.writerow((f"{passed:.0f}", f"{here.memory_info().rss / 1e6:.1f}", done, here.num_threads()))
            file.flush()
        client.cancel().result()
    onlooker.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seeing")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", default="driver-memory.csv")
    arguments = parser.parse_args()
    memory(arguments.minutes, arguments.out)


if __name__ == "__main__":
    main()
