"""Whether a job comes to an end by itself."""

from __future__ import annotations

from tidegate.contracts.connectors import Boundedness
from tidegate.graph.job_graph import JobGraph, JobVertex
from tidegate.graph.operator_specs import SourceSpec


def unbounded_sources(graph: JobGraph) -> list[str]:
    """The names of the sources that never end."""
    return [vertex.operators[0].name for vertex in unbounded_vertices(graph)]


def unbounded_vertices(graph: JobGraph) -> list[JobVertex]:
    """Those whose source never ends."""
    heads = [(vertex, vertex.operators[0].spec) for vertex in graph.vertices]
    return [
        vertex
        for vertex, spec in heads
        if isinstance(spec, SourceSpec) and spec.source.boundedness is not Boundedness.BOUNDED
    ]
