"""Committing with retries, for whoever commits: a sink in its task, or the driver of a batch job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tidegate.common.texts import bounded
from tidegate.contracts.connectors import CommittableLostError

_MAX_PAUSE_MS = 30_000.0


class CommitOutcome(NamedTuple):
    """`left`: what could not be committed, [] when all was. `last_error`: of the last try, when it raised."""

    left: list[Any]
    last_error: BaseException | None


class FailedTry(NamedTuple):
    """A try that has left something, and after which another one follows."""

    number: int  # from 1
    tries: int  # that are allowed
    left: int  # committables
    error: BaseException | None  # None: the committer gave them back without a word
    pause_ms: float  # before the next try

    def describe(self) -> str:
        why = "the committer gave them back" if self.error is None else bounded(repr(self.error), 1_000)
        return (
            f"{self.left} committables could not be committed in try {self.number} of {self.tries}, the next one is in "
            f"{self.pause_ms / 1000:g} s: {why}"
        )


def commit_with_retries(
    committer: Any,
    committables: list[Any],
    retries: int,
    backoff_ms: float,
    on_failed_try: Callable[[FailedTry], None],
) -> CommitOutcome:
    """Blocks until all is committed or the tries are used up; the pause before a try doubles each time. What a try does
    not give back is committed and is not asked for again; when it raises, nothing of it is taken to be committed.
    `on_failed_try` is called before every pause: nobody should have to wait for the last try to hear of the first.
    Raises a `CommittableLostError` at once."""
    left = committables
    last_error: BaseException | None = None
    for attempt in range(retries + 1):
        if attempt:
            pause_ms = min(backoff_ms * 2 ** (attempt - 1), _MAX_PAUSE_MS)
            on_failed_try(FailedTry(attempt, retries + 1, len(left), last_error, pause_ms))
            time.sleep(pause_ms / 1000)
        try:
            left, last_error = committer.commit(left) or [], None
        except CommittableLostError:
            raise
        except Exception as error:
            last_error = error
        if not left:
            break
    return CommitOutcome(left, last_error)
