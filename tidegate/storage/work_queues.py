"""The order of the work for a job's storage: a core without threads (those are in `workers`; the simulator needs none).

What is written to the job's own directory, what is written elsewhere (savepoints), what is deleted and what is only
looked at have a lane each, in the order in which it was asked for. Between pieces of work only one order matters: that
of what happens to one folder. It must not be deleted before the metadata that is being written into it is there, or it
would stand there afterwards, complete to look at and without its files. So a deletion waits for the writes that concern
it, and for no others; and when a lane has several threads, since one is stuck, a write waits for another one into the
same folder.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass


class Lane(enum.Enum):
    WRITES = "writes"
    SAVEPOINTS = "savepoints"
    DELETIONS = "deletions"
    LOOKS = "looks"


@dataclass(eq=False)
class Work:
    what: str  # for the log: "writing the metadata of checkpoint 7"
    do: Callable[[], object]
    folders: frozenset[str] | None = frozenset()  # that it writes or deletes; None: any


_WRITING = (Lane.WRITES, Lane.SAVEPOINTS)


class WorkQueues:
    """`add`, then `take` until it gives it out, then `ended`. Of deletions one at a time; not safe for threads."""

    def __init__(self) -> None:
        self._waiting: dict[Lane, deque[Work]] = {lane: deque() for lane in Lane}
        self._writing: Counter[str] = Counter()  # folder -> writes into it that were asked for and have not ended
        self._begun: Counter[str] = Counter()  # of them, those that were taken

    def add(self, lane: Lane, work: Work) -> None:
        self._waiting[lane].append(work)
        if lane in _WRITING:
            self._writing.update(work.folders or ())

    def waiting(self, lane: Lane) -> int:
        return len(self._waiting[lane])

    def take(self, lane: Lane) -> Work | None:
        """The next one that may begin."""
        waiting = self._waiting[lane]
        passed: set[str] = set()  # folders of those that are left waiting
        for work in waiting:
            if lane is Lane.DELETIONS:
                may_begin = not self._is_behind_writes(work)
            else:
                may_begin = not any(self._begun[f] or f in passed for f in work.folders or ())
            if may_begin:
                waiting.remove(work)
                if lane in _WRITING:
                    self._begun.update(work.folders or ())
                return work
            if work.folders is None:
                return None  # it looks at everything, so what was asked for later does not overtake it
            passed |= work.folders
        return None

    def ended(self, lane: Lane, work: Work) -> None:
        if lane in _WRITING:
            for folders in (self._writing, self._begun):
                folders.subtract(work.folders or ())
            self._writing, self._begun = +self._writing, +self._begun

    def drop(self) -> None:
        """Nothing that waits will be done."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._writing = self._begun.copy()  # a deletion does not wait for writes that will not be done

    def _is_behind_writes(self, work: Work) -> bool:
        return bool(self._writing) if work.folders is None else any(self._writing[f] for f in work.folders)
