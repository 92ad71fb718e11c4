"""Asks the sources for their splits: once per job, on the driver."""

from __future__ import annotations

import dataclasses

from tidegate.common.errors import JobGraphError, TidegateError
from tidegate.contracts.connectors import SourceSplit
from tidegate.graph.job_graph import JobGraph, JobVertex, OperatorNode
from tidegate.graph.operator_specs import SourceSpec


def make_splits(job_graph: JobGraph) -> JobGraph:
    """The same graph with the splits of every source in its SourceSpec. A source that has splits keeps them."""
    return dataclasses.replace(job_graph, vertices=tuple(_with_splits(vertex) for vertex in job_graph.vertices))


def _with_splits(vertex: JobVertex) -> JobVertex:
    head = vertex.operators[0]
    if not isinstance(head.spec, SourceSpec) or head.spec.splits is not None:
        return vertex
    spec = dataclasses.replace(head.spec, splits=_splits_of(head, head.spec, vertex.parallelism))
    return dataclasses.replace(vertex, operators=(dataclasses.replace(head, spec=spec), *vertex.operators[1:]))


def _splits_of(node: OperatorNode, spec: SourceSpec, parallelism: int) -> tuple[SourceSplit, ...]:
    try:
        splits = tuple(spec.source.create_splits(parallelism))
    except TidegateError:
        raise
    except Exception as error:
        raise JobGraphError(
            f"'{node.name}': {type(spec.source).__qualname__}.create_splits({parallelism}) failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    seen: set[str] = set()
    for split in splits:
        if not isinstance(split, SourceSplit):
            raise JobGraphError(
                f"'{node.name}': {type(spec.source).__qualname__}.create_splits returned {split!r}; every split has to "
                "be a SourceSplit (tidegate.contracts.connectors)"
            )
        if split.split_id in seen:
            raise JobGraphError(
                f"'{node.name}': {type(spec.source).__qualname__}.create_splits returned the split id "
                f"'{split.split_id}' twice; offsets are kept by split id, so each needs its own"
            )
        seen.add(split.split_id)
    return splits
