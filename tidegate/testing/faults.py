"""Faults of an in-process job: an operator fails, a worker dies, freezes or is cut off, storage or commits go wrong,
the driver dies, the job is rescaled.

Each happens once. Those that name a moment have either `after_ms`, when the job has run for so long on its own clock,
or `checkpoint`, when the checkpoint with this number (the first one of a new job is 1) is triggered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


class PlannedFailure(Exception):
    """What a fault raises when it was given no error of its own."""


@dataclass(frozen=True)
class FailAt:
    """The operator with this name or uid raises before its `record`-th record (counted from 1 over all its subtasks and
    attempts). For a source: before it gives out the batch with that record."""

    operator: str
    record: int
    error: Exception | None = None


@dataclass(frozen=True)
class _AtMoment:
    """See the module's docstring: exactly one of the two is given."""

    after_ms: float | None = None
    checkpoint: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if (self.after_ms is None) == (self.checkpoint is None):
            raise ValueError(
                f"{type(self).__name__}: say when, either after_ms=... on the job's clock or checkpoint=..., the "
                "number of the checkpoint at whose beginning it happens"
            )


@dataclass(frozen=True)
class _ForAWhile(_AtMoment):
    for_ms: float = field(default=100.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.for_ms <= 0:
            raise ValueError(f"{type(self).__name__}: for_ms has to be more than 0, it is {self.for_ms}")


@dataclass(frozen=True)
class KillWorker(_AtMoment):
    """A worker is killed: the next attempt goes on from the last complete checkpoint."""

    slot: int = 0


@dataclass(frozen=True)
class FreezeWorker(_ForAWhile):
    """A worker stands still for `for_ms`, as under SIGSTOP: it processes nothing and is silent, and what it is sent
    waits for it. Frozen for longer than `heartbeat.timeout` it is taken for dead; otherwise the job goes on."""

    slot: int = 0


@dataclass(frozen=True)
class CutConnections(_AtMoment):
    """The connections between a worker and all others break, and what is under way on them is lost. Both ends fail with
    a ConnectionLostError, so the attempt is over. Only in a job with two slots or more."""

    slot: int = 0


@dataclass(frozen=True)
class StorageFails(_ForAWhile):
    """For `for_ms` what is written to the checkpoint storage and into savepoints, state of the workers and metadata
    alike, "fails", finds it "full", or, when it is "slow", is written only when the time is over. When it "fails" a
    worker that restores cannot read its state either, and the next attempt tries again."""

    how: Literal["fails", "slow", "full"] = field(default="fails", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.how not in ("fails", "slow", "full"):
            raise ValueError(f"StorageFails: how is 'fails', 'slow' or 'full', got {self.how!r}")


@dataclass(frozen=True)
class CommitsFail(_ForAWhile):
    """For `for_ms` every commit of a sink fails, or of that alone whose name or uid is `operator`. The tries of one
    commit follow each other at once, so the job fails over when it has none left (`tidegate.sink.commit-retries`), and
    commits again after the restart."""

    operator: str | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class KillDriver(_AtMoment):
    """The driver is killed, and its workers are gone with it. Another one is started with the same program, as under
    high availability, and goes on from the newest complete checkpoint. For `assert_same_under_faults` alone."""


@dataclass(frozen=True)
class Rescale(_AtMoment):
    """The job is stopped with a savepoint, and started from it with another parallelism: what has the highest gets
    `parallelism`. When the job cannot be stopped at that moment, as soon as it can. For `assert_same_under_faults`
    alone."""

    parallelism: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parallelism < 1:
            raise ValueError(f"Rescale: parallelism has to be 1 or more, it is {self.parallelism}")


Fault = FailAt | KillWorker | FreezeWorker | CutConnections | StorageFails | CommitsFail | KillDriver | Rescale
DriverFault = KillDriver | Rescale
"""What ends a driver; another one goes on."""
Strike = KillWorker | FreezeWorker | CutConnections
"""What befalls a worker at a moment."""
