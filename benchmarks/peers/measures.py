"""A job on a system, run, checked and measured. A wrong output is an error, never a figure."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.systems import BYTEWAX, SPARK, Job, JobFailedError, Run, System


class WrongOutputError(Exception):
    """What a system has made of a job is not what the job means."""


@dataclass(frozen=True)
class Latency:
    median_ms: float
    p99_ms: float


def rate(system: System, job: Job, folder: Path) -> float:
    """Records a second, from the first that is read to the last result."""
    run = Run(system, job, folder)
    run.start()
    try:
        run.wait()
    finally:
        run.stop()
    found = Counter(tuple(map(int, line[1:])) for line in run.lines("out"))
    _check(system, job, found, _expected(job))
    if system is SPARK:
        told = [line for line in run.log().splitlines() if line.startswith("RATE ")]
        return float(json.loads(told[-1][5:]))
    begun = min(float(line[0]) for line in run.lines("read"))
    return job.count / (max(float(line[0]) for line in run.lines("out")) - begun)


def latency(system: System, job: Job, folder: Path) -> Latency:
    run = Run(system, job, folder)
    run.start()
    try:
        run.wait()
    finally:
        run.stop()
    ages = []
    for path in run.trace.iterdir():
        own = [float(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("late ")]
        ages += own[len(own) // 5 :]  # the first are those of a start
    if len(ages) < job.count // 2:
        raise WrongOutputError(f"{system.name}: {len(ages)} of {job.count} records came through the exchange")
    ages.sort()
    return Latency(ages[len(ages) // 2] * 1000, ages[int(len(ages) * 0.99)] * 1000)


def recovery(system: System, job: Job, folder: Path) -> float:
    """Seconds: the longest pause in new results around the kill of a process that makes them."""
    run = Run(system, job, folder)
    run.start()
    try:
        run.wait(lambda: len(run.lines("out")) > _progress_of(system, job) // 3)
        if run.ended():
            raise JobFailedError(f"{system.name}: the job was over before a process could be killed")
        killed_at = time.time()
        os.kill(run.writers()[0], signal.SIGKILL)
        if system is BYTEWAX:  # it leaves starting again to whoever has started it
            run.stop()
            run.start()
        run.wait()
    finally:
        run.stop()
    first: dict[tuple[int, ...], float] = {}
    for line in run.lines("out"):
        what, when = tuple(map(int, line[1:])), float(line[0])
        first[what] = min(when, first.get(what, when))
    _check(system, job, Counter({k: 1 for k in first if k[1] >= job.count // job.keys}), _expected(job))
    times = sorted(first.values())
    pauses = [after - before for before, after in itertools.pairwise(times) if after > killed_at]
    return max(pauses)


def _progress_of(system: System, job: Job) -> int:
    return 40 * job.keys if system is SPARK else job.count  # its results come once per key and micro-batch


def _expected(job: Job) -> Counter[tuple[int, ...]]:
    if job.name == "window":
        return Counter(_windows(job))
    return Counter({(key, job.count // job.keys): 1 for key in range(job.keys)})


def _windows(job: Job) -> dict[tuple[int, ...], int]:
    sums = Counter((i % job.keys, i // 1000 * 1000) for i in range(job.count))
    return {(key, start, total): 1 for (key, start), total in sums.items()}


def _check(system: System, job: Job, found: Counter[tuple[int, ...]], expected: Counter[tuple[int, ...]]) -> None:
    if found != expected:
        missing, more = list((expected - found).items())[:3], list((found - expected).items())[:3]
        raise WrongOutputError(f"{system.name}: {job.name} is wrong. Missing: {missing}, not expected: {more}")
