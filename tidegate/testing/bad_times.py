"""The times in which storage or commits of an in-process job go wrong, on the job's own clock."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from tidegate.chaos.commit_faults import fail_commits
from tidegate.chaos.storage_faults import BadTime, FaultyWorkerStorage
from tidegate.graph.operator_specs import SinkSpec
from tidegate.taskmanager.deployment import SlotPlan
from tidegate.taskmanager.operators.base import Operator
from tidegate.testing.clock import EPOCH, ManualClock
from tidegate.testing.faults import CommitsFail, StorageFails

_WAYS = {"fails": "fails", "slow": "is slow", "full": "is full"}


class BadTimes:
    """`happened` is called with a fault when it has struck for the first time.

    Nothing sleeps: what is slow is done at once, and `take_delay` says until when nobody may hear of it."""

    def __init__(
        self,
        faults: Iterable[StorageFails | CommitsFail],
        clock: ManualClock,
        happened: Callable[[StorageFails | CommitsFail], None],
    ) -> None:
        self._clock = clock
        self._delayed_to: float | None = None
        self._at_checkpoint: list[tuple[StorageFails | CommitsFail, BadTime]] = []  # that have not begun
        self._storage: list[BadTime] = []
        self._commits: list[tuple[CommitsFail, BadTime]] = []
        for fault in faults:
            bad_time = self._bad_time(fault, happened)
            if isinstance(fault, StorageFails):
                self._storage.append(bad_time)
            else:
                self._commits.append((fault, bad_time))
            if fault.checkpoint is not None:
                self._at_checkpoint.append((fault, bad_time))

    def _bad_time(
        self, fault: StorageFails | CommitsFail, happened: Callable[[StorageFails | CommitsFail], None]
    ) -> BadTime:
        begins = math.inf if fault.after_ms is None else EPOCH + fault.after_ms
        way = _WAYS[fault.how] if isinstance(fault, StorageFails) else "fails"
        bad_time = BadTime(
            begins,
            begins + fault.for_ms,
            way,
            told=lambda: happened(fault),
            clock=self._clock.now_ms,
            sleep=lambda seconds: self._delay(bad_time.ends),
            by="a fault plan of tidegate.testing",
        )
        return bad_time

    def _delay(self, until: float) -> None:
        self._delayed_to = max(until, self._delayed_to or until)

    def checkpoint_triggered(self, checkpoint_id: int) -> None:
        for begun in [one for one in self._at_checkpoint if (one[0].checkpoint or 0) <= checkpoint_id]:
            self._at_checkpoint.remove(begun)
            fault, bad_time = begun
            bad_time.begins = self._clock.now
            bad_time.ends = self._clock.now + fault.for_ms

    def disturbed(self, plan: SlotPlan) -> SlotPlan:
        """What a worker runs instead of its plan."""
        storage, settings = plan.storage, plan.settings
        for bad_time in self._storage if storage is not None else ():
            faulty: Any = FaultyWorkerStorage(storage, bad_time, reads=bad_time.way != _WAYS["slow"])
            storage = faulty
        if self._commits:  # waits between two tries pass on the real clock, and not on the job's
            settings = dataclasses.replace(settings, commit_backoff_ms=0)
        return dataclasses.replace(plan, storage=storage, settings=settings)

    def metadata_written(self) -> None:
        """Before the metadata of a checkpoint is written. Raises when that goes wrong now."""
        for bad_time in self._storage:
            bad_time.strike()

    def watch(self, operator: Operator, names: tuple[str | None, ...]) -> None:
        """Stand in front of the committer, before it is made."""
        spec = operator.node.spec
        if not isinstance(spec, SinkSpec):
            return
        for fault, bad_time in self._commits:
            if fault.operator is None or fault.operator in names:
                fail_commits(spec.sink, bad_time)

    def take_delay(self) -> float | None:
        """Until when what was just done takes, on the job's clock; None: it is done."""
        until, self._delayed_to = self._delayed_to, None
        return until
