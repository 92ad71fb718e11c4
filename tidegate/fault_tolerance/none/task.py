"""A task that nothing protects: its slot has no storage, so that no snapshot can ever be asked for. Sinks commit at the
end of the job, and a failure begins it anew."""

from __future__ import annotations

from tidegate.common.errors import check_internal
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.task_side import ModelElement, ModelMessage, TaskSide
from tidegate.network.channels import InputChannel
from tidegate.state.backend import StateSource
from tidegate.storage.handles import TaskRestore


class Unprotected(TaskSide):
    """Whatever belongs to a model is an error: it would have to be ignored, and somebody would wait for an answer."""

    def restore(self, checkpoint_id: CheckpointId, restore: TaskRestore, source: StateSource) -> None:
        check_internal(False, f"checkpoint {checkpoint_id} is to be restored, but the job has no fault tolerance")

    def element_arrived(self, channel: InputChannel, element: ModelElement, now_ms: float) -> None:
        check_internal(False, f"{element} came on channel {channel.address}, but the job has no fault tolerance")

    def on_message(self, message: ModelMessage, now_ms: float) -> None:
        check_internal(False, f"{type(message).__name__} came, but the job has no fault tolerance")
