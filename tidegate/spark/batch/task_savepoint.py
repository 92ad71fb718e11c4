"""A task's part of the savepoint at the end of a batch job. Files are named by the attempt that writes them; those of
attempts that do not count are deleted by the driver."""

from __future__ import annotations

import msgspec

from tidegate.common.ids import CheckpointId, SubtaskIndex
from tidegate.graph.job_graph import JobVertex
from tidegate.spark.batch.plan import SavepointPlan
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.files import open_files
from tidegate.storage.handles import TaskSnapshot
from tidegate.taskmanager.chain import OperatorChain


def write_savepoint(
    chain: OperatorChain,
    plan: SavepointPlan,
    vertex: JobVertex,
    subtask: int,
    attempt_id: str,
    checkpoint_id: CheckpointId,
) -> bytes:
    """The encoded TaskSnapshot. What was written is deleted when it fails."""
    frozen = chain.freeze(checkpoint_id, plan.timestamp, full=True)
    files = open_files(plan.location)
    part = f"{subtask}-{attempt_id}"
    writer = SavepointWriter(files, subtask, vertex.max_parallelism, checkpoint_id, part)
    try:
        operators = [operator.write_savepoint(writer) for operator in frozen]
    except BaseException:
        writer.abort()
        raise
    snapshot = TaskSnapshot(vertex=vertex.vertex_id, subtask=SubtaskIndex(subtask), operators=operators)
    return msgspec.msgpack.encode(snapshot)
