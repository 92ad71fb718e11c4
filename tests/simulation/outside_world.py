"""What lies outside of the job and outlives every attempt: the target of its sinks, and the faults of its code.

User functions are pickled to every slot, so they reach the world by `current()` instead of holding it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any, NoReturn

from tests.simulation.durations import any_ms
from tests.simulation.sim_clock import SimClock
from tidegate.taskmanager import commit_retries

Ident = tuple[Any, ...]
"""(source, split, sequence number, branch...): one logical record, whatever happens to it on its way."""


class InjectedFault(Exception):
    """The simulator made user code, a storage or a commit fail."""


class SimulatedCrash(BaseException):
    """The process is gone at this very point. Not an Exception: nothing may catch it."""


class SimulatedHang(SimulatedCrash):
    """The thread does not come back from here until its process is killed."""


class BrokenPromise(AssertionError):
    """The system did what its guarantee excludes."""


class Transaction:
    """What one writer has staged between two barriers."""

    def __init__(self, sink: str, subtask: int, attempt: tuple[int, int], rows: list[Any]) -> None:
        self.sink = sink
        self.subtask = subtask
        self.attempt = attempt  # (run of the driver, attempt)
        self.rows = rows
        self.checkpoint: int | None = None  # the one that it was prepared for, None: at the end of the job
        self.committed = False
        self.undone = False  # the user has removed it from the target


class OutsideWorld:
    def __init__(self, rng: random.Random, clock: SimClock) -> None:
        self.rng = rng
        self.clock = clock
        self.transactions: dict[str, Transaction] = {}
        self.written: dict[str, list[tuple[int, Any]]] = {}  # sink without transactions -> (subtask, row)
        self.run_number = 0  # of the driver
        self.completed: dict[int, tuple[int, int]] = {}  # completed checkpoint -> (run of the driver, attempt)
        self._completed_before: list[dict[int, tuple[int, int]]] = []  # what it was at the end of each earlier run
        self.acting_run = 0  # of the driver whose worker does what happens now: those of killed drivers may live on
        self.checkpointing = False
        self.exactly_once = True
        self.calm = False  # nothing goes wrong any more, nobody is slow
        self.records = 0  # seen by user code, over all attempts
        self.raise_at: set[int] = set()  # record counts at which user code raises
        self.crash_at: set[int] = set()  # record counts at which the process dies
        self.slow_rate = 0.0  # share of records that take some milliseconds
        self.commit_fault_rate = 0.0
        self.commit_crash_rate = 0.0
        self.commit_faults_left = 0
        self.commit_outages: list[tuple[float, float]] = []  # (from, until): the target does not answer
        self.commit_hang_rate = 0.0
        self.commit_hangs_left = 0
        self.failed_commits = 0
        self.struck: Counter[str] = Counter()  # kind of fault -> how often it struck
        self.broken: str | None = None  # the first promise that was seen to be broken
        self.state: dict[tuple[str, int], dict[Any, Any]] = {}  # (operator, subtask) -> key -> its state at the end
        self.counted: dict[tuple[str, int], Any] = {}  # (operator, subtask) -> functions.Counted at the end
        self.epoch = 0  # how often the parallelism was changed
        self.splits_there: dict[int, int] = {}  # source that grows -> how many of its splits are there
        self.drained_runs: set[int] = set()  # of the driver, which ended with a drain

    def begin_run(self, completed: dict[int, tuple[int, int]]) -> None:
        """A new driver, which knows of these checkpoints. Workers of earlier ones go by what theirs told them."""
        self._completed_before.append(self.completed)
        self.completed = completed
        self.run_number += 1

    # ------------------------------------------------------------ faults in user code
    def on_record(self) -> None:
        """Called by user code for each record it sees."""
        self.records += 1
        if self.records in self.raise_at:
            self.struck["user code raises"] += 1
            raise InjectedFault(f"user code fails at record {self.records}")
        if self.records in self.crash_at:
            raise SimulatedCrash(f"at record {self.records}")
        if self.slow_rate and not self.calm and self.rng.random() < self.slow_rate:
            self.clock.advance(self.rng.uniform(0.5, 12.0))

    # ------------------------------------------------------------ the transactional target
    def stage(self, sink: str, subtask: int, attempt: int, rows: list[Any]) -> str:
        name = f"{sink}/{subtask}/r{self.run_number}a{attempt}/{len(self.transactions)}"
        self.transactions[name] = Transaction(sink, subtask, (self.run_number, attempt), rows)
        return name

    def commit(self, name: str) -> None:
        """Idempotent."""
        now = self.clock.now_ms()
        if not self.calm and any(began <= now < ended for began, ended in self.commit_outages):
            self.failed_commits += 1
            self.struck["a commit fails, since the target is away"] += 1
            raise InjectedFault(f"the target of {name} is away")
        if not self.calm and self.commit_hangs_left > 0 and self.rng.random() < self.commit_hang_rate:
            self.commit_hangs_left -= 1
            self._hang(name)
        if self.commit_faults_left > 0:
            if self.rng.random() < self.commit_fault_rate:
                self.commit_faults_left -= 1
                self.failed_commits += 1
                self.struck["a commit fails"] += 1
                if self.rng.random() < 0.5:
                    self._apply(name)  # done, but the answer is lost
                raise InjectedFault(f"the commit of {name} fails")
            if self.rng.random() < self.commit_crash_rate:
                self.commit_faults_left -= 1
                self.failed_commits += 1
                self.struck["a worker is killed in a commit"] += 1
                raise SimulatedCrash(f"while {name} is committed")
        self._apply(name)

    def _hang(self, name: str) -> None:
        """The target takes its time, or never answers: with or without having done it."""
        if self.rng.random() < 0.5:
            self.struck["a commit takes long"] += 1
            self.clock.advance(any_ms(self.rng, 1.0, 3000.0))
            return
        self.struck["a commit never returns"] += 1
        if self.rng.random() < 0.5:
            self._apply(name)
        raise SimulatedHang(f"in the commit of {name}")

    def _apply(self, name: str) -> None:
        transaction = self.transactions.get(name)
        if transaction is None:
            self.break_promise(f"commit of {name}, which was never staged")
        if transaction.undone:
            return  # by a worker of the old run that is not dead yet; the new one cannot know of it
        if self.checkpointing and not self._covered(transaction):
            self.break_promise(
                f"{name} was committed although checkpoint {transaction.checkpoint} of attempt {transaction.attempt}, "
                f"which holds it, and no later one of that attempt is complete (complete: {self._known()})"
            )
        transaction.committed = True

    def rewind(self, checkpoint_id: int) -> None:
        """The job will go on from a point that is not the latest one. What was committed since will come again: its
        user removes it from the target first."""
        for transaction in self.transactions.values():
            if transaction.checkpoint is None or transaction.checkpoint > checkpoint_id:
                transaction.committed, transaction.undone = False, True

    def break_promise(self, message: str) -> NoReturn:
        """Noted as well as raised: what calls this may swallow the exception."""
        self.broken = self.broken or message
        raise BrokenPromise(message)

    def _covered(self, transaction: Transaction) -> bool:
        n = transaction.checkpoint
        return n is not None and any(m >= n and a == transaction.attempt for m, a in self._known().items())

    def _known(self) -> dict[int, tuple[int, int]]:
        """The checkpoints that are complete as far as the driver of the acting worker knows. A checkpoint that was
        damaged later is none for a new driver; a worker that was told of it before may still be committing."""
        return self.completed if self.acting_run == self.run_number else self._completed_before[self.acting_run]

    def write(self, sink: str, subtask: int, rows: list[Any]) -> None:
        """A target without transactions: visible at once."""
        self.written.setdefault(sink, []).extend((subtask, row) for row in rows)

    def visible(self, sink: str) -> list[tuple[int, Any]]:
        """(subtask, row) of all that a reader of the target sees, in the order in which it was written."""
        rows = list(self.written.get(sink, ()))
        for t in self.transactions.values():
            if t.committed and t.sink == sink:
                rows.extend((t.subtask, row) for row in t.rows)
        return rows


_current: OutsideWorld | None = None


def current() -> OutsideWorld:
    assert _current is not None, "no simulation is running"
    return _current


class _Pauses:
    """Takes the place of the module `time` where commits are tried again."""

    def sleep(self, seconds: float) -> None:
        current().clock.advance(seconds * 1000)


def enter(world: OutsideWorld | None) -> None:
    global _current
    _current = world
    commit_retries.time = time if world is None else _Pauses()  # type: ignore[assignment]
