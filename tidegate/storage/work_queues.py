"""The order of the work for a job's storage: a core without threads (those are in `workers`; the simulator needs none).

What is written, what is deleted and what is only looked at have a lane each, in the order in which it was asked for.
Between them only one order matters: a folder must not be deleted before the metadata that is being written into it is
there, or it would stand there afterwards, complete to look at and without its files. So a deletion waits for the writes
that concern it, and for no others.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass


class Lane(enum.Enum):
    WRITES = "writes"
    DELETIONS = "deletions"
    LOOKS = "looks"


@dataclass(eq=False)
class Work:
    what: str  # for the log: "writing the metadata of checkpoint 7"
    do: Callable[[], object]
    folders: frozenset[str] | None = frozenset()  # that it writes or deletes; None: any


class WorkQueues:
    """`add`, then `take` until it gives it out, then `ended`. One at a time of a lane; not safe for threads."""

    def __init__(self) -> None:
        self._waiting: dict[Lane, deque[Work]] = {lane: deque() for lane in Lane}
        self._writing: Counter[str] = Counter()  # folder -> writes into it that were asked for and have not ended

    def add(self, lane: Lane, work: Work) -> None:
        self._waiting[lane].append(work)
        if lane is Lane.WRITES:
            self._writing.update(work.folders or ())

    def waiting(self, lane: Lane) -> int:
        return len(self._waiting[lane])

    def take(self, lane: Lane) -> Work | None:
        """The next one that may begin."""
        waiting = self._waiting[lane]
        for work in waiting:
            if lane is not Lane.DELETIONS or not self._is_behind_writes(work):
                waiting.remove(work)
                return work
            if work.folders is None:
                return None  # it looks at everything, so what was asked for later does not overtake it
        return None

    def ended(self, lane: Lane, work: Work) -> None:
        if lane is Lane.WRITES:
            self._writing.subtract(work.folders or ())
            self._writing = +self._writing

    def drop(self) -> None:
        """Nothing that waits will be done."""
        for waiting in self._waiting.values():
            waiting.clear()

    def _is_behind_writes(self, work: Work) -> bool:
        return bool(self._writing) if work.folders is None else any(self._writing[f] for f in work.folders)
