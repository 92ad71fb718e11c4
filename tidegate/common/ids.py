"""Identifiers as types of their own, so that a slot index cannot be passed for a subtask index."""

from typing import NamedTuple, NewType

AttemptNumber = NewType("AttemptNumber", int)
"""0 for the first gang of a job, one more for each restart. Every message carries it; a late one is dropped."""

CheckpointId = NewType("CheckpointId", int)
"""Starts at 1, grows by one per triggered checkpoint, never reused within a job, also not after a restart."""

VertexId = NewType("VertexId", int)
"""Index of a vertex in `JobGraph.vertices` (topological order)."""

EdgeId = NewType("EdgeId", int)
"""Index of an edge in `JobGraph.edges`."""

SubtaskIndex = NewType("SubtaskIndex", int)
"""0 .. parallelism-1 of one vertex."""

SlotIndex = NewType("SlotIndex", int)
"""0 .. number of slots-1: the Spark barrier task (Python worker) that runs a slice of the graph."""

KeyGroup = NewType("KeyGroup", int)
"""0 .. max_parallelism-1: the unit in which keyed state is moved between subtasks."""

OperatorId = NewType("OperatorId", str)
"""32 hex digits: hash of the uid, or of the operator's position in the graph when it has none."""


class ChannelAddress(NamedTuple):
    """One logical channel: from an upstream to a downstream subtask of one edge. At most 65,535 of each."""

    edge: EdgeId
    upstream: SubtaskIndex
    downstream: SubtaskIndex
