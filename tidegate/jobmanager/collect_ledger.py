"""Exactly-once delivery of `execute_and_collect` results: which chunk comes next from which subtask.

The sink numbers its chunks, keeps the number in its operator state and sends only chunks of complete checkpoints, so
after a recovery it sends the same chunks with the same numbers again. Expectations therefore outlive attempts. Without
checkpointing they do not: results are delivered at least once then.
"""

from __future__ import annotations

import enum

from tidegate.common.ids import OperatorId, SubtaskIndex
from tidegate.protocol.messages import CollectChunk


class ChunkVerdict(enum.Enum):
    DELIVER = "deliver"  # the next one
    DUPLICATE = "duplicate"  # delivered before
    GAP = "gap"  # a chunk before it is missing: results would be lost


class CollectLedger:
    """`take` and `start_over` change it. With `any_first` (the job starts from a snapshot, so its sinks go on counting
    where an earlier job stopped) the first chunk of a subtask may have any number, otherwise it has 0."""

    def __init__(self, any_first: bool) -> None:
        self._any_first = any_first
        self._next: dict[tuple[OperatorId, SubtaskIndex], int] = {}

    def take(self, chunk: CollectChunk) -> ChunkVerdict:
        source = (chunk.operator_id, chunk.subtask)
        expected = self._next.get(source, chunk.seq if self._any_first else 0)
        if chunk.seq < expected:
            return ChunkVerdict.DUPLICATE
        if chunk.seq > expected:
            return ChunkVerdict.GAP
        self._next[source] = expected + 1
        return ChunkVerdict.DELIVER

    @property
    def any_taken(self) -> bool:
        return bool(self._next)

    def start_over(self) -> None:
        """The job falls back to an older checkpoint, or has none: its sinks count from there again, but what they send
        under a known number may be something else. It is delivered again rather than lost."""
        self._any_first = True
        self._next.clear()

    def expected(self, operator_id: OperatorId, subtask: SubtaskIndex) -> int:
        return self._next.get((operator_id, subtask), 0)
