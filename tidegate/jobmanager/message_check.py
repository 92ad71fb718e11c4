"""Whether what a slot says can be true of this job: a message that decodes may still name what does not exist."""

from __future__ import annotations

from typing import assert_never

from tidegate.common.ids import SubtaskIndex, VertexId
from tidegate.graph.job_graph import JobGraph
from tidegate.protocol.messages import (
    AckCheckpoint,
    CollectChunk,
    DeclineCheckpoint,
    Register,
    SlotFinished,
    SlotHeartbeat,
    SlotReady,
    SlotToMaster,
    SlotWarning,
    SourceSplits,
    StateRead,
    TaskEndOfData,
    TaskFailed,
    WantCheckpoint,
    WatermarkReport,
)


class MessageCheck:
    """Knows the slots, tasks and operators of one job. Changes nothing."""

    def __init__(self, graph: JobGraph) -> None:
        self._slots = graph.num_slots
        self._tasks = frozenset(graph.all_tasks())
        self._widths = {node.operator_id: v.parallelism for v in graph.vertices for node in v.operators}

    def problem(self, message: SlotToMaster) -> str | None:
        """What the message names that this job does not have; None when all is well."""
        match message:
            case SlotReady() | SlotHeartbeat() | SlotFinished() | WatermarkReport() | SlotWarning() | StateRead():
                return None if 0 <= message.slot < self._slots else f"slot {message.slot}"
            case TaskEndOfData() | DeclineCheckpoint():
                return self._task(message.vertex, message.subtask)
            case AckCheckpoint():
                return self._task(message.snapshot.vertex, message.snapshot.subtask)
            case CollectChunk() | SourceSplits():
                known = 0 <= message.subtask < self._widths.get(message.operator_id, 0)
                return None if known else f"subtask {message.subtask} of operator {message.operator_id!r}"
            case Register() | TaskFailed() | WantCheckpoint():
                return None  # a slot that is not known is refused; a failure or a wish is one, whoever tells of it
            case _:
                assert_never(message)

    def _task(self, vertex: VertexId, subtask: SubtaskIndex) -> str | None:
        return None if (vertex, subtask) in self._tasks else f"subtask {subtask} of vertex {vertex}"
