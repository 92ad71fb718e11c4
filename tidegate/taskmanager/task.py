"""A subtask: takes elements from its input channels (or polls its source), drives its chain, takes part in checkpoints.

`step` does one bounded piece of work and never blocks; the slot calls it in turn with the other tasks of the slot. A
batch is processed in slices whose size follows the measured cost of the records, so that barriers and messages wait a
few milliseconds at the most, however slow the user's code is, while fast code runs in long tight loops.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import check_internal
from tidegate.common.ids import AttemptNumber, ChannelAddress, CheckpointId, SubtaskIndex
from tidegate.contracts.batches import RecordBatch
from tidegate.fault_tolerance.barriers import handlers as barriers
from tidegate.fault_tolerance.barriers.subtask_checkpoint import SubtaskCheckpoint
from tidegate.graph.job_graph import JobVertex
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.elements import Alignment, CheckpointBarrier, EndOfData, Watermark, WatermarkStatus
from tidegate.network.serialization import Element
from tidegate.protocol.messages import AckCheckpoint, DeclineCheckpoint, Message, TaskEndOfData
from tidegate.storage.handles import TaskSnapshot
from tidegate.storage.worker_storage import WorkerStorage
from tidegate.storage.writers import StateTooLargeError
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.edge_output import EdgeOutput
from tidegate.taskmanager.failure import OperatorFailure, describe
from tidegate.taskmanager.task_time import TaskTime

_SLICE_TARGET_MS = 4.0  # a slice of work should not take longer than this
_FIRST_SLICE = 16


class TaskState(enum.Enum):
    CREATED = "created"  # waits for Start
    RUNNING = "running"
    END_OF_DATA = "end of data"  # all input processed; still answers to barriers
    CLOSED = "closed"


class Task:
    def __init__(
        self,
        *,
        vertex: JobVertex,
        subtask: SubtaskIndex,
        attempt: AttemptNumber,
        chain: OperatorChain,
        inputs: list[InputChannel],
        outputs: list[EdgeOutput],
        input_keys: dict[int, tuple[str, ChannelAddress]],
        handler: barriers.BarrierHandler | None,
        clock: Clock,
        storage: WorkerStorage | None,
        run_async: Callable[[Callable[[], Any], Callable[[Any, BaseException | None], None]], None],
        send: Callable[[Message], None],
        batch_size: int,
        watermark_interval_ms: float,
        trace: Callable[[str], None] | None,
    ) -> None:
        self.vertex = vertex
        self.subtask = subtask
        self.chain = chain
        self.inputs = inputs
        self.outputs = outputs
        self.out_channels: list[OutputChannel] = [c for o in outputs for c in o.channels]
        self.state = TaskState.CREATED
        self._ending = False  # all input was processed; operators still finish
        self._asynchronous = any(op.asynchronous for op in chain.operators)
        self.records_in = 0
        self.records_out = 0
        self.drained = False  # its sources were told to end: it would have had more to process
        self.restored_first = False  # in-flight records of other subtasks were moved here: they go before all others
        self._held_by: CheckpointId | None = None  # a savepoint to stop with: nothing is done until its fate is known
        self.restored_at_end = False  # the restored snapshot was taken after the end of data: finish() has run
        self._attempt = attempt
        self._input_keys = input_keys
        self._output_keys = {c.address: o.edge.key for o in outputs for c in o.channels}
        self._handler = handler
        self._clock = clock
        self._storage = storage
        self._run_async = run_async
        self._send = send
        self._max_slice = batch_size
        self._slice = min(_FIRST_SLICE, batch_size)
        self._turn = 0  # input channel to look at first
        self._checkpoints: dict[CheckpointId, SubtaskCheckpoint] = {}  # taken, not yet being written
        self._processed_while_aligning = 0
        self._trace = trace
        names = [f"{key}/{address.upstream}" for key, address in input_keys.values()]
        self._time = TaskTime(chain, inputs, names, subtask, vertex.parallelism, watermark_interval_ms)
        self.name = f"{vertex.name} ({subtask + 1}/{vertex.parallelism})"

    # ------------------------------------------------------------ work
    def start(self) -> None:
        check_internal(self.state is TaskState.CREATED, f"{self.name} started in state {self.state}")
        self.state = TaskState.RUNNING
        self._time.restore()

    @property
    def can_send(self) -> bool:
        """The outputs take more."""
        return not any(channel.backlogged for channel in self.out_channels)

    @property
    def can_emit(self) -> bool:
        for channel in self.out_channels:
            if channel.backlogged:
                return False
        return self.chain.available

    def step(self, now_ms: float) -> bool:
        """One piece of work. False: there was nothing to do."""
        if self.state is TaskState.CREATED or self.state is TaskState.CLOSED or self._held_by is not None:
            return False
        if self._asynchronous and self.chain.advance(now_ms, self.can_send):
            return True
        if self._time.pending:
            if not self.can_emit:
                return False
            self._time.advance()
            return True
        if self._ending and self.chain.finish():
            self._reach_end_of_data()
            return True
        if self.chain.source is not None:
            return self._step_source(now_ms)
        return self._step_inputs(now_ms)

    def next_deadline(self) -> float | None:
        """When `step` or `tick` has something to do even if nothing arrives."""
        times: list[float | None] = []
        source = self.chain.source
        if self._works:
            can_emit = self.can_emit
            if self.state is TaskState.RUNNING:
                times.append(self._time.next_deadline(can_emit))
            times.append(self.chain.next_deadline())
            # What cannot be emitted now is no reason to wake up: the credit that allows it is.
            if source is not None and self.state is TaskState.RUNNING and can_emit and not self._ending:
                times.append(source.wake_at_ms)
        if self._handler is not None:
            times.append(self._handler.next_deadline())
        times += [c.unaligned_at_ms for c in self._checkpoints.values() if c.waiting_outputs]
        return min((t for t in times if t is not None), default=None)

    @property
    def _works(self) -> bool:
        return self._held_by is None and self.state in (TaskState.RUNNING, TaskState.END_OF_DATA)

    @property
    def at_rest(self) -> bool:
        """Nothing will be emitted any more, or nothing has been: the job may end here."""
        return self._held_by is not None or self.state in (TaskState.CREATED, TaskState.END_OF_DATA)

    def drain(self) -> None:
        """For source tasks: the end of data is here."""
        if self.chain.source is not None and self.state is TaskState.RUNNING:
            self.drained = True
            self.chain.source.drain()

    def _step_source(self, now_ms: float) -> bool:
        source = self.chain.source
        if source is None or self.state is not TaskState.RUNNING or self._ending:
            return False
        if source.wake_at_ms is not None and now_ms < source.wake_at_ms:
            return False
        if not source.finished:
            if not self.can_emit:
                return False
            count = source.poll(self._slice, now_ms)
            if count:
                self.records_in += count
                self._adapt_slice(count, self._clock.now_ms() - now_ms)
                return True
        if source.finished:
            self._end_of_data()
            return True
        return False

    def _step_inputs(self, now_ms: float) -> bool:
        inputs = self.inputs
        if self.restored_first:
            inputs = [c for c in inputs if c.restored] or inputs
            self.restored_first = inputs is not self.inputs
        count = len(inputs)
        can_emit: bool | None = None
        for i in range(count):
            channel = inputs[(self._turn + i) % count]
            if channel.blocked or not channel.queue:
                continue
            head = channel.queue[0]
            if isinstance(head, RecordBatch):
                if can_emit is None:
                    can_emit = self.can_emit
                if not can_emit:
                    continue
                self._turn = (self._turn + i + 1) % count
                self._process_slice(channel, head, now_ms)
            else:
                self._turn = (self._turn + i + 1) % count
                channel.queue.popleft()
                self._process_control(channel, head, now_ms)
            return True
        return False

    def _process_slice(self, channel: InputChannel, batch: RecordBatch, now_ms: float) -> None:
        size = len(batch.values)
        if size <= self._slice:
            channel.queue.popleft()
            channel.consumed_batch()
        else:
            channel.queue[0] = batch.slice(self._slice, size)
            batch = batch.slice(0, self._slice)
            size = self._slice
        self.chain.process(batch, channel.input_index)
        self.records_in += size
        if self._handler is not None and self._handler.aligning:
            self._processed_while_aligning += size
        self._adapt_slice(size, self._clock.now_ms() - now_ms)

    def _adapt_slice(self, size: int, took_ms: float) -> None:
        if took_ms > _SLICE_TARGET_MS:
            self._slice = max(1, min(self._slice // 2, int(size * _SLICE_TARGET_MS / took_ms)))
        elif size >= self._slice and took_ms < _SLICE_TARGET_MS / 2:
            self._slice = min(self._max_slice, self._slice * 2)

    def _process_control(self, channel: InputChannel, element: Element, now_ms: float) -> None:
        if isinstance(element, CheckpointBarrier):
            if self._handler is not None:
                self._trace_barrier("reached", channel, element)
                self._apply(self._handler.reached(channel.index, element, now_ms), now_ms)
        elif isinstance(element, EndOfData):
            channel.end_of_data = True
            self.drained = self.drained or element.drained
            if all(c.end_of_data for c in self.inputs):
                self._end_of_data()
        elif isinstance(element, (Watermark, WatermarkStatus)):
            self._time.on_element(channel.index, element)

    def _end_of_data(self) -> None:
        check_internal(
            self.state is TaskState.RUNNING, f"{self.name} came to the end of its data in state {self.state}"
        )
        if self.restored_at_end or self.chain.finish():
            self._reach_end_of_data()
        else:
            self._ending = True  # results of asynchronous calls are awaited

    def _reach_end_of_data(self) -> None:
        self._ending = False
        for channel in self.out_channels:
            channel.add_control(EndOfData(self.drained))
        self.state = TaskState.END_OF_DATA
        self._send(TaskEndOfData(attempt=self._attempt, vertex=self.vertex.vertex_id, subtask=self.subtask))

    # ------------------------------------------------------------ checkpoints
    def trigger_checkpoint(self, barrier: CheckpointBarrier, now_ms: float) -> None:
        """For source tasks: the coordinator's trigger is the barrier."""
        unaligned = barrier.alignment is Alignment.UNALIGNED
        self._take_snapshot(barriers.Snapshot(barrier, unaligned, now_ms), now_ms)

    def barrier_arrived(self, channel: InputChannel, barrier: CheckpointBarrier, now_ms: float) -> None:
        """A barrier came from the network (it is queued in the channel already)."""
        if self._handler is not None:
            self._trace_barrier("arrived", channel, barrier)
            self._apply(self._handler.arrived(channel.index, barrier, now_ms), now_ms)

    def tick(self, now_ms: float) -> bool:
        """Alignment timeouts, periodic watermarks, processing-time timers. True: something was emitted."""
        worked = False
        if self._works and self.state is TaskState.RUNNING:  # timers that are left at the end of data never fire
            worked = self._time.tick(now_ms, self.can_emit)
        if self._handler is not None:
            self._apply(self._handler.tick(now_ms), now_ms)
        for checkpoint in list(self._checkpoints.values()):
            if checkpoint.unaligned_at_ms is not None and now_ms >= checkpoint.unaligned_at_ms:
                barrier = _as_unaligned(checkpoint.barrier)
                for channel in checkpoint.waiting_outputs:
                    if channel.holds_barrier(barrier.checkpoint_id):
                        checkpoint.record_outputs(channel.address, channel.make_unaligned(barrier))
                checkpoint.waiting_outputs = []
                self._write_if_ready(checkpoint)
        return worked

    def outputs_moved(self) -> None:
        """Elements have left the output channels: a barrier that waited there may be gone."""
        for checkpoint in list(self._checkpoints.values()):
            if checkpoint.waiting_outputs:
                n = checkpoint.checkpoint_id
                checkpoint.waiting_outputs = [c for c in checkpoint.waiting_outputs if c.holds_barrier(n)]
                self._write_if_ready(checkpoint)

    def _apply(self, actions: list[barriers.Action], now_ms: float) -> None:
        for action in actions:
            match action:
                case barriers.Block(channel):
                    self.inputs[channel].blocked = True
                    if self._trace is not None:
                        self._trace(f"{self.name}: channel {channel} is blocked until the other barriers are here")
                case barriers.UnblockAll():
                    for c in self.inputs:
                        c.blocked = False
                case barriers.Snapshot():
                    self._take_snapshot(action, now_ms)
                case barriers.DropBarrier(channel, checkpoint_id):
                    self.inputs[channel].remove_barrier(checkpoint_id)
                case barriers.StopRecording(channel, _):
                    self.inputs[channel].recording = None
                case barriers.InputsComplete(checkpoint_id):
                    complete = self._checkpoints.get(checkpoint_id)
                    if complete is not None:
                        complete.inputs_complete = True
                        self._write_if_ready(complete)
                case barriers.Abandon(checkpoint_id):
                    self._forget(checkpoint_id)

    def _take_snapshot(self, action: barriers.Snapshot, now_ms: float) -> None:
        barrier = action.barrier
        n = barrier.checkpoint_id
        error: BaseException | None = None
        try:
            self.chain.prepare_barrier(n)
        except OperatorFailure as failure:
            error = failure
        checkpoint = SubtaskCheckpoint(
            barrier=barrier,
            unaligned=action.unaligned,
            operators=[],
            # A drained task would have had more: it goes on when a job starts from this savepoint.
            end_of_data=(self.state is TaskState.END_OF_DATA or self.restored_at_end) and not self.drained,
            start_delay_ms=max(0.0, action.first_arrival_ms - barrier.timestamp),
            alignment_ms=now_ms - action.first_arrival_ms,
            sync_ms=0.0,
            processed_during_alignment=self._processed_while_aligning,
            inputs_complete=not action.unaligned or not self.inputs,
        )
        self._processed_while_aligning = 0
        if barrier.stop:
            self._held_by = n
        for channel in self.out_channels:
            if action.unaligned:
                checkpoint.record_outputs(channel.address, channel.overtake(barrier))
            else:
                channel.add_control(barrier)
                if barrier.alignment is Alignment.ALIGNED_WITH_TIMEOUT and channel.queued_batches:
                    checkpoint.waiting_outputs.append(channel)
                    checkpoint.unaligned_at_ms = now_ms + barrier.timeout_ms
        if action.unaligned:
            checkpoint.record_inputs(self.inputs, action.pending)
        if error is None:
            try:
                started = self._clock.now_ms()
                self._time.save(self.drained)
                checkpoint.operators = self.chain.freeze(n, barrier.timestamp, barrier.savepoint)
                checkpoint.sync_ms = self._clock.now_ms() - started
            except Exception as failure:
                error = failure
        if self._trace is not None:
            kind = "unaligned" if action.unaligned else barrier.alignment.value
            sent = ", barrier sent on" if self.out_channels else ""
            self._trace(f"{self.name}: snapshot {n} ({kind}, waited {checkpoint.alignment_ms:.1f} ms){sent}")
        if error is not None:
            self._stop_recording()
            self._decline(n, "SNAPSHOT_FAILED", describe(error).summary)
            return
        self._checkpoints[n] = checkpoint
        self._write_if_ready(checkpoint)

    def _write_if_ready(self, checkpoint: SubtaskCheckpoint) -> None:
        n = checkpoint.checkpoint_id
        if not checkpoint.ready or n not in self._checkpoints:
            return
        del self._checkpoints[n]
        if self._storage is None:
            self._decline(n, "SNAPSHOT_FAILED", "the task has no checkpoint storage")
            return
        storage, now, groups = self._storage, self._clock.now_ms, self.vertex.max_parallelism
        attempt, vertex, subtask = self._attempt, self.vertex.vertex_id, self.subtask
        self._run_async(
            lambda: checkpoint.write(
                storage, attempt, vertex, subtask, self._input_keys, self._output_keys, groups, now
            ),
            lambda snapshot, error: self._written(n, snapshot, error),
        )

    def _written(self, n: CheckpointId, snapshot: TaskSnapshot, error: BaseException | None) -> None:
        if error is not None:
            reason = "STATE_TOO_LARGE" if isinstance(error, StateTooLargeError) else "WRITE_FAILED"
            self._decline(n, reason, f"{self.name}: {describe(error).summary}")
            return
        # Acknowledged also when it was aborted meanwhile: the coordinator then knows what to delete.
        self._send(AckCheckpoint(attempt=self._attempt, checkpoint_id=n, snapshot=snapshot))

    def _decline(self, n: CheckpointId, reason: str, detail: str) -> None:
        self._send(
            DeclineCheckpoint(
                attempt=self._attempt,
                checkpoint_id=n,
                vertex=self.vertex.vertex_id,
                subtask=self.subtask,
                reason=reason,
                detail=detail,
            )
        )

    def checkpoint_complete(self, n: CheckpointId) -> None:
        self.chain.notify_complete(n)

    def checkpoint_aborted(self, n: CheckpointId, now_ms: float) -> None:
        if self._held_by == n:
            self._held_by = None
        if self._handler is not None:
            self._apply(self._handler.aborted(n), now_ms)
        self._forget(n)
        self.chain.notify_aborted(n)

    def _forget(self, n: CheckpointId) -> None:
        checkpoint = self._checkpoints.pop(n, None)
        if checkpoint is not None and not checkpoint.inputs_complete:
            self._stop_recording()

    def _stop_recording(self) -> None:
        for channel in self.inputs:
            channel.recording = None

    def _trace_barrier(self, what: str, channel: InputChannel, barrier: CheckpointBarrier) -> None:
        if self._trace is not None:
            upstream = f"channel {channel.index} (upstream subtask {channel.address.upstream + 1})"
            self._trace(f"{self.name}: barrier {barrier.checkpoint_id} {what} on {upstream}")

    # ------------------------------------------------------------ end
    def close(self) -> None:
        if self.state is not TaskState.CLOSED:
            self.state = TaskState.CLOSED
            self.chain.close()


def _as_unaligned(barrier: CheckpointBarrier) -> CheckpointBarrier:
    import msgspec

    return msgspec.structs.replace(barrier, alignment=Alignment.UNALIGNED, timeout_ms=0)
