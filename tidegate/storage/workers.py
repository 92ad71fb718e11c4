"""The threads on which a job's host talks to its storage, so that one call that hangs holds up nothing else.

What is written, what is deleted and what is only looked at have a thread each. On each, work is done in the order in
which it was asked for. Between them only one order matters: a folder must not be deleted before the metadata that is
being written into it is there, or it would stand there afterwards, complete to look at and without its files. So a
deletion waits for the writes that concern it, and for no others.

The threads are daemons: a program ends also while one of them hangs.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

log = logging.getLogger("tidegate.storage")

WARN_AFTER_S = 5.0
_MAX_WAITING = 10_000  # deletions behind one that hangs


class Lane(enum.Enum):
    WRITES = "writes"
    DELETIONS = "deletions"
    LOOKS = "looks"


class Closed(enum.Enum):
    """How the end of the threads was."""

    ALL_DONE = "everything that was asked for has been done"
    GIVEN_UP = "something hung and was left behind"


@dataclass(eq=False)
class _Work:
    what: str  # for the log: "writing the metadata of checkpoint 7"
    do: Callable[[], object]
    folders: frozenset[str] | None = frozenset()  # that it writes or deletes; None: any


@dataclass
class _Running:
    work: _Work
    since: float
    warn_at: float
    warned: bool = False


@dataclass
class _Queue:
    waiting: deque[_Work] = field(default_factory=deque)
    running: _Running | None = None
    done: int = 0  # how many have ended


class StorageThreads:
    """`write`, `delete` and `look` from any thread, until `close`; `warn_of_hanging` now and then, at least every few
    seconds. Work has to deal with its own errors: what it raises is only logged."""

    def __init__(self, where: str, *, warn_after_s: float) -> None:
        """`where`: the storage's name for people."""
        self._where = where
        self._warn_after_s = warn_after_s
        self._changed = threading.Condition()  # guards everything below
        self._queues = {lane: _Queue() for lane in Lane}
        self._writing: Counter[str] = Counter()  # folder -> writes into it that were asked for and have not ended
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"tidegate-storage-{lane.value}", daemon=True)
            for lane in Lane
        ]
        for thread in self._threads:  # at once: at the end of a program none can be started any more
            thread.start()

    def write(self, what: str, do: Callable[[], object], folder: str) -> bool:
        """False, and nothing is done, after `close`; so with the other two."""
        with self._changed:
            if self._add(Lane.WRITES, _Work(what, do, frozenset([folder]))):
                self._writing[folder] += 1
                return True
            return False

    def delete(self, what: str, do: Callable[[], object], folders: Collection[str] | None) -> bool:
        """`folders`: those whose content it deletes; None: it may be any, so all writes come first."""
        with self._changed:
            if len(self._queues[Lane.DELETIONS].waiting) >= _MAX_WAITING:
                log.warning("%s: %s is left out, %d others wait", self._where, what, _MAX_WAITING)
                return False
            return self._add(Lane.DELETIONS, _Work(what, do, None if folders is None else frozenset(folders)))

    def look(self, what: str, do: Callable[[], object]) -> bool:
        with self._changed:
            return self._add(Lane.LOOKS, _Work(what, do))

    def warn_of_hanging(self) -> None:
        now = time.monotonic()
        with self._changed:
            for queue in self._queues.values():
                running = queue.running
                if running is not None and now >= running.warn_at:
                    running.warned = True
                    running.warn_at = now + max(self._warn_after_s, now - running.since)
                    log.warning(
                        "%s: %s has not returned for %.0f s; %d more wait for it",
                        self._where,
                        running.work.what,
                        now - running.since,
                        len(queue.waiting),
                    )

    def close(self, last: Callable[[], object], patience_s: float) -> Closed:
        """Take on nothing more and wait for what was asked for, then for `last`, which runs behind everything else.
        Given up when nothing at all has come to its end for `patience_s`; what hangs is left hanging, and logged."""
        with self._changed:
            if not self._closed:
                self._add(Lane.DELETIONS, _Work("closing the storage", last, None))
                self._closed = True
                self._changed.notify_all()
            ended, since = -1, time.monotonic()
            while any(queue.running is not None or queue.waiting for queue in self._queues.values()):
                done = sum(queue.done for queue in self._queues.values())
                if done != ended:
                    ended, since = done, time.monotonic()
                left = since + patience_s - time.monotonic()
                if left <= 0:
                    self._give_up()
                    return Closed.GIVEN_UP
                self._changed.wait(left)
        return Closed.ALL_DONE

    # ------------------------------------------------------------ inside; the lock is held
    def _add(self, lane: Lane, work: _Work) -> bool:
        if self._closed:
            return False
        self._queues[lane].waiting.append(work)
        self._changed.notify_all()
        return True

    def _take(self, lane: Lane) -> _Work | None:
        """The next one that may begin."""
        waiting = self._queues[lane].waiting
        for work in waiting:
            if lane is not Lane.DELETIONS or not self._is_behind_writes(work):
                waiting.remove(work)
                return work
            if work.folders is None:
                return None  # it looks at everything, so what was asked for later does not overtake it
        return None

    def _is_behind_writes(self, work: _Work) -> bool:
        return bool(self._writing) if work.folders is None else any(self._writing[f] for f in work.folders)

    def _give_up(self) -> None:
        for queue in self._queues.values():
            if queue.running is not None:
                seconds = time.monotonic() - queue.running.since
                log.warning(
                    "%s: %s has not returned for %.0f s and is not waited for any longer; %d more are left undone",
                    self._where,
                    queue.running.work.what,
                    seconds,
                    len(queue.waiting),
                )
            queue.waiting.clear()

    # ------------------------------------------------------------ the threads
    def _run(self, lane: Lane) -> None:
        queue = self._queues[lane]
        while True:
            with self._changed:
                while (work := self._take(lane)) is None:
                    if self._closed and not queue.waiting:
                        return
                    self._changed.wait()
                now = time.monotonic()
                running = queue.running = _Running(work, now, now + self._warn_after_s)
            try:
                work.do()
            except Exception:
                log.exception("%s: %s failed", self._where, work.what)
            with self._changed:
                queue.running = None
                queue.done += 1
                if lane is Lane.WRITES:
                    self._writing.subtract(work.folders or ())
                    self._writing = +self._writing
                if running.warned:
                    log.warning("%s: %s took %.0f s", self._where, work.what, time.monotonic() - running.since)
                self._changed.notify_all()
