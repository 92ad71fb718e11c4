"""Sources whose records are in Spark already: their blocks come with the task, in place of splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import Source, SourceContext, SourceSplit, SplitReader
from tidegate.graph.job_graph import JobGraph, JobVertex
from tidegate.graph.operator_specs import SourceSpec


def gives_blocks(source: Any) -> bool:
    """Whether a source has the methods that `tidegate.spark.batch` describes."""
    return hasattr(source, "batch_rdd") and hasattr(source, "read_block")


def with_stand_in_splits(graph: JobGraph) -> JobGraph:
    """The graph with one split per subtask for each source that gives blocks: nobody need ask it for others."""
    return dataclasses.replace(graph, vertices=tuple(_with_stand_ins(v) for v in graph.vertices))


def _with_stand_ins(vertex: JobVertex) -> JobVertex:
    spec = vertex.operators[0].spec
    if not isinstance(spec, SourceSpec) or not gives_blocks(spec.source):
        return vertex
    splits = tuple(SourceSplit(f"partition-{i}") for i in range(vertex.parallelism))
    return _with_head(vertex, dataclasses.replace(spec, splits=splits))


def reading_blocks(vertex: JobVertex, received: Iterator[bytes]) -> JobVertex:
    """In a worker: the vertex with a source that reads what Spark hands to the task. Others are left as they are."""
    spec = vertex.operators[0].spec
    if not isinstance(spec, SourceSpec) or not gives_blocks(spec.source):
        return vertex
    return _with_head(vertex, dataclasses.replace(spec, source=_BlockSource(spec.source, received)))


def _with_head(vertex: JobVertex, spec: SourceSpec) -> JobVertex:
    head = dataclasses.replace(vertex.operators[0], spec=spec)
    return dataclasses.replace(vertex, operators=(head, *vertex.operators[1:]))


class _BlockSource(Source[Any]):
    def __init__(self, source: Any, received: Iterator[bytes]) -> None:
        self._source = source
        self._received = received

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit(f"partition-{i}") for i in range(parallelism)]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return _BlockReader(self._source, self._received)


class _BlockReader(SplitReader[Any]):
    def __init__(self, source: Any, received: Iterator[bytes]) -> None:
        self._source = source
        self._received = received
        self._batch = RecordBatch([])
        self._position = 0
        self._read = 0

    def poll(self, max_records: int) -> RecordBatch | None:
        while self._position == len(self._batch):
            block = next(self._received, None)
            if block is None:
                return None
            records = self._source.read_block(block)
            self._batch = records if isinstance(records, RecordBatch) else RecordBatch(records)
            self._position = 0
        end = min(self._position + max_records, len(self._batch))
        polled = self._batch.slice(self._position, end)
        self._read += end - self._position
        self._position = end
        return polled

    def offset(self) -> int:
        return self._read
