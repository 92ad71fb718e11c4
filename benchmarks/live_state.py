"""What looking at live state costs: W1 with 1,000 live gets a second over without, and how long a get takes.

Turns as in `turns.py`. Those who ask are threads of another process, over REST: in the driver they would hold its
interpreter lock, and with it those who answer. On a small machine they take time from the job all the same, as they do
not when they are elsewhere; the figure of the worker's processor time leaves that out. How long one get takes is
measured before, by one thread of the driver, which asks for a key at a time through the client.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import multiprocessing.synchronize
import random
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from benchmarks.report import Figure
from benchmarks.turns import cost_of, endless_w1
from benchmarks.workloads import KEYS
from tidegate.common.errors import StateNotReadableError
from tidegate.web.registry import JobRecord, running_jobs

GETS_PER_S = 1_000
THREADS = 8  # as many looks at state as a port takes at once
KEYS_PER_LOOK = 10
TURN_S = 2.0


def ask(
    asking: multiprocessing.synchronize.Event,
    over: multiprocessing.synchronize.Event,
    answers: multiprocessing.Queue[tuple[list[float], int]],
) -> None:
    """In a process of its own: asks the job that runs while `asking` is set, until it is over."""
    while not (jobs := running_jobs()):
        if over.wait(0.1):
            answers.put(([], 0))
            return
    took: list[float] = []
    late = [0] * THREADS

    def thread(number: int) -> None:
        rng = random.Random(number)
        pause = THREADS * KEYS_PER_LOOK / GETS_PER_S
        due = time.perf_counter()
        while not over.is_set():
            if not asking.is_set():
                time.sleep(0.02)
                due = time.perf_counter()
                continue
            due += pause
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            if _look(jobs[0], [rng.randrange(KEYS) for _ in range(KEYS_PER_LOOK)]):
                took.append(time.perf_counter() - began)
            else:
                late[number] += 1

    threads = [threading.Thread(target=thread, args=(i,), daemon=True) for i in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    answers.put((took, sum(late)))


def _look(job: JobRecord, keys: list[int]) -> bool:
    """Whether it was answered: it may be refused for now."""
    parts = urlsplit(job.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    query = "&".join(f"key={key}" for key in keys)
    path = f"/v1/jobs/{job.job_id}/state/count/count?{query}"
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {job.read_token}"})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status == 200:
        if len(json.loads(body)["answers"]) != len(keys):
            raise SystemExit(f"not every key was answered: {body[:300]!r}")
        return True
    if answer.status != 409:
        raise SystemExit(f"{path} was answered with {answer.status}: {body[:300]!r}")
    return False


class Askers:
    """The process that asks."""

    def __init__(self) -> None:
        spawned = multiprocessing.get_context("spawn")
        self._asking, self._over, self._answers = spawned.Event(), spawned.Event(), spawned.Queue()
        arguments = (self._asking, self._over, self._answers)
        self._process = spawned.Process(target=ask, args=arguments, daemon=True)
        self._process.start()

    def turn(self, on: bool) -> None:
        if on:
            self._asking.set()
        else:
            self._asking.clear()

    def end(self) -> tuple[list[float], int]:
        """How long each look took, in seconds; and how many were refused."""
        self._over.set()
        found: tuple[list[float], int] = self._answers.get(timeout=60)
        self._process.join()
        return found


def _single_gets(handle: Any, seconds: float) -> list[float]:
    """How long each took, sorted."""
    rng, took = random.Random(0), []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        try:
            handle.get(rng.randrange(KEYS), level="live")
        except StateNotReadableError:
            continue
        took.append(time.perf_counter() - began)
    return sorted(took)


def run(quick: bool) -> list[Figure]:
    with endless_w1() as client:
        single = _single_gets(client.get_state("count", "count"), 2.0 if quick else 10.0)
        askers = Askers()
        cost = cost_of(client, askers.turn, 4 if quick else 12, TURN_S)
        took, late = askers.end()
    took.sort()
    return [
        Figure("W1, nobody asks", f"{cost.alone / 1e6:.2f} M/s"),
        Figure(
            f"live gets, {KEYS_PER_LOOK} keys a look, over REST",
            f"{len(took) * KEYS_PER_LOOK / cost.disturbed_s:.0f} /s",
            f"{GETS_PER_S} /s",
        ),
        Figure(
            "W1 asked / alone, of the worker's processor time", f"{cost.by_cpu:.3f}", ">= 0.97", cost.by_cpu >= 0.97
        ),
        Figure("W1 asked / alone, of time (askers on the same machine)", f"{cost.by_time:.3f}"),
        *_quantiles("live get of one key, one thread of the driver,", single),
        *_quantiles("look over REST", took),
        Figure("looks that were refused for now", str(late)),
    ]


def _quantiles(name: str, took: list[float]) -> list[Figure]:
    return [
        Figure(f"{name} p{share}", f"{took[len(took) * share // 100] * 1e3:.1f} ms" if took else "none")
        for share in (50, 99)
    ]
