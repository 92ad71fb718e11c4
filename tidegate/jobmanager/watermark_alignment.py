"""Watermark alignment over the whole job. No I/O.

Sources of a group report their watermarks; nobody in the group may be more than the allowed drift ahead of the lowest.
Nobody is held back before all slots with sources of the group have reported once.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.common.ids import SlotIndex, SubtaskIndex
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec
from tidegate.network.elements import MAX_WATERMARK


class WatermarkAlignment:
    """Of one attempt. `on_report` is the only method that changes it."""

    def __init__(self, graph: JobGraph) -> None:
        self._drift: dict[str, int] = {}  # group -> ms; of several the smallest
        self._awaited: dict[str, set[SlotIndex]] = {}  # group -> slots that have not reported yet
        self._watermarks: dict[str, dict[SlotIndex, int]] = {}
        self._limits: dict[str, int] = {}  # as they were sent last
        for vertex in graph.vertices:
            spec = vertex.operators[0].spec
            alignment = getattr(spec.watermark_strategy, "alignment", None) if isinstance(spec, SourceSpec) else None
            if alignment is None:
                continue
            group = alignment.group
            self._drift[group] = min(self._drift.get(group, alignment.max_drift_ms), alignment.max_drift_ms)
            slots = {graph.slot_of(vertex.vertex_id, SubtaskIndex(i)) for i in range(vertex.parallelism)}
            self._awaited.setdefault(group, set()).update(slots)

    def on_report(self, slot: SlotIndex, watermarks: Mapping[str, int]) -> dict[str, int]:
        """The limits that have changed: group -> highest watermark that anybody in it may have."""
        changed: dict[str, int] = {}
        for group, watermark in watermarks.items():
            if group not in self._drift:
                continue
            self._awaited[group].discard(slot)
            reported = self._watermarks.setdefault(group, {})
            reported[slot] = watermark
            if self._awaited[group]:
                continue
            limit = min(MAX_WATERMARK, min(reported.values()) + self._drift[group])
            if limit != self._limits.get(group):
                self._limits[group] = changed[group] = limit
        return changed
