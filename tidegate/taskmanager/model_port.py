"""A task as its model of fault tolerance sees it."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.common.ids import ChannelAddress, CheckpointId
from tidegate.contracts.batches import Batch
from tidegate.fault_tolerance.frozen_operator import FrozenOperator
from tidegate.fault_tolerance.task_side import PreparedSnapshot
from tidegate.graph.job_graph import JobEdge
from tidegate.network.serialization import Element
from tidegate.state.key_groups import key_group_range
from tidegate.taskmanager.failure import OperatorFailure, describe
from tidegate.taskmanager.own_keys import OwnKeys
from tidegate.taskmanager.services import TaskServices
from tidegate.taskmanager.task import Task, TaskState


class ModelPort:
    """Implements `fault_tolerance.task_side.TaskPort`."""

    def __init__(self, task: Task, services: TaskServices, edges: Sequence[JobEdge]) -> None:
        self._task = task
        self._edges = edges  # of the whole job, by edge id
        self.place = task.place
        self.inputs = task.inputs
        self.out_channels = task.out_channels
        self.now_ms = services.clock.now_ms
        self.send = services.send
        self.run_async = services.run_async
        self._limit = services.limit

    @property
    def records_in(self) -> int:
        return self._task.records_in

    @property
    def at_end(self) -> bool:
        task = self._task
        return (task.state is TaskState.END_OF_DATA or task.restored_at_end) and not task.drained

    def put_restored_first(self) -> None:
        self._task.restored_first = True

    def edge_key(self, address: ChannelAddress) -> str:
        return self._edges[address.edge].key

    def own_records(self, edge_key: str, batch: Batch) -> Batch:
        vertex = self.place.vertex
        edge = next(e for e in self._edges if e.key == edge_key)
        groups = key_group_range(vertex.max_parallelism, vertex.parallelism, self.place.subtask)
        return OwnKeys(edge, vertex.max_parallelism, groups).of(batch)

    def prepare_snapshot(self, checkpoint_id: CheckpointId, may_hold: bool) -> PreparedSnapshot:
        chain = self._task.chain
        self._limit.begin(self.now_ms())
        try:
            if may_hold and not self._task.drained:
                return PreparedSnapshot(chain.prepare_and_hold(checkpoint_id), None)
            chain.prepare_barrier(checkpoint_id)
            return PreparedSnapshot({}, None)
        except OperatorFailure as failure:
            return PreparedSnapshot({}, failure)
        finally:
            self._limit.end()

    def restore_waiting(self, key: str, elements: list[Element]) -> None:
        self._task.chain.restore_waiting(key, elements)

    def freeze(self, checkpoint_id: CheckpointId, timestamp: int, full: bool) -> list[FrozenOperator]:
        self._task.time.save(self._task.drained)
        return self._task.chain.freeze(checkpoint_id, timestamp, full)

    def notify_complete(self, checkpoint_id: CheckpointId) -> None:
        self._task.chain.notify_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._task.chain.notify_aborted(checkpoint_id)

    def explain(self, error: BaseException) -> str:
        return describe(error).summary
