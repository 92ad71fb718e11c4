"""Whether a job comes to an end by itself."""

from __future__ import annotations

from tidegate.contracts.connectors import Boundedness
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec


def unbounded_sources(graph: JobGraph) -> list[str]:
    """The names of the sources that never end."""
    heads = [vertex.operators[0] for vertex in graph.vertices]
    return [
        head.name
        for head in heads
        if isinstance(head.spec, SourceSpec) and head.spec.source.boundedness is not Boundedness.BOUNDED
    ]
