"""Which fault strikes when: drawn from the seed, the round, the segment and the attempt, and from nothing else, so that
every worker knows the same without asking, and a seed replays."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tidegate.chaos.segment import Segment

WORKER_KINDS = {
    "kill": "SIGKILL of a worker",
    "exception": "an exception at a record in an operator",
    "freeze": "SIGSTOP of a worker for longer than the heartbeat",
    "cut": "the connections of a worker to the others are cut",
    "storage": "storage that fails, is slow or full for a while",
    "commit": "commits that fail for a while",
}
DRIVER_KINDS = {
    "driver": "SIGKILL of the driver; started again, it goes on from its newest checkpoint",
    "rescale": "stopped with a savepoint, started with another parallelism",
}
KINDS = {**WORKER_KINDS, **DRIVER_KINDS}
_DEADLY = ("kill", "freeze")  # no attempt goes on after these; it may after the others
_MOST_OF_AN_ATTEMPT = 6


@dataclass(frozen=True)
class WorkerFault:
    kind: str
    slot: int  # of the worker that it strikes
    after_s: float  # from the start of the attempt
    length: float  # of a freeze in heartbeat timeouts, of storage or commits that fail in seconds
    choice: float  # of [0, 1): which operator, which way


@dataclass(frozen=True)
class DriverFault:
    kind: str
    after_s: float  # from the start of the job
    choice: float


def worker_faults(segment: Segment, attempt: int, slots: int) -> tuple[WorkerFault, ...]:
    """Those of an attempt, one after the other; (): it is left alone. One that ends the attempt is the last."""
    if attempt >= segment.faults_left:
        return ()
    before = sum(len(_of_attempt(segment, earlier, slots)) for earlier in range(attempt))
    return _of_attempt(segment, attempt, slots)[: max(0, segment.faults_left - before)]


def _of_attempt(segment: Segment, attempt: int, slots: int) -> tuple[WorkerFault, ...]:
    kinds = [kind for kind in segment.kinds if kind in WORKER_KINDS]
    draw = random.Random(f"{segment.seed}/{segment.number}/{attempt}")
    faults: list[WorkerFault] = []
    begins = 0.0
    while kinds and len(faults) < _MOST_OF_AN_ATTEMPT and (not faults or faults[-1].kind not in _DEADLY):
        kind, slot = draw.choice(kinds), draw.randrange(slots)
        begins += _moment(draw, segment.every_s)
        faults.append(WorkerFault(kind, slot, after_s=begins, length=draw.uniform(1.2, 2.5), choice=draw.random()))
        begins += faults[-1].length
    return tuple(faults)


def driver_fault(segment: Segment) -> DriverFault | None:
    """The fault that ends a segment; None: it runs to the end of the job. One segment of two has none, so that worker
    faults are not always cut short."""
    kinds = [kind for kind in segment.kinds if kind in DRIVER_KINDS]
    draw = random.Random(f"{segment.seed}/{segment.number}/driver")
    alone = not any(kind in WORKER_KINDS for kind in segment.kinds)
    if not kinds or segment.faults_left <= 0 or (not alone and draw.random() < 0.5):
        return None
    return DriverFault(draw.choice(kinds), _moment(draw, 2 * segment.every_s), draw.random())


def _moment(draw: random.Random, mean_s: float) -> float:
    return min(4 * mean_s, 0.1 * mean_s + draw.expovariate(1 / (0.9 * mean_s)))
