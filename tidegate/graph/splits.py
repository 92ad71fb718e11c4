"""Asks the sources for their splits: once per job, on the driver."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from tidegate.common.errors import JobGraphError, TidegateError
from tidegate.contracts.connectors import Source, SourceSplit
from tidegate.graph.job_graph import JobGraph, JobVertex, OperatorNode
from tidegate.graph.operator_specs import SourceSpec


def make_splits(job_graph: JobGraph, all_of_them: bool = False) -> JobGraph:
    """The same graph with the splits of every source in its SourceSpec. A source that has splits keeps them.

    `all_of_them`: also those that an enumerator would find while the job runs; it is waited for until it has all."""
    vertices = tuple(_with_splits(vertex, all_of_them) for vertex in job_graph.vertices)
    return dataclasses.replace(job_graph, vertices=vertices)


def _with_splits(vertex: JobVertex, all_of_them: bool) -> JobVertex:
    head = vertex.operators[0]
    if not isinstance(head.spec, SourceSpec) or head.spec.splits is not None:
        return vertex
    spec = dataclasses.replace(head.spec, splits=_splits_of(head, head.spec, vertex.parallelism, all_of_them))
    return dataclasses.replace(vertex, operators=(dataclasses.replace(head, spec=spec), *vertex.operators[1:]))


def _splits_of(node: OperatorNode, spec: SourceSpec, parallelism: int, all_of_them: bool) -> tuple[SourceSplit, ...]:
    try:
        splits = tuple(spec.source.create_splits(parallelism))
        if all_of_them and spec.source.discovery_interval_ms is not None:
            splits = _with_discovered(splits, spec.source, parallelism)
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


def _with_discovered(splits: tuple[SourceSplit, ...], source: Source[Any], parallelism: int) -> tuple[SourceSplit, ...]:
    enumerator = source.create_enumerator(parallelism)
    try:
        while True:
            discovery = enumerator.discover({name for split in splits for name in split.names})
            splits += tuple(discovery.splits)
            if discovery.complete:
                return splits
            time.sleep((source.discovery_interval_ms or 0.0) / 1000)
    finally:
        enumerator.close()
