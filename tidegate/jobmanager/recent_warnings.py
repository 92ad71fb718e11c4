"""What a job has warned of lately, for those who look at it and do not read the driver's log."""

from __future__ import annotations

import re

import msgspec

from tidegate.common.texts import encodable

_KEPT = 30
_LONGEST = 500  # characters
_NUMBER = re.compile(r"\d+")


class WarningView(msgspec.Struct, frozen=True, kw_only=True):
    """A warning, and how often the same came: warnings that differ only in numbers are the same."""

    text: str  # the first line of the latest one
    first_ms: float
    latest_ms: float
    times: int


class RecentWarnings:
    """The different ones that came last. `add` is the mutator."""

    def __init__(self) -> None:
        self._by_kind: dict[str, WarningView] = {}  # the one that came last is last, at most _KEPT

    def add(self, text: str, now_ms: float) -> None:
        lines = text.strip().splitlines()
        line = encodable(lines[0])[:_LONGEST] if lines else ""
        kind = _NUMBER.sub("0", line)
        before = self._by_kind.pop(kind, None)
        first, times = (now_ms, 0) if before is None else (before.first_ms, before.times)
        self._by_kind[kind] = WarningView(text=line, first_ms=first, latest_ms=now_ms, times=times + 1)
        if len(self._by_kind) > _KEPT:
            del self._by_kind[next(iter(self._by_kind))]

    @property
    def latest(self) -> tuple[WarningView, ...]:
        """Oldest first."""
        return tuple(self._by_kind.values())
