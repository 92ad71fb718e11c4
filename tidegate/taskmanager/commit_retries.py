"""Committing with retries, for whoever commits: a sink in its task, or the driver of a batch job."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

_MAX_PAUSE_MS = 30_000.0


class CommitOutcome(NamedTuple):
    """`left`: what could not be committed, [] when all was. `last_error`: of the last try, when it raised."""

    left: list[Any]
    last_error: BaseException | None


def commit_with_retries(committer: Any, committables: list[Any], retries: int, backoff_ms: float) -> CommitOutcome:
    """Blocks until all is committed or the tries are used up; the pause before a try doubles each time. What a try does
    not give back is committed and is not asked for again; when it raises, nothing of it is taken to be committed."""
    left = committables
    last_error: BaseException | None = None
    for attempt in range(retries + 1):
        if attempt:
            time.sleep(min(backoff_ms * 2 ** (attempt - 1), _MAX_PAUSE_MS) / 1000)
        try:
            left, last_error = committer.commit(left) or [], None
        except Exception as error:
            last_error = error
        if not left:
            break
    return CommitOutcome(left, last_error)
