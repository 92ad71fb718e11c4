"""Which records of a keyed edge a subtask owns."""

from __future__ import annotations

from tidegate.contracts.batches import Batch
from tidegate.graph.job_graph import JobEdge
from tidegate.state.key_groups import key_group, without_lists
from tidegate.taskmanager.operators.base import bind


class OwnKeys:
    def __init__(self, edge: JobEdge, max_parallelism: int, groups: tuple[int, int]) -> None:
        self._select = bind(edge.partition.key_selector, "get_key")
        self._max_parallelism = max_parallelism
        self._groups = groups  # [start, end)

    def of(self, batch: Batch) -> Batch:
        start, end = self._groups
        keys = map(without_lists, map(self._select, batch.rows().values))
        _, mine = batch.split([start <= key_group(key, self._max_parallelism) < end for key in keys], 2)
        return mine
