"""A checkpoint that is in progress: who must acknowledge, who has, and what they said."""

from __future__ import annotations

import enum

import tidegate
from tidegate.common.errors import check_internal
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskIndex, VertexId
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind, CheckpointRequest
from tidegate.graph.job_graph import JobGraph
from tidegate.storage.handles import (
    CheckpointMetadata,
    EnumeratorState,
    OperatorMetadata,
    OperatorSnapshot,
    TaskSnapshot,
)
from tidegate.storage.metadata import FORMAT_VERSION


class Acknowledgement(enum.Enum):
    SUCCESS = "success"  # noted
    DUPLICATE = "duplicate"  # this task has acknowledged before: nothing has changed
    UNKNOWN = "unknown"  # there is no such task in this job


class PendingState(enum.Enum):
    COLLECTING = "collecting"  # waiting for acknowledgements
    WRITING = "writing"  # all are here; the metadata is being written
    RECORDING = "recording"  # that is written; with high availability the job's record decides


class PendingCheckpoint:
    """`acknowledge`, `begin_writing` and `begin_recording` change it. The coordinator forgets one that has failed
    or is complete."""

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        request: CheckpointRequest,
        attempt: AttemptNumber,
        graph: JobGraph,
        triggered_ms: float,
        timeout_ms: float,
        enumerators: dict[OperatorId, EnumeratorState] | None = None,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.request = request
        self.attempt = attempt
        self.triggered_ms = triggered_ms
        self.deadline_ms = triggered_ms + timeout_ms
        self.state = PendingState.COLLECTING
        self._graph = graph
        self._enumerators = enumerators or {}  # as they were at the trigger
        self._waiting = set(graph.all_tasks())  # every subtask of every vertex, also those at the end of their data
        self.snapshots: dict[tuple[VertexId, SubtaskIndex], TaskSnapshot] = {}  # disjoint from _waiting

    @property
    def kind(self) -> CheckpointKind:
        return self.request.kind

    @property
    def savepoint(self) -> bool:
        return self.kind is CheckpointKind.SAVEPOINT

    @property
    def fully_acknowledged(self) -> bool:
        return not self._waiting

    def acknowledge(self, snapshot: TaskSnapshot) -> Acknowledgement:
        task = (snapshot.vertex, snapshot.subtask)
        if task in self.snapshots:
            return Acknowledgement.DUPLICATE
        if task not in self._waiting:
            return Acknowledgement.UNKNOWN
        self._waiting.remove(task)
        self.snapshots[task] = snapshot
        return Acknowledgement.SUCCESS

    def begin_writing(self) -> None:
        check_internal(
            self.state is PendingState.COLLECTING and self.fully_acknowledged,
            f"checkpoint {self.checkpoint_id} is not ready to be completed",
        )
        self.state = PendingState.WRITING

    def begin_recording(self) -> None:
        check_internal(self.state is PendingState.WRITING, f"checkpoint {self.checkpoint_id} has no metadata")
        self.state = PendingState.RECORDING

    def describe_missing(self) -> str:
        """For the message of a checkpoint that took too long."""
        total = len(self._waiting) + len(self.snapshots)
        if not self._waiting:
            return f"all {total} tasks had acknowledged, but its metadata was not written yet"
        names = [f"{self._graph.vertices[v].name} ({s})" for v, s in sorted(self._waiting)]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        return f"{len(self.snapshots)} of {total} tasks had acknowledged; missing: {', '.join(names[:5])}{more}"

    def metadata(self, epoch: int = 0) -> CheckpointMetadata:
        """The content of `_metadata`: by operator, with an entry also for operators without state."""
        check_internal(self.fully_acknowledged, "metadata of a checkpoint that is not fully acknowledged")
        operators = []
        for vertex in self._graph.vertices:
            tasks = [self.snapshots[vertex.vertex_id, SubtaskIndex(i)] for i in range(vertex.parallelism)]
            for node in vertex.operators:
                nothing = OperatorSnapshot(operator_id=node.operator_id, name=node.name, uid=node.uid or "")
                by_subtask = []
                for task in tasks:
                    own = [o for o in task.operators if o.operator_id == node.operator_id]
                    by_subtask.append(own[0] if own else nothing)
                operators.append(
                    OperatorMetadata(
                        operator_id=node.operator_id,
                        name=node.name,
                        uid=node.uid or "",
                        parallelism=vertex.parallelism,
                        max_parallelism=vertex.max_parallelism,
                        subtasks=by_subtask,
                        end_of_data=[task.end_of_data for task in tasks],
                    )
                )
        return CheckpointMetadata(
            format_version=FORMAT_VERSION,
            job_id=self._graph.job_id,
            job_name=self._graph.name,
            checkpoint_id=self.checkpoint_id,
            timestamp=int(self.triggered_ms),
            savepoint=self.savepoint,
            unaligned=any(s.metrics.unaligned for s in self.snapshots.values()),
            operators=operators,
            channels=[channel for _, s in sorted(self.snapshots.items()) for channel in s.channels],
            tidegate_version=tidegate.__version__,
            enumerators=self._enumerators,
            epoch=epoch,
        )

    def check_invariants(self) -> None:
        check_internal(not self._waiting & self.snapshots.keys(), "a task has acknowledged and is waited for")
        if self.state is not PendingState.COLLECTING:
            check_internal(self.fully_acknowledged, "metadata is written before all have acknowledged")
