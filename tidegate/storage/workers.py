"""The threads on which a job's host talks to its storage, so that one call that hangs holds up nothing else.

Each lane of `work_queues`, which says in which order things are done, has a thread. One that has not come back for long
is left behind at what it does, and another takes its place: a write that hangs stops neither the checkpoints after it
nor savepoints to other stores. A few at most: a store in which everything hangs gets no more threads. Deletions, whose
order matters, are never done by two.

The threads are daemons: a program ends also while one of them hangs.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tidegate.storage.work_queues import Lane, Work, WorkQueues

log = logging.getLogger("tidegate.storage")

WARN_AFTER_S = 5.0
LEAVE_AFTER_S = 30.0
_MAX_LEFT_BEHIND = 4  # of a lane
MAX_WAITING = 10_000  # deletions behind one that hangs


class Closed(enum.Enum):
    """How the end of the threads was."""

    ALL_DONE = "everything that was asked for has been done"
    GIVEN_UP = "something hung and was left behind"


@dataclass(eq=False)
class _Running:
    lane: Lane
    work: Work
    since: float
    warn_at: float
    warned: bool = False
    left_behind: bool = False  # its thread ends when it comes back


class StorageThreads:
    """`write`, `write_savepoint`, `delete` and `look` from any thread, until `close`; `watch` now and then, at least
    every few seconds. Work has to deal with its own errors: what it raises is only logged. Writes may be done side by
    side, into different folders."""

    def __init__(self, where: str, *, warn_after_s: float, leave_after_s: float = LEAVE_AFTER_S) -> None:
        """`where`: the storage's name for people."""
        self._where = where
        self._warn_after_s = warn_after_s
        self._leave_after_s = leave_after_s
        self._changed = threading.Condition()  # guards everything below
        self._queues = WorkQueues()
        self._running: list[_Running] = []  # what each thread is at
        self._done = 0  # how much has ended
        self._closed = False
        for lane in Lane:  # at once: at the end of a program none can be started any more
            self._start(lane)

    def _start(self, lane: Lane) -> None:
        name = f"tidegate-storage-{lane.value}"
        threading.Thread(target=self._run, args=(lane,), name=name, daemon=True).start()

    def write(self, what: str, do: Callable[[], object], folder: str) -> bool:
        """False, and nothing is done, after `close`; so with the other three."""
        with self._changed:
            return self._add(Lane.WRITES, Work(what, do, frozenset([folder])))

    def write_savepoint(self, what: str, do: Callable[[], object], folder: str) -> bool:
        """To a folder of its own, perhaps in another store."""
        with self._changed:
            return self._add(Lane.SAVEPOINTS, Work(what, do, frozenset([folder])))

    def delete(self, what: str, do: Callable[[], object], folders: Collection[str] | None) -> bool:
        """`folders`: those whose content it deletes; None: it may be any, so all writes come first. Also False when too
        many deletions wait already."""
        return self.delete_pieces([(what, do)], folders)

    def delete_pieces(
        self, pieces: Sequence[tuple[str, Callable[[], object]]], folders: Collection[str] | None
    ) -> bool:
        """One deletion in several pieces, in their order: it is taken on with all of them, or with none."""
        with self._changed:
            if self._queues.waiting(Lane.DELETIONS) >= MAX_WAITING:
                what = pieces[0][0]
                log.warning("%s: %s is left out, %d other deletions wait", self._where, what, MAX_WAITING)
                return False
            concerns = None if folders is None else frozenset(folders)
            return all(self._add(Lane.DELETIONS, Work(what, do, concerns)) for what, do in pieces)

    def look(self, what: str, do: Callable[[], object]) -> bool:
        with self._changed:
            return self._add(Lane.LOOKS, Work(what, do))

    def watch(self) -> None:
        """Tells of what hangs, and gives its lane another thread when it has hung for long."""
        now = time.monotonic()
        with self._changed:
            for running in self._running:
                if now >= running.warn_at:
                    running.warned = True
                    running.warn_at = now + max(self._warn_after_s, now - running.since)
                    log.warning(
                        "%s: %s has not returned for %.0f s; %d more wait %s",
                        self._where,
                        running.work.what,
                        now - running.since,
                        self._queues.waiting(running.lane),
                        "beside it" if running.left_behind else "for it",
                    )
                if now >= running.since + self._leave_after_s and self._may_be_left(running):
                    running.left_behind = True
                    self._start(running.lane)

    def _may_be_left(self, running: _Running) -> bool:
        left = sum(other.left_behind and other.lane is running.lane for other in self._running)
        replaceable = running.lane is not Lane.DELETIONS and not running.left_behind
        return replaceable and not self._closed and left < _MAX_LEFT_BEHIND

    def close(self, last: Callable[[], object], patience_s: float) -> Closed:
        """Take on nothing more and wait for what was asked for, then for `last`, which runs behind everything else.
        Given up when nothing at all has come to its end for `patience_s`; what hangs is left hanging, and logged."""
        with self._changed:
            if not self._closed:
                self._add(Lane.DELETIONS, Work("closing the storage", last, None))
                self._closed = True
                self._changed.notify_all()
            ended, since = -1, time.monotonic()
            while self._running or any(self._queues.waiting(lane) for lane in Lane):
                if self._done != ended:
                    ended, since = self._done, time.monotonic()
                left = since + patience_s - time.monotonic()
                if left <= 0:
                    self._give_up()
                    return Closed.GIVEN_UP
                self._changed.wait(left)
        return Closed.ALL_DONE

    # ------------------------------------------------------------ inside; the lock is held
    def _add(self, lane: Lane, work: Work) -> bool:
        if self._closed:
            return False
        self._queues.add(lane, work)
        self._changed.notify_all()
        return True

    def _give_up(self) -> None:
        for running in self._running:
            log.warning(
                "%s: %s has not returned for %.0f s and is not waited for any longer; %d more are left undone",
                self._where,
                running.work.what,
                time.monotonic() - running.since,
                self._queues.waiting(running.lane),
            )
        self._queues.drop()

    # ------------------------------------------------------------ the threads
    def _run(self, lane: Lane) -> None:
        while True:
            with self._changed:
                while (work := self._queues.take(lane)) is None:
                    if self._closed and not self._queues.waiting(lane):
                        return
                    self._changed.wait()
                now = time.monotonic()
                running = _Running(lane, work, now, now + self._warn_after_s)
                self._running.append(running)
            try:
                work.do()
            except Exception:
                log.exception("%s: %s failed", self._where, work.what)
            with self._changed:
                self._running.remove(running)
                self._done += 1
                self._queues.ended(lane, work)
                if running.warned:
                    log.warning("%s: %s took %.0f s", self._where, work.what, time.monotonic() - running.since)
                self._changed.notify_all()
                if running.left_behind:
                    return
