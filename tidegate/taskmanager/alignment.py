"""Watermark alignment in one slot: reports how far its sources are, and holds back those that are too far ahead."""

from __future__ import annotations

from tidegate.network.elements import MAX_WATERMARK
from tidegate.taskmanager.operators.source import SourceOperator


class SourceAlignment:
    """All sources of the slot that belong to a group. The host sends `report` every `interval_ms`."""

    def __init__(self, sources: list[SourceOperator]) -> None:
        self._sources = [(s, s.alignment) for s in sources if s.alignment is not None and s.periodic]
        self._interval = float(min((alignment.update_interval_ms for _, alignment in self._sources), default=0))
        self._next = 0.0

    def report_if_due(self, now_ms: float) -> dict[str, int] | None:
        """Group -> the lowest watermark of its sources here; one that is at its end or idle holds nobody back."""
        if not self._sources or now_ms < self._next:
            return None
        self._next = now_ms + self._interval
        lowest: dict[str, int] = {}
        for source, alignment in self._sources:
            lowest[alignment.group] = min(lowest.get(alignment.group, MAX_WATERMARK), source.alignment_watermark)
        return lowest

    def next_deadline(self) -> float | None:
        return self._next if self._sources else None

    def on_limits(self, limits: dict[str, int]) -> None:
        for source, alignment in self._sources:
            if alignment.group in limits:
                source.hold_above(limits[alignment.group])
