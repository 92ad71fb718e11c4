"""A slot: subtask i of every vertex, in one process and on one thread.

`SlotRuntime` does no I/O of its own: frames and messages are handed in, and it is given a transport to send with, a
clock, a storage and a way to run work on a helper thread. Two hosts run it: `tidegate.spark.streaming.worker` (ZeroMQ,
real threads) and the simulator in `tests/simulation`.

All methods are called from one thread. Any of them may raise: the attempt is then over for this slot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import assert_never

from tidegate.common.errors import InternalError, check_internal
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.common.metric_values import MetricReport
from tidegate.fault_tolerance.task_side import ModelElement, ModelMessage
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.serialization import Buffers, Element, deserialize, serialize
from tidegate.network.wire import CREDIT, Frame, FrameError
from tidegate.protocol.codec import ProtocolError
from tidegate.protocol.messages import (
    AssignSplits,
    CollectAck,
    Deploy,
    DrainSources,
    Finish,
    Leave,
    MasterHeartbeat,
    MasterToSlot,
    ReadState,
    SlotFinished,
    SlotReady,
    SourceSplits,
    Start,
    StateRead,
    WatermarkLimits,
    WatermarkReport,
)
from tidegate.state.class_mapping import use_class_mapping
from tidegate.storage.handles import SlotRestore
from tidegate.taskmanager.alignment import SourceAlignment
from tidegate.taskmanager.deployment import SlotPlan
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.operators.collect import CollectOperator
from tidegate.taskmanager.slot_builder import SlotBuilder, SlotChannels
from tidegate.taskmanager.slot_host import SlotHost
from tidegate.taskmanager.state_reads import StateReads
from tidegate.taskmanager.task import Task
from tidegate.taskmanager.task_figures import TaskFigures
from tidegate.taskmanager.time_limit import TimeLimit
from tidegate.taskmanager.user_report import UserReport

SlotMessage = (
    Deploy | Start | DrainSources | Finish | Leave | CollectAck | WatermarkLimits | AssignSplits | MasterHeartbeat
)
"""The messages of the JobManager that do not belong to a model of fault tolerance."""


class SlotRuntime:
    def __init__(
        self,
        slot: SlotIndex,
        attempt: AttemptNumber,
        plan: SlotPlan,
        host: SlotHost,
        limit: TimeLimit | None = None,
        spent_ms: Callable[[], float] | None = None,
    ) -> None:
        """`spent_ms`: the processor time of this thread; None: what the clock says will do."""
        self._slot = slot
        self._attempt = attempt
        self._plan = plan
        self._host = host
        self._graph = plan.graph
        self._settings = plan.settings
        self.limit = limit or TimeLimit()
        self.channels = SlotChannels()
        self.report = UserReport(plan.settings.heartbeat_interval_ms / 2)
        self.state_reads = StateReads(attempt, host.clock, spent_ms or host.clock.now_ms)
        self._alignment = SourceAlignment([])
        self._started = False
        self._finishing = False
        self.finished = False  # committed and closed after Finish
        self.tasks: list[Task] = []  # upstream first
        self._figures: dict[Task, TaskFigures] = {}  # replaced, never changed, once all tasks are there

    def deploy(self, restore: SlotRestore | None) -> None:
        """Build, restore and open everything; sources stay quiet until `Start`. Reports SlotReady."""
        use_class_mapping(self._settings.class_mapping)
        builder = SlotBuilder(self._slot, self._attempt, self._plan, self._host, self.channels, self.limit)
        for task in builder.build(restore):
            self.tasks.append(task)  # one by one: when the next cannot be built, `close` closes these
        if any(task.model.follows_records for task in self.tasks):
            self.limit.watched = False  # such a model is told of a part of a batch once: none is left for later
        now = self._host.clock.now_ms()
        self._figures = {task: TaskFigures(task, now) for task in reversed(self.tasks)}
        for task in reversed(self.tasks):
            task.chain.open()
        self._alignment = SourceAlignment([t.chain.source for t in self.tasks if t.chain.source is not None])
        for task in self.tasks:
            self.report.watch(task.vertex.vertex_id, [operator.context for operator in task.chain.operators])
        self._report_restored_splits()
        self.state_reads.watch(self.tasks)
        self._host.send_to_master(SlotReady(attempt=self._attempt, slot=self._slot))

    def _report_restored_splits(self) -> None:
        for task in self.tasks:
            source = task.chain.source
            if source is not None and source.restored_names is not None:
                message = SourceSplits(
                    attempt=self._attempt,
                    operator_id=source.node.operator_id,
                    subtask=task.subtask,
                    names=source.restored_names,
                )
                self._host.send_to_master(message)

    # ------------------------------------------------------------ messages and frames
    def on_message(self, message: MasterToSlot) -> None:
        """A control message after Deploy (Leave is the host's business)."""
        if message.attempt != self._attempt:
            return
        if isinstance(message, ModelMessage):
            now = self._host.clock.now_ms()
            for task in self.tasks:
                task.on_model_message(message, now)
        elif isinstance(message, ReadState):
            self._read_state(message)
            return
        else:
            self._on_own_message(message)
        self._pump_all()

    def _read_state(self, message: ReadState) -> None:
        results, took = self.state_reads.answer(message.lookups)
        answer = StateRead(
            attempt=self._attempt, slot=self._slot, request_id=message.request_id, results=results, took_ms=took
        )
        self._host.send_to_master(answer)

    def _on_own_message(self, message: SlotMessage) -> None:
        match message:
            case Start():
                if not self._started:  # otherwise it is a repetition
                    self._started = True
                    for task in self.tasks:
                        task.start()
            case DrainSources():
                for task in self.tasks:
                    task.drain()
            case CollectAck(seq=seq):
                _, operator = self._addressee(message)
                if not isinstance(operator, CollectOperator):
                    raise self._misaddressed(message)
                operator.acknowledged(seq)
            case AssignSplits():
                task, operator = self._addressee(message)
                if operator is not task.chain.source:
                    raise self._misaddressed(message)
                task.assign(message.number, message.splits, message.complete)
            case WatermarkLimits(limits=limits):
                self._alignment.on_limits(limits)
            case Finish():
                if not self._finishing:  # likewise
                    self._finishing = True
                    for task in self.tasks:
                        task.chain.commit_all()
            case MasterHeartbeat():
                pass
            case Deploy() | Leave():
                check_internal(False, f"{type(message).__name__} is the business of the slot's host")
            case _:
                assert_never(message)

    def _addressee(self, message: CollectAck | AssignSplits) -> tuple[Task, Operator]:
        """Nobody would miss it here, but what is in it would be lost: ProtocolError when there is none."""
        for task in self.tasks:
            if task.subtask == message.subtask:
                for operator in task.chain.operators:
                    if operator.node.operator_id == message.operator_id:
                        return task, operator
        raise self._misaddressed(message)

    def _misaddressed(self, message: CollectAck | AssignSplits) -> ProtocolError:
        return ProtocolError(
            f"slot {self._slot} was sent {type(message).__name__} for subtask {message.subtask} of operator "
            f"{message.operator_id!r}, which does not run here or takes no such message"
        )

    def on_frame(self, frame: Frame) -> None:
        """A frame from another slot. One of an old attempt is dropped: it is fenced."""
        if frame.attempt != self._attempt:
            return
        if frame.kind == CREDIT:
            channel = self.channels.outputs.get(frame.address)
            if channel is None:
                raise _no_channel(frame)
            channel.grant(frame.amount)
            self._pump(channel)
            return
        found = self.channels.inputs.get(frame.address)
        if found is None:
            raise _no_channel(frame)
        task, into = found
        self._figures[task].bytes_in += len(frame.payload) + sum(map(len, frame.buffers))
        try:
            element = deserialize(frame.kind, frame.payload, frame.buffers)
        except Exception as error:
            raise OperatorFailure(
                task.vertex.operators[0].name, task.subtask, "unpickling records from another worker", error
            ) from error
        self._receive(task, into, element, frame.cost)

    def _receive(self, task: Task, channel: InputChannel, element: Element, cost: int) -> None:
        channel.receive(element, cost)
        if isinstance(element, ModelElement):
            task.element_arrived(channel, element, self._host.clock.now_ms())

    # ------------------------------------------------------------ work
    def step(self) -> bool:
        """One round over all tasks, downstream first so that data drains. False: nothing could be done."""
        worked = False
        clock, limit = self._host.clock, self.limit
        for task, figures in self._figures.items():
            began = clock.now_ms()
            limit.begin(began)
            if task.step(began):
                worked = True
                self._after_step(task)
                figures.worked(began, clock.now_ms())
            else:
                figures.waited(began)
        now = clock.now_ms()
        for task in self.tasks:
            limit.begin(now)
            if task.tick(now):
                self._after_step(task)
            self._flush_due(task, now)
            self._figures[task].refresh_if_due(now)
        limit.end()
        watermarks = self._alignment.report_if_due(now)
        if watermarks is not None:
            self._host.send_to_master(WatermarkReport(attempt=self._attempt, slot=self._slot, watermarks=watermarks))
        self.report.refresh_if_due(now)
        self.state_reads.report_if_due(now)
        if self._finishing and not self.finished and all(t.chain.committed for t in self.tasks):
            self._close_after_finish()
            worked = True
        return worked

    def next_deadline(self) -> float | None:
        """When `step` should be called even if nothing arrives."""
        times = [self._alignment.next_deadline()]
        for task in self.tasks:
            times.append(task.next_deadline())
            timeout = task.vertex.buffer_timeout_ms
            if timeout >= 0:
                times += [c.oldest_ms + timeout for c in task.out_channels if c.oldest_ms is not None]
        return min((t for t in times if t is not None), default=None)

    def _after_step(self, task: Task) -> None:
        """Send what the step produced, and give back the credits of what it consumed."""
        if task.model.follows_records:
            task.model.results_made()
        for channel in task.out_channels:
            if channel.oldest_ms is not None and channel.address not in self.channels.remote:
                channel.flush()  # a local hand-over costs nothing: no reason to wait for a full batch
            if channel.queue:
                self._pump(channel)
        if task.out_channels:
            task.model.outputs_sent()
        for into in task.inputs:
            if into.owed:
                self._return_credits(into)

    def _flush_due(self, task: Task, now_ms: float) -> None:
        timeout = task.vertex.buffer_timeout_ms
        for channel in task.out_channels:
            if channel.oldest_ms is not None and 0 <= timeout <= now_ms - channel.oldest_ms:
                channel.flush()
            if channel.queue:
                self._pump(channel)
        if task.out_channels:
            task.model.outputs_sent()

    def _pump_all(self) -> None:
        for task in self.tasks:
            if task.model.follows_records:
                task.model.results_made()
            for channel in task.out_channels:
                if channel.queue:
                    self._pump(channel)
            task.model.outputs_sent()

    def _pump(self, channel: OutputChannel) -> None:
        """Send whatever the channel's credits allow."""
        address = channel.address
        remote = self.channels.remote.get(address)
        if remote is None:
            task, into = self.channels.inputs[address]
            for element, cost in channel.take_sendable():
                self._receive(task, into, element, cost)
            return
        for element, cost in channel.take_sendable():
            buffers: Buffers = []
            try:
                kind, count, payload = serialize(element, buffers)
            except Exception as error:
                edge = self._graph.edges[address.edge]
                name = self._graph.vertices[edge.source].operators[edge.source_operator].name
                raise OperatorFailure(
                    name, address.upstream, "pickling its results for another worker", error
                ) from error
            size = len(payload) + sum(buffer.nbytes for buffer in buffers)
            channel.bytes_out += size
            if size > self._settings.max_batch_bytes and count > 1:
                # The estimate was too low: records that look like small ones, or a few large ones among many.
                channel.batch_size = max(1, count * self._settings.max_batch_bytes // size)
            frame = Frame(kind, self._attempt, self._slot, 0, address, count, payload, cost, buffers)
            self._host.transport.send(remote, frame)

    def _return_credits(self, channel: InputChannel) -> None:
        source = self.channels.input_from.get(channel.address)
        if source is None:
            self.channels.outputs[channel.address].grant(channel.take_owed())
        elif channel.owed * 2 >= channel.capacity:
            count = channel.take_owed()
            self._host.transport.send(source, Frame(CREDIT, self._attempt, self._slot, 0, channel.address, count, b""))

    # ------------------------------------------------------------ end
    def _close_after_finish(self) -> None:
        for task in self.tasks:
            check_internal(task.at_rest, f"{task.name} is told to finish in state {task.state}")
            task.close()
        self.finished = True
        accumulators = self.report.final()
        finished = SlotFinished(attempt=self._attempt, slot=self._slot, accumulators=accumulators, metrics=self.metrics)
        self._host.send_to_master(finished)

    def close(self) -> None:
        """Close what is open, whatever happens; for a slot that leaves early."""
        for task in self.tasks:
            with contextlib.suppress(Exception):  # the attempt is over: its first failure has been reported
                task.close()

    @property
    def metrics(self) -> tuple[MetricReport, ...]:
        """Read by the control thread too."""
        tasks = [self._figures[task].reports() for task in self.tasks if task in self._figures]
        return (*(report for one in tasks for report in one), *self.report.metrics)

    def check_invariants(self) -> None:
        for output in self.channels.outputs.values():
            output.check_invariants()
        for address, (_, into) in self.channels.inputs.items():
            if address not in self.channels.input_from:
                total = self.channels.outputs[address].credits + into.held + into.owed
                if total != into.capacity:
                    raise InternalError(f"channel {address}: {total} of {into.capacity} credits")


def _no_channel(frame: Frame) -> FrameError:
    edge, up, down = frame.address
    return FrameError(f"slot {frame.sender} sent a frame for a channel that is not here (edge {edge}, {up} to {down})")
