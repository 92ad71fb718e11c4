"""A subtask: takes elements from its input channels (or polls its source) and drives its chain.

`step` does one bounded piece of work and never blocks; the slot calls it in turn with the other tasks of the slot. A
batch is processed in slices whose size follows the measured cost of the records, so that control elements and messages
wait a few milliseconds at the most, however slow the user's code is, while fast code runs in long tight loops. A slice
whose records have become slow is cut short (`TimeLimit`). What the head has not processed goes back into its channel.
What waits behind it in the chain is processed before anything else, a piece at a time. A snapshot waits for a few of
these pieces, and then holds what is left; a savepoint, and a task that was drained, wait for all.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import assert_never

from tidegate.common.errors import check_internal
from tidegate.contracts.batches import Batch
from tidegate.fault_tolerance.task_side import ModelElement, ModelMessage, TaskSide
from tidegate.graph.task_place import TaskPlace
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.elements import ControlElement, EndOfData, Watermark, WatermarkStatus
from tidegate.protocol.messages import TaskEndOfData
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.taskmanager.edge_output import EdgeOutput
from tidegate.taskmanager.services import TaskServices
from tidegate.taskmanager.task_time import TaskTime

_Told = tuple[ModelMessage | ModelElement, Callable[[float], None]]
"""What a model is told, and the call that tells it."""

_SLICE_TARGET_MS = 4.0  # a slice of work should not take longer than this
_FIRST_SLICE = 1  # nothing is known yet of how long the records take and how large their results are
_UNLIMITED = 1 << 62
_PORTIONS = 4  # of timers that are fired in one step, if the outputs take what they make: a step has a cost of its own
_SLICE_BATCHES = 4  # a slice of work should not make more bytes of results than so many batches may have


class TaskState(enum.Enum):
    CREATED = "created"  # waits for Start
    RUNNING = "running"
    END_OF_DATA = "end of data"  # all input processed; the model still works
    CLOSED = "closed"


@dataclass(frozen=True)
class TaskChannels:
    """How a task is connected."""

    inputs: list[InputChannel]  # the input gate
    outputs: list[EdgeOutput[OutputChannel]]
    names: list[str]  # of the input channels, stable across restarts


class Task:
    """Its fault tolerance is the business of `model`."""

    def __init__(
        self,
        place: TaskPlace,
        chain: OperatorChain,
        channels: TaskChannels,
        services: TaskServices,
        settings: RuntimeSettings,
        make_model: Callable[[Task], TaskSide],
    ) -> None:
        self.place = place
        self.vertex = place.vertex
        self.subtask = place.subtask
        self.name = place.name
        self.chain = chain
        self.inputs = channels.inputs
        self.out_channels: list[OutputChannel] = [c for o in channels.outputs for c in o.channels]
        self.state = TaskState.CREATED
        self._ending = False  # all input was processed; operators still finish
        self._asynchronous = any(op.asynchronous for op in chain.operators)
        self.records_in = 0
        self.may_read = _UNLIMITED  # records, of a source; whoever sets a limit does not call `step` when it is used up
        self.drained = False  # its sources were told to end: it would have had more to process
        self.restored_first = False  # restored batches on some inputs go before everything on the others
        self.restored_at_end = False  # the restored snapshot was taken after the end of data: finish() has run
        self._send = services.send
        self._clock = services.clock
        self._limit = services.limit
        self._max_slice = settings.batch_size
        self._slice = _FIRST_SLICE
        self._waiting_slice: tuple[int, float] | None = None  # a part of it waits in the chain; its size, time so far
        self._deferred: deque[_Told] = deque()  # what the model will be told, when the chain allows it
        self._max_bytes = _SLICE_BATCHES * settings.max_batch_bytes
        self._bytes_made = 0  # of all slices before this one
        self._turn = 0  # input channel to look at first
        self.time = TaskTime(
            chain,
            self.inputs,
            channels.names,
            place.subtask,
            place.vertex.parallelism,
            settings.watermark_interval_ms,
            settings.exactly_once,
        )
        self.model = make_model(self)
        self._follows_records = self.model.follows_records

    # ------------------------------------------------------------ work
    def start(self) -> None:
        check_internal(self.state is TaskState.CREATED, f"{self.name} started in state {self.state}")
        self.state = TaskState.RUNNING
        self.time.restore()

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
        if self.state is TaskState.CREATED or self.state is TaskState.CLOSED or self.model.paused:
            return False
        behind = self.chain.behind
        if self._asynchronous and self.chain.advance(now_ms, self.can_send):
            return True
        if behind:
            return self._catch_up(now_ms)
        if self.time.pending:
            if not self.can_emit:
                return False
            self.time.advance()
            for _ in range(_PORTIONS - 1):
                if not self.time.pending or self.chain.behind or self._limit.expired or not self.can_emit:
                    break
                self.time.advance()
            return True
        if self._ending and self._finish():
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
                times.append(self.time.next_deadline(can_emit))
            times.append(self.chain.next_deadline(self.can_send))
            # What cannot be emitted now is no reason to wake up: the credit that allows it is.
            if source is not None and self.state is TaskState.RUNNING and can_emit and not self._ending:
                times.append(source.wake_at_ms)
        if self._model_may_act:
            times.append(self.model.next_deadline())
        return min((t for t in times if t is not None), default=None)

    @property
    def _works(self) -> bool:
        return not self.model.paused and self.state in (TaskState.RUNNING, TaskState.END_OF_DATA)

    # ------------------------------------------------------------ the model of fault tolerance
    def on_model_message(self, message: ModelMessage, now_ms: float) -> None:
        self._tell_model(message, lambda now: self.model.on_message(message, now), now_ms)

    def element_arrived(self, channel: InputChannel, element: ModelElement, now_ms: float) -> None:
        self._tell_model(element, lambda now: self.model.element_arrived(channel, element, now), now_ms)

    def _tell_model(self, what: ModelMessage | ModelElement, call: Callable[[float], None], now_ms: float) -> None:
        """It may take a snapshot, for which too much may be waiting in the chain: then it is told later, of everything
        in its order."""
        if self._deferred or not self._may_tell(what):
            self._deferred.append((what, call))
        else:
            call(now_ms)

    def _may_tell(self, what: ModelMessage | ModelElement) -> bool:
        chain = self.chain
        return not chain.behind or (chain.impatient and self._may_hold and not self.model.works_off(what))

    @property
    def _may_hold(self) -> bool:
        """A snapshot may hold what waits in the chain. Not once the task was drained: the end of time that waits there
        too is none for the job that goes on from it."""
        return self.chain.holdable and not self.drained

    @property
    def _model_may_act(self) -> bool:
        """In time, of itself: it may take a snapshot then too, but not before what it is still to be told of."""
        return not self.chain.behind or (not self._deferred and self._may_hold)

    def _controls(self) -> Iterator[tuple[InputChannel, ControlElement]]:
        """While the chain is behind: what stands in front of a channel and is no records. There may be a barrier behind
        it, or it is one."""
        if not self._deferred and not self.time.pending and not self.restored_first:
            for channel in self.inputs:
                if channel.queue and not channel.blocked and not isinstance(head := channel.queue[0], Batch):
                    yield channel, head

    def _take_control(self, now_ms: float) -> bool:
        """Time waits in the chain, in its order. True: there was something."""
        if self.chain.impatient:
            for channel, head in self._controls():
                if not isinstance(head, ModelElement) or self._may_tell(head):
                    channel.queue.popleft()
                    self._process_control(channel, head, now_ms)
                    return True
        return False

    def _catch_up(self, now_ms: float) -> bool:
        """Outputs without room have to take what a snapshot waits for: it may be there to overtake their queues. So do
        operators that are not available, but only if the snapshot cannot hold it: they may be waiting for just that."""
        if self._take_control(now_ms):
            return True
        what = self._deferred[0][0] if self._deferred else next((head for _, head in self._controls()), None)
        if what is None and not (self.can_send and self.chain.may_catch_up):
            return False
        self.chain.catch_up(
            forced=isinstance(what, ModelMessage | ModelElement) and (not self._may_hold or self.model.works_off(what))
        )
        now = self._clock.now_ms()
        if self._waiting_slice is not None:
            size, took = self._waiting_slice
            self._waiting_slice = size, took + now - now_ms
        if self._waiting_slice is not None and not self.chain.behind:
            self._adapt_slice(*self._waiting_slice)
            self._waiting_slice = None
        while self._deferred and self._may_tell(self._deferred[0][0]):
            self._deferred.popleft()[1](now)
        return True

    @property
    def at_rest(self) -> bool:
        """Nothing will be emitted any more, or nothing has been: the job may end here."""
        return self.model.paused or self.state in (TaskState.CREATED, TaskState.END_OF_DATA)

    def drain(self) -> None:
        """For source tasks: the end of data is here."""
        if self.chain.source is not None and self.state is TaskState.RUNNING:
            self.drained = True
            self.chain.source.drain()

    def assign(self, number: int, splits: list[bytes], complete: bool) -> None:
        """For source tasks: splits that were discovered."""
        if self.chain.source is not None and self.state is not TaskState.CLOSED:
            self.chain.source.take_splits(number, splits, complete)

    def _step_source(self, now_ms: float) -> bool:
        source = self.chain.source
        if source is None or self.state is not TaskState.RUNNING or self._ending:
            return False
        if source.wake_at_ms is not None and now_ms < source.wake_at_ms:
            return False
        if not source.finished:
            if not self.can_emit:
                return False
            count = self.chain.poll(source, min(self._slice, self.may_read), now_ms)
            if count:
                self.records_in += count
                self.may_read -= count
                self._measure(count, now_ms)
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
            if isinstance(head, Batch):
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

    def _process_slice(self, channel: InputChannel, batch: Batch, now_ms: float) -> None:
        size = len(batch)
        part = batch if size <= self._slice else batch.slice(0, self._slice)
        count = len(part)
        enters = not self._follows_records or self.model.batch_enters(channel, part)
        if enters:
            count = self.chain.process(part, channel.input_index)
        if count == size:
            channel.queue.popleft()
            channel.consumed_batch()
        else:
            channel.queue[0] = batch.slice(count, size)
        if enters:
            self.records_in += count
            self._measure(count, now_ms)

    def _measure(self, size: int, began_ms: float) -> None:
        took = self._clock.now_ms() - began_ms
        if self.chain.behind:
            self._waiting_slice = size, took
        else:
            self._adapt_slice(size, took)

    def _adapt_slice(self, size: int, took_ms: float) -> None:
        in_all = 0
        for channel in self.out_channels:
            in_all += channel.bytes_made
        made, self._bytes_made = in_all - self._bytes_made, in_all
        if took_ms > _SLICE_TARGET_MS:
            self._slice = max(1, min(self._slice // 2, int(size * _SLICE_TARGET_MS / took_ms)))
        elif made > self._max_bytes:
            self._slice = max(1, min(self._slice // 2, size * self._max_bytes // made))
        elif size >= self._slice and took_ms < _SLICE_TARGET_MS / 2 and made < self._max_bytes // 2:
            self._slice = min(self._max_slice, self._slice * 2)

    def _process_control(self, channel: InputChannel, element: ControlElement, now_ms: float) -> None:
        if isinstance(element, ModelElement):
            self.model.element_reached(channel, element, now_ms)
            return
        match element:
            case Watermark() | WatermarkStatus():
                self.time.on_element(channel.index, element)
            case EndOfData():
                channel.end_of_data = True
                self.drained = self.drained or element.drained
                if all(c.end_of_data for c in self.inputs):
                    self._end_of_data()
            case _:
                assert_never(element)

    def _end_of_data(self) -> None:
        check_internal(
            self.state is TaskState.RUNNING, f"{self.name} came to the end of its data in state {self.state}"
        )
        self._ending = True
        self._finish()

    def _finish(self) -> bool:
        """Come to the end, if nothing is awaited any more: neither results of asynchronous calls nor the model."""
        if not self.chain.behind and (self.restored_at_end or self.chain.finish()) and self.model.may_end:
            self._reach_end_of_data()
            return True
        return False

    def _reach_end_of_data(self) -> None:
        self._ending = False
        for channel in self.out_channels:
            channel.add_control(EndOfData(self.drained))
        self.state = TaskState.END_OF_DATA
        ended = TaskEndOfData(attempt=self.place.attempt, vertex=self.vertex.vertex_id, subtask=self.subtask)
        self._send(ended)

    def tick(self, now_ms: float) -> bool:
        """Periodic watermarks, processing-time timers, what the model does in time. True: something was emitted."""
        worked = False
        if self._works and self.state is TaskState.RUNNING:  # timers that are left at the end of data never fire
            worked = self.time.tick(now_ms, self.can_emit and not self.chain.behind)
        if self._model_may_act:
            self.model.tick(now_ms)
        return worked

    # ------------------------------------------------------------ end
    def close(self) -> None:
        if self.state is not TaskState.CLOSED:
            self.state = TaskState.CLOSED
            self.chain.close()
