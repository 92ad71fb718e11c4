"""One subtask's part of one checkpoint, from the barrier to the acknowledgement.

The synchronous part freezes the operators' state on the mailbox thread. Channel state (unaligned) is complete when all
barriers have arrived on the inputs and the barrier has left all outputs. Only then is everything written, on a helper
thread, and acknowledged after the files are durable.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidegate.common.ids import ChannelAddress, CheckpointId, SubtaskIndex
from tidegate.fault_tolerance.frozen_operator import FrozenOperator
from tidegate.graph.task_place import TaskPlace
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.elements import CheckpointBarrier
from tidegate.network.serialization import Element, SerializedElement, serialize
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.calls import on_behalf_of
from tidegate.storage.handles import CHAIN, ChannelState, OperatorSnapshot, SnapshotMetrics, TaskSnapshot, handle_size
from tidegate.storage.worker_storage import WorkerStorage
from tidegate.storage.writers import StateSink, TaskStateWriter


@dataclass
class SubtaskCheckpoint:
    barrier: CheckpointBarrier
    unaligned: bool
    operators: list[FrozenOperator]
    end_of_data: bool
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    processed_during_alignment: int
    inputs_complete: bool
    inputs: dict[ChannelAddress, list[SerializedElement]] = field(default_factory=dict)
    outputs: dict[ChannelAddress, list[SerializedElement]] = field(default_factory=dict)
    waiting: dict[str, list[SerializedElement]] = field(default_factory=dict)  # between operators, by key of the link
    waiting_outputs: list[OutputChannel] = field(default_factory=list)  # hold the barrier behind batches without credit
    unaligned_at_ms: float | None = None  # when waiting outputs let the barrier overtake

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.barrier.checkpoint_id

    @property
    def ready(self) -> bool:
        """Everything that belongs to the checkpoint is known."""
        return self.inputs_complete and not self.waiting_outputs

    def record_outputs(self, address: ChannelAddress, overtaken: Iterable[Element]) -> None:
        found = [serialize(e) for e in overtaken]
        if found:
            self.outputs.setdefault(address, []).extend(found)

    def record_waiting(self, waiting: dict[str, list[SerializedElement]], with_time: bool) -> None:
        """What waits between the operators. `with_time`: also watermarks; without, time begins anew after a restore, as
        that of the task does (`task_time`)."""
        for key, elements in waiting.items():
            kept = elements if with_time else [e for e in elements if e.records]
            if kept:
                self.waiting[key] = kept

    def record_inputs(self, channels: list[InputChannel], pending: frozenset[int]) -> None:
        """Persist what stands before the barrier, and go on recording on the channels where it has not come yet."""
        for channel in channels:
            barrier_queued = any(
                isinstance(e, CheckpointBarrier) and e.checkpoint_id == self.checkpoint_id for e in channel.queue
            )
            if channel.index not in pending and not barrier_queued:
                continue  # its barrier was reached: what is queued comes after the checkpoint
            before = [serialize(e) for e in channel.queued_before_barrier(self.checkpoint_id)]
            self.inputs[channel.address] = before
            if not barrier_queued:
                channel.record(before, self.checkpoint_id)

    def write(
        self,
        storage: WorkerStorage,
        place: TaskPlace,
        edge_key: Callable[[ChannelAddress], str],
        now_ms: Callable[[], float],
    ) -> TaskSnapshot:
        """Runs on a helper thread. Deletes what it wrote when it fails."""
        kind = "savepoint" if self.barrier.target else "checkpoint"
        with on_behalf_of(f"{place.vertex.name} (subtask {place.subtask}), writing {kind} {self.checkpoint_id}"):
            if self.barrier.target:
                return self._write_savepoint(storage, place, now_ms)
            return self._write_checkpoint(storage, place, edge_key, now_ms)

    def _write_checkpoint(
        self,
        storage: WorkerStorage,
        place: TaskPlace,
        edge_key: Callable[[ChannelAddress], str],
        now_ms: Callable[[], float],
    ) -> TaskSnapshot:
        started = now_ms()
        writer = storage.task_writer(self.checkpoint_id, place.attempt, place.vertex.vertex_id, place.subtask)
        try:
            operators = [frozen.write(writer) for frozen in self.operators]
            channels = []
            for side, recorded in (("input", self.inputs), ("output", self.outputs)):
                for address, elements in recorded.items():
                    ends = address.upstream, address.downstream
                    channels += _channel_state(writer.exclusive, edge_key(address), ends, side, elements)
            for key, elements in self.waiting.items():
                # No state for which there could be too little room: the task has these records in its memory anyway.
                channels += _channel_state(writer.results, key, (place.subtask, place.subtask), CHAIN, elements)
            writer.close()
        except BaseException:
            writer.abort()
            raise
        return self._snapshot(place, operators, channels, writer, now_ms() - started)

    def _write_savepoint(self, storage: WorkerStorage, place: TaskPlace, now_ms: Callable[[], float]) -> TaskSnapshot:
        """Aligned, so there are no in-flight records in it."""
        started = now_ms()
        files = storage.savepoint_files(self.barrier.target)
        writer = SavepointWriter(files, place.subtask, place.vertex.max_parallelism, self.checkpoint_id)
        try:
            operators = [frozen.write_savepoint(writer) for frozen in self.operators]
        except BaseException:
            writer.abort()
            raise
        return self._snapshot(place, operators, [], writer, now_ms() - started)

    def _snapshot(
        self,
        place: TaskPlace,
        operators: list[OperatorSnapshot],
        channels: list[ChannelState],
        writer: TaskStateWriter | SavepointWriter,
        async_ms: float,
    ) -> TaskSnapshot:
        return TaskSnapshot(
            vertex=place.vertex.vertex_id,
            subtask=place.subtask,
            operators=operators,
            channels=channels,
            end_of_data=self.end_of_data,
            metrics=SnapshotMetrics(
                start_delay_ms=self.start_delay_ms,
                alignment_ms=self.alignment_ms,
                sync_ms=self.sync_ms,
                async_ms=async_ms,
                state_bytes=writer.bytes_written,
                full_bytes=sum(_full_size(o) for o in operators),
                inflight_bytes=sum(handle_size(c.handle) for c in channels),
                processed_during_alignment=self.processed_during_alignment,
                unaligned=self.unaligned or bool(self.outputs),
                files=writer.files_written,
            ),
        )


def _channel_state(
    sink: StateSink,
    key: str,
    ends: tuple[SubtaskIndex, SubtaskIndex],
    side: str,
    elements: list[SerializedElement],
) -> list[ChannelState]:
    if not elements:
        return []
    data = pickle.dumps([(e.kind, e.payload) for e in elements], 5)
    return [
        ChannelState(
            edge_key=key,
            upstream=ends[0],
            downstream=ends[1],
            side=side,
            records=sum(e.records for e in elements),
            handle=sink.write(data),
        )
    ]


def _full_size(operator: OperatorSnapshot) -> int:
    size = sum(handle_size(s.handle) for s in operator.lists)
    if operator.keyed is not None:
        size += sum(map(handle_size, operator.keyed.handles()))
    return size
