"""Finds event-time windows that could never fire, before anything is started."""

from __future__ import annotations

from tidegate.common.errors import JobGraphError
from tidegate.graph.operator_specs import AssignTimestampsSpec, SourceSpec, WindowSpec
from tidegate.graph.stream_graph import StreamGraph, StreamNode


def check_event_time(graph: StreamGraph) -> None:
    """Raises JobGraphError for an event-time window none of whose records can have a timestamp: every way leads back
    to a source that gives none, past no timestamp assigner. A source that may give some is not refused."""
    for node in graph.nodes:
        spec = node.transformation.spec
        if isinstance(spec, WindowSpec) and spec.assigner.is_event_time():
            sources = _sources_without_timestamps(graph, node)
            if sources:
                raise JobGraphError(
                    f"the event-time window '{node.name}' never fires, because its records have no timestamps: "
                    f"{' and '.join(sorted(sources))} gives none. Call assign_timestamps_and_watermarks("
                    "WatermarkStrategy.for_bounded_out_of_orderness(...).with_timestamp_assigner(...)) on a stream "
                    "before window(), or use a processing-time window."
                )


def _sources_without_timestamps(graph: StreamGraph, window: StreamNode) -> set[str]:
    """The names of all sources upstream, or nothing when a record may get a timestamp on some way from there."""
    sources: set[str] = set()
    seen = {window.index}
    stack = [graph.nodes[edge.source] for edge in window.in_edges]
    while stack:
        node = stack.pop()
        if node.index in seen:
            continue
        seen.add(node.index)
        spec = node.transformation.spec
        if isinstance(spec, WindowSpec):  # its results have the timestamp of their window
            return set()
        if isinstance(spec, (AssignTimestampsSpec, SourceSpec)):
            strategy = spec.watermark_strategy
            if strategy is not None and strategy.timestamp_assigner is not None:
                return set()
        if isinstance(spec, SourceSpec):
            if getattr(spec.source, "gives_timestamps", True):
                return set()
            sources.add(f"'{node.name}'")
        stack += [graph.nodes[edge.source] for edge in node.in_edges]
    return sources
