"""Which records of a keyed edge a subtask owns."""

from __future__ import annotations

from itertools import compress

from tidegate.contracts.batches import RecordBatch
from tidegate.graph.job_graph import JobEdge
from tidegate.state.key_groups import key_group
from tidegate.taskmanager.operators.base import bind


class OwnKeys:
    def __init__(self, edge: JobEdge, max_parallelism: int, groups: tuple[int, int]) -> None:
        self._select = bind(edge.partition.key_selector, "get_key")
        self._max_parallelism = max_parallelism
        self._groups = groups  # [start, end)

    def of(self, batch: RecordBatch) -> RecordBatch:
        start, end = self._groups
        mine = [start <= key_group(self._select(v), self._max_parallelism) < end for v in batch.values]
        values = list(compress(batch.values, mine))
        return RecordBatch(values, None if batch.timestamps is None else list(compress(batch.timestamps, mine)))
