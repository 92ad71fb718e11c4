"""The causes of failed attempts, bounded: a job may restart for years."""

from __future__ import annotations

from dataclasses import replace

from tidegate.common.ids import AttemptNumber
from tidegate.protocol.instructions import AttemptFailure
from tidegate.protocol.messages import FailureInfo

_KEPT = 20
_DISTINCT = 100


class FailureHistory:
    """The first cause of every attempt. The first entry and the latest ones are kept."""

    def __init__(self) -> None:
        self._entries: list[AttemptFailure] = []  # oldest first, at most _KEPT, attempts strictly increasing
        self._seen: dict[str, int] = {}  # how often, by cause or summary; at most _DISTINCT
        self.total = 0

    @property
    def entries(self) -> tuple[AttemptFailure, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> tuple[AttemptNumber, float] | None:
        """The attempt that has failed last, and when."""
        return (self._entries[-1].attempt, self._entries[-1].at_ms) if self._entries else None

    def record(self, attempt: AttemptNumber, failure: FailureInfo, now_ms: float) -> None:
        self._entries.append(AttemptFailure(attempt, now_ms, failure))
        self.total += 1
        if len(self._entries) > _KEPT:
            del self._entries[1]

    def story_of(self, failure: FailureInfo) -> str:
        """What people are told of a failure, to be asked for once: with its traceback when it is the first of its kind,
        afterwards the how-manieth it is."""
        seen = self._times_seen(failure)
        if seen > 1:
            return f"{failure.summary} (the same failure for the {_ordinal(seen)} time)"
        return f"{failure.summary}\n{failure.traceback}".rstrip()

    def _times_seen(self, failure: FailureInfo) -> int:
        kind = failure.cause or failure.summary
        if kind not in self._seen and len(self._seen) >= _DISTINCT:
            del self._seen[next(iter(self._seen))]
        self._seen[kind] = self._seen.get(kind, 0) + 1
        return self._seen[kind]

    def latest_is_consequence(self) -> bool:
        return bool(self._entries) and self._entries[-1].failure.consequence

    def replace_latest(self, failure: FailureInfo) -> None:
        """What was recorded turned out to follow from `failure`."""
        latest = self._entries[-1]
        self._entries[-1] = replace(latest, failure=failure)

    def decided(self, verdict: str) -> None:
        """What follows from the latest."""
        self._entries[-1] = replace(self._entries[-1], verdict=verdict)


def _ordinal(number: int) -> str:
    teen = 10 < number % 100 < 20
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
