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
    "driver": "SIGKILL of the driver; started again from its last checkpoint",
    "rescale": "stopped with a savepoint, started with another parallelism",
}
KINDS = {**WORKER_KINDS, **DRIVER_KINDS}


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


def worker_fault(segment: Segment, attempt: int, slots: int) -> WorkerFault | None:
    """The one fault of an attempt; None: it is left alone."""
    kinds = [kind for kind in segment.kinds if kind in WORKER_KINDS]
    if not kinds or attempt >= segment.faults_left:
        return None
    draw = random.Random(f"{segment.seed}/{segment.number}/{attempt}")
    return WorkerFault(
        kind=draw.choice(kinds),
        slot=draw.randrange(slots),
        after_s=_moment(draw, segment.every_s),
        length=draw.uniform(1.2, 2.5),
        choice=draw.random(),
    )


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
