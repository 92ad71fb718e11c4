"""The end of a query: nothing of it may be at work when the next one begins.

A query that goes on would commit batches beside its successor, and its tasks would read from the sources and write to
the sinks. What tasks that are late write of state harms nobody: Spark keeps apart what each run has written (format 2
of its state checkpoints), unless the location was begun by a version before.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from tidegate.spark.batch.remaining_tasks import tasks_are_gone

STOP_S = 10.0  # in which a query and its tasks should have left
_LOOK_S = 0.01
_JOBS_AT_WORK = 4  # of Spark, at the most, whose tasks may still run when a query is stopped: those of one batch


class QueryRemainsError(Exception):
    """A query of an attempt before is still there. It is waited for, as the restart strategy says."""


class StoppedQueries:
    """`tracker`: Spark's StatusTracker. Used from one thread: `check` before a query is started, `stop` after it."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._left: list[Any] = []  # queries that were stopped and may not be gone

    def stop(self, query: Any) -> None:
        """Returns when nothing of it is left, or after some time."""
        self._left.append(query)
        with contextlib.suppress(Exception):  # what it was, and whether it is gone, is asked below and by `check`
            query.stop()
            query.awaitTermination(STOP_S)
        self._wait()

    def check(self) -> None:
        """Raises QueryRemainsError when one is still there after some time."""
        self._wait()
        if self._left:
            what = "runs" if self._runs(self._left[0]) else "has left tasks that run"
            raise QueryRemainsError(
                f"the query of an attempt before still {what}, {STOP_S:g} s after it was stopped: the next one must "
                "not begin beside it. Spark's page shows what it does; functions that do not return, for one, keep it"
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + STOP_S
        while True:
            self._left = [query for query in self._left if not self._gone(query)]
            if not self._left or time.monotonic() > deadline:
                return
            time.sleep(_LOOK_S)

    def _gone(self, query: Any) -> bool:
        try:
            return not self._runs(query) and tasks_are_gone(self._tracker, str(query.runId), _JOBS_AT_WORK)
        except Exception:  # nobody answers: the session is gone, and the query with it
            return True

    def _runs(self, query: Any) -> bool:
        return bool(query.isActive)
