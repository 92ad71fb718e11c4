"""Checkpoints by barriers in one task: carries out what the barrier handler decides, takes the snapshots and reports
them. Read `docs/concepts/barriers.md` first."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import msgspec

from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.barriers import handlers
from tidegate.fault_tolerance.barriers.inflight import restore_channels
from tidegate.fault_tolerance.barriers.subtask_checkpoint import SubtaskCheckpoint
from tidegate.fault_tolerance.task_side import ModelElement, ModelMessage, TaskPort, TaskSide
from tidegate.network.channels import InputChannel
from tidegate.network.elements import Alignment, CheckpointBarrier
from tidegate.protocol.messages import (
    AckCheckpoint,
    DeclineCheckpoint,
    DeclineReason,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from tidegate.state.backend import StateSource
from tidegate.storage.handles import TaskRestore, TaskSnapshot
from tidegate.storage.worker_storage import WorkerStorage
from tidegate.storage.writers import StateTooLargeError


class BarrierTaskSide(TaskSide):
    """A task without inputs is a source: the coordinator's trigger is its barrier. All others have a handler.

    Every snapshot that was begun is acknowledged or declined, or given up when the coordinator says so."""

    def __init__(
        self, port: TaskPort, storage: WorkerStorage, exactly_once: bool, trace: Callable[[str], None] | None
    ) -> None:
        self._port = port
        self._storage = storage
        self._print = trace
        self._exactly_once = exactly_once
        self._handler: handlers.BarrierHandler | None = None
        if port.inputs:
            make = handlers.ExactlyOnceHandler if exactly_once else handlers.BarrierTracker
            self._handler = make(len(port.inputs))
        self._checkpoints: dict[CheckpointId, SubtaskCheckpoint] = {}  # taken, not yet being written
        self._triggered = CheckpointId(0)  # the latest checkpoint that this task, a source, was told to begin
        self._stopping_with: CheckpointId | None = None  # a savepoint: nothing is done until its fate is known
        self._aligning_since: int | None = None  # `records_in` at the first barrier; None: nothing is being aligned

    def restore(self, checkpoint_id: CheckpointId, restore: TaskRestore, source: StateSource) -> None:
        restore_channels(self._port, restore, source)
        self._trace(f"restored from checkpoint {checkpoint_id}")

    # ------------------------------------------------------------ events
    def works_off(self, what: ModelMessage | ModelElement) -> bool:
        """Of a savepoint: it can be rescaled, whatever the job does."""
        match what:
            case CheckpointBarrier():
                return what.savepoint
            case TriggerCheckpoint(barrier=barrier):
                return barrier.savepoint
            case NotifyCheckpointComplete() | NotifyCheckpointAborted():
                return False
            case _:
                assert_never(what)

    def element_arrived(self, channel: InputChannel, element: ModelElement, now_ms: float) -> None:
        if self._handler is not None:
            self._trace_barrier("arrived", channel, element)
            self._apply(self._handler.arrived(channel.index, element, now_ms), now_ms)

    def element_reached(self, channel: InputChannel, element: ModelElement, now_ms: float) -> None:
        if self._handler is not None:
            self._trace_barrier("reached", channel, element)
            self._apply(self._handler.reached(channel.index, element, now_ms), now_ms)

    def on_message(self, message: ModelMessage, now_ms: float) -> None:
        match message:
            case TriggerCheckpoint(barrier=barrier):
                is_new = barrier.checkpoint_id > self._triggered  # otherwise it is a repetition
                if self._port.place.vertex.is_source and is_new:
                    self._triggered = barrier.checkpoint_id
                    unaligned = barrier.alignment is Alignment.UNALIGNED
                    self._take_snapshot(handlers.Snapshot(barrier, unaligned, now_ms), now_ms)
            case NotifyCheckpointComplete(checkpoint_id=n):
                self._port.notify_complete(n)
            case NotifyCheckpointAborted(checkpoint_id=n):
                self._aborted(n, now_ms)
            case _:
                assert_never(message)

    def _aborted(self, n: CheckpointId, now_ms: float) -> None:
        if self._stopping_with == n:
            self._stopping_with = None
            self.paused = False
        if self._handler is not None:
            self._apply(self._handler.aborted(n), now_ms)
        self._forget(n)
        self._port.notify_aborted(n)

    def outputs_sent(self) -> None:
        """A barrier that waited in an output channel may be gone."""
        if not self._checkpoints:
            return
        for checkpoint in list(self._checkpoints.values()):
            if checkpoint.waiting_outputs:
                n = checkpoint.checkpoint_id
                checkpoint.waiting_outputs = [c for c in checkpoint.waiting_outputs if c.holds_barrier(n)]
                self._write_if_ready(checkpoint)

    def tick(self, now_ms: float) -> None:
        """Alignment timeouts: of barriers that are waited for, and of barriers that wait in the output channels."""
        if self._handler is not None:
            actions = self._handler.tick(now_ms)
            if actions:
                self._apply(actions, now_ms)
        if not self._checkpoints:
            return
        for checkpoint in list(self._checkpoints.values()):
            if checkpoint.unaligned_at_ms is not None and now_ms >= checkpoint.unaligned_at_ms:
                barrier = msgspec.structs.replace(checkpoint.barrier, alignment=Alignment.UNALIGNED, timeout_ms=0)
                for channel in checkpoint.waiting_outputs:
                    if channel.holds_barrier(barrier.checkpoint_id):
                        checkpoint.record_outputs(channel.address, channel.make_unaligned(barrier))
                checkpoint.waiting_outputs = []
                self._write_if_ready(checkpoint)

    def next_deadline(self) -> float | None:
        times = [c.unaligned_at_ms for c in self._checkpoints.values() if c.waiting_outputs]
        if self._handler is not None:
            times.append(self._handler.next_deadline())
        return min((t for t in times if t is not None), default=None)

    # ------------------------------------------------------------ what the handler decides
    def _apply(self, actions: list[handlers.Action], now_ms: float) -> None:
        inputs = self._port.inputs
        for action in actions:
            match action:
                case handlers.Block(channel):
                    inputs[channel].blocked = True
                    self._trace(f"channel {channel} is blocked until the other barriers are here")
                case handlers.UnblockAll():
                    for c in inputs:
                        c.blocked = False
                case handlers.Snapshot():
                    self._take_snapshot(action, now_ms)
                case handlers.DropBarrier(channel, checkpoint_id):
                    inputs[channel].remove_barrier(checkpoint_id)
                case handlers.InputsComplete(checkpoint_id):
                    complete = self._checkpoints.get(checkpoint_id)
                    if complete is not None:
                        complete.inputs_complete = True
                        self._write_if_ready(complete)
                case handlers.Abandon(checkpoint_id):
                    self._forget(checkpoint_id)
                    detail = f"{self._port.place.name}: a barrier of a newer checkpoint has come"
                    self._decline(checkpoint_id, DeclineReason.SUPERSEDED, detail)
                case _:
                    assert_never(action)
        self._note_alignment()

    def _note_alignment(self) -> None:
        """Remember how many records had been processed when an alignment began."""
        if self._handler is None or not self._handler.aligning:
            self._aligning_since = None
        elif self._aligning_since is None:
            self._aligning_since = self._port.records_in

    def _take_snapshot(self, action: handlers.Snapshot, now_ms: float) -> None:
        port, barrier = self._port, action.barrier
        n = barrier.checkpoint_id
        prepared = port.prepare_snapshot(n, not barrier.savepoint)
        error = prepared.error
        since, self._aligning_since = self._aligning_since, None
        checkpoint = SubtaskCheckpoint(
            barrier=barrier,
            unaligned=action.unaligned,
            operators=[],
            end_of_data=port.at_end,
            start_delay_ms=max(0.0, action.first_arrival_ms - barrier.timestamp),
            alignment_ms=now_ms - action.first_arrival_ms,
            sync_ms=0.0,
            processed_during_alignment=0 if since is None else port.records_in - since,
            inputs_complete=not action.unaligned or not port.inputs,
        )
        if barrier.stop:
            self._stopping_with = n
            self.paused = True
        self._send_barrier_on(checkpoint, now_ms)
        if action.unaligned:
            checkpoint.record_inputs(port.inputs, action.pending)
        checkpoint.record_waiting(prepared.waiting, with_time=self._exactly_once)
        if error is None:
            started = port.now_ms()
            try:
                checkpoint.operators = port.freeze(n, barrier.timestamp, barrier.savepoint)
            except Exception as failure:
                error = failure
            checkpoint.sync_ms = port.now_ms() - started
        kind = "unaligned" if action.unaligned else barrier.alignment.value
        sent = ", barrier sent on" if port.out_channels else ""
        self._trace(f"snapshot {n} ({kind}, waited {checkpoint.alignment_ms:.1f} ms){sent}")
        if error is not None:
            self._stop_recording()
            self._decline(n, DeclineReason.SNAPSHOT_FAILED, port.explain(error))
            return
        self._checkpoints[n] = checkpoint
        self._write_if_ready(checkpoint)

    def _send_barrier_on(self, checkpoint: SubtaskCheckpoint, now_ms: float) -> None:
        barrier = checkpoint.barrier
        for channel in self._port.out_channels:
            if checkpoint.unaligned:
                checkpoint.record_outputs(channel.address, channel.overtake(barrier))
            else:
                channel.add_control(barrier)
                if barrier.alignment is Alignment.ALIGNED_WITH_TIMEOUT and channel.queued_batches:
                    checkpoint.waiting_outputs.append(channel)
                    checkpoint.unaligned_at_ms = now_ms + barrier.timeout_ms

    # ------------------------------------------------------------ the asynchronous part
    def _write_if_ready(self, checkpoint: SubtaskCheckpoint) -> None:
        n = checkpoint.checkpoint_id
        if not checkpoint.ready or n not in self._checkpoints:
            return
        del self._checkpoints[n]
        port, storage = self._port, self._storage
        port.run_async(
            lambda: checkpoint.write(storage, port.place, port.edge_key, port.now_ms),
            lambda snapshot, error: self._written(n, snapshot, error),
        )

    def _written(self, n: CheckpointId, snapshot: TaskSnapshot, error: BaseException | None) -> None:
        port = self._port
        if error is not None:
            too_large = isinstance(error, StateTooLargeError)
            reason = DeclineReason.STATE_TOO_LARGE if too_large else DeclineReason.WRITE_FAILED
            self._decline(n, reason, f"{port.place.name}: {port.explain(error)}")
            return
        # Acknowledged also when it was aborted meanwhile: the coordinator then knows what to delete.
        port.send(AckCheckpoint(attempt=port.place.attempt, checkpoint_id=n, snapshot=snapshot))

    def _decline(self, n: CheckpointId, reason: DeclineReason, detail: str) -> None:
        place = self._port.place
        self._port.send(
            DeclineCheckpoint(
                attempt=place.attempt,
                checkpoint_id=n,
                vertex=place.vertex.vertex_id,
                subtask=place.subtask,
                reason=reason,
                detail=detail,
            )
        )

    def _forget(self, n: CheckpointId) -> None:
        checkpoint = self._checkpoints.pop(n, None)
        if checkpoint is not None and not checkpoint.inputs_complete:
            self._stop_recording()

    def _stop_recording(self) -> None:
        for channel in self._port.inputs:
            channel.recording = None

    # ------------------------------------------------------------ trace
    def _trace(self, text: str) -> None:
        if self._print is not None:
            self._print(f"{self._port.place.name}: {text}")

    def _trace_barrier(self, what: str, channel: InputChannel, barrier: CheckpointBarrier) -> None:
        upstream = f"channel {channel.index} (upstream subtask {channel.address.upstream + 1})"
        self._trace(f"barrier {barrier.checkpoint_id} {what} on {upstream}")
