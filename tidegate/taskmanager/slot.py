"""A slot: subtask i of every vertex, in one process and on one thread.

`SlotRuntime` does no I/O of its own: frames and messages are handed in, and it is given a transport to send with, a
clock, a storage and a way to run work on a helper thread. Two hosts run it: `tidegate.spark.streaming.worker` (ZeroMQ,
real threads) and the simulator in `tests/simulation`.

All methods are called from one thread. Any of them may raise: the attempt is then over for this slot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tidegate.common.errors import SnapshotError, StateBackendError, check_internal
from tidegate.common.ids import AttemptNumber, ChannelAddress, SlotIndex, SubtaskIndex, VertexId
from tidegate.fault_tolerance.barriers.handlers import BarrierHandler, BarrierTracker, ExactlyOnceHandler
from tidegate.graph.job_graph import JobVertex
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.network.elements import CheckpointBarrier
from tidegate.network.serialization import Element, deserialize, serialize
from tidegate.network.transport import DataTransport
from tidegate.network.wire import CREDIT, Frame
from tidegate.protocol.messages import (
    CollectAck,
    DrainSources,
    Finish,
    MasterHeartbeat,
    MasterToSlot,
    Message,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    SlotFinished,
    SlotReady,
    Start,
    TriggerCheckpoint,
    WatermarkLimits,
    WatermarkReport,
)
from tidegate.state.backend import StateSource
from tidegate.state.class_mapping import use_class_mapping
from tidegate.state.factory import KeyedBackends
from tidegate.state.key_groups import key_group_range
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.storage.handles import MovedChannel, SlotRestore, TaskRestore
from tidegate.storage.worker_storage import WorkerStorage
from tidegate.taskmanager.alignment import SourceAlignment
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.channel_restore import OwnKeys, read_channel, read_moved_records
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.deployment import SlotPlan
from tidegate.taskmanager.edge_output import make_edge_output
from tidegate.taskmanager.failure import OperatorFailure, RestoreFailure
from tidegate.taskmanager.operators.base import OperatorContext
from tidegate.taskmanager.operators.collect import CollectOperator
from tidegate.taskmanager.task import Task
from tidegate.taskmanager.user_report import UserReport


class SlotHost(Protocol):
    """What a slot needs from the outside."""

    @property
    def clock(self) -> Clock: ...

    @property
    def transport(self) -> DataTransport: ...

    @property
    def storage(self) -> WorkerStorage | None: ...

    def send_to_master(self, message: Message) -> None: ...

    def run_async(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` on a helper thread; then call `done(result, error)` on the slot's thread."""

    def run_coroutine(
        self, call: Callable[[], Awaitable[Any]], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        """Await `call()` elsewhere, with as many others as there are; then call `done(result, error)` on the slot's
        thread. Returns what cancels it: `done` may still be called then, or not."""

    def trace(self, text: str) -> None:
        """Print a line of the checkpoint trace."""


class SlotRuntime:
    def __init__(self, slot: SlotIndex, attempt: AttemptNumber, plan: SlotPlan, host: SlotHost) -> None:
        self._slot = slot
        self._attempt = attempt
        self._plan = plan
        self._host = host
        self._graph = plan.graph
        self._settings = plan.settings
        storage = plan.storage
        increments = plan.settings.max_increments if storage is not None and storage.supports_increments else 0
        self._backends = KeyedBackends(
            plan.settings.state_backend, plan.settings.rocksdb, increments, lambda: host.clock.now_ms()
        )
        self._inputs: dict[ChannelAddress, tuple[Task, InputChannel]] = {}  # channels that end in this slot
        self._outputs: dict[ChannelAddress, OutputChannel] = {}  # channels that begin in this slot
        self._remote: dict[ChannelAddress, SlotIndex] = {}  # output channels that leave the slot
        self._input_from: dict[ChannelAddress, SlotIndex] = {}  # input channels that come from another slot
        self.report = UserReport(plan.settings.heartbeat_interval_ms / 2)
        self._alignment = SourceAlignment([])
        self._finishing = False
        self.finished = False  # committed and closed after Finish
        self.tasks: list[Task] = []  # upstream first

    # ------------------------------------------------------------ deployment
    def deploy(self, restore: SlotRestore | None) -> None:
        """Build, restore and open everything; sources stay quiet until `Start`. Reports SlotReady."""
        use_class_mapping(self._settings.class_mapping)
        restores = {} if restore is None else {(t.vertex, t.subtask): t for t in restore.tasks}
        for vertex_id, subtask in self._graph.tasks_of_slot(self._slot):
            task_restore = restores.get((vertex_id, subtask))
            self.tasks.append(self._make_task(self._graph.vertices[vertex_id], subtask, restore, task_restore))
        for task in reversed(self.tasks):
            task.chain.open()
        self._alignment = SourceAlignment([t.chain.source for t in self.tasks if t.chain.source is not None])
        self.report.watch([operator.context for task in self.tasks for operator in task.chain.operators])
        self._host.send_to_master(SlotReady(attempt=self._attempt, slot=self._slot))

    def _make_task(
        self, vertex: JobVertex, subtask: SubtaskIndex, restore: SlotRestore | None, task_restore: TaskRestore | None
    ) -> Task:
        graph, settings, host = self._graph, self._settings, self._host
        outputs = []
        for edge in graph.out_edges(vertex.vertex_id):
            channels = []
            for d in graph.downstream_subtasks(edge, subtask):
                address = ChannelAddress(edge.edge_id, subtask, d)
                channel = OutputChannel(address, settings.credits_per_channel, settings.batch_size)
                self._outputs[address] = channel
                target = graph.slot_of(edge.target, d)
                if target != self._slot:
                    self._remote[address] = target
                channels.append(channel)
            target_max = graph.vertices[edge.target].max_parallelism
            operator_name = vertex.operators[edge.source_operator].name
            outputs.append(make_edge_output(edge, channels, host.clock, operator_name, subtask, target_max))
        inputs: list[InputChannel] = []
        input_keys: dict[int, tuple[str, ChannelAddress]] = {}
        for edge in graph.in_edges(vertex.vertex_id):
            for u in graph.upstream_subtasks(edge, subtask):
                address = ChannelAddress(edge.edge_id, u, subtask)
                input_keys[len(inputs)] = (edge.key, address)
                inputs.append(InputChannel(address, len(inputs), edge.target_input, settings.credits_per_channel))
                source_slot = graph.slot_of(edge.source, u)
                if source_slot != self._slot:
                    self._input_from[address] = source_slot
        chain = OperatorChain(
            vertex, outputs, lambda i: self._operator_context(vertex, subtask, i, restore, task_restore)
        )
        task = Task(
            vertex=vertex,
            subtask=subtask,
            attempt=self._attempt,
            chain=chain,
            inputs=inputs,
            outputs=outputs,
            input_keys=input_keys,
            handler=self._barrier_handler(len(inputs)),
            clock=host.clock,
            storage=host.storage,
            run_async=host.run_async,
            send=host.send_to_master,
            batch_size=settings.batch_size,
            watermark_interval_ms=settings.watermark_interval_ms,
            trace=host.trace if settings.trace else None,
        )
        for into in inputs:
            self._inputs[into.address] = (task, into)
        if restore is not None and task_restore is not None:
            self._restore_channels(task, restore, task_restore)
            if settings.trace:
                host.trace(f"{task.name}: restored from checkpoint {restore.checkpoint_id}")
        return task

    def _barrier_handler(self, channels: int) -> BarrierHandler | None:
        if channels == 0:
            return None  # a savepoint may be asked for even when checkpointing is off
        return ExactlyOnceHandler(channels) if self._settings.exactly_once else BarrierTracker(channels)

    def _operator_context(
        self,
        vertex: JobVertex,
        subtask: SubtaskIndex,
        index: int,
        restore: SlotRestore | None,
        task_restore: TaskRestore | None,
    ) -> OperatorContext:
        node = vertex.operators[index]
        keyed = None
        if node.spec.keyed:
            groups = key_group_range(vertex.max_parallelism, vertex.parallelism, subtask)
            keyed = self._backends.make(node.name, groups, vertex.max_parallelism)
        operator_state = OperatorStateBackend(node.name)
        mine = None
        if task_restore is not None:
            mine = next((o for o in task_restore.operators if o.operator_id == node.operator_id), None)
        if restore is not None and mine is not None:
            check_internal(self._host.storage is not None, "a restore without a storage")
            source = self._host.storage.source(restore.root)  # type: ignore[union-attr]
            try:
                operator_state.restore(mine, source)
                if keyed is not None:
                    # Else the next snapshot must not refer to its files.
                    own = restore.owned and restore.root == self._plan.storage_root
                    keyed.restore(mine.keyed, source, continue_chain=own)
            except (SnapshotError, StateBackendError) as error:
                if keyed is not None:
                    keyed.dispose()
                raise RestoreFailure(node.name, subtask, restore.checkpoint_id, error) from error
        return OperatorContext(
            node=node,
            job_id=self._graph.job_id,
            task_name=vertex.name,
            subtask=subtask,
            parallelism=vertex.parallelism,
            max_parallelism=vertex.max_parallelism,
            attempt=self._attempt,
            clock=self._host.clock,
            keyed=keyed,
            operator_state=operator_state,
            run_async=self._host.run_async,
            run_coroutine=self._host.run_coroutine,
            send=self._host.send_to_master,
            checkpointing=self._settings.checkpointing,
            # An operator that the snapshot does not know starts afresh.
            restored_checkpoint=restore.checkpoint_id if restore is not None and mine is not None else None,
            settings=self._settings,
        )

    def _restore_channels(self, task: Task, restore: SlotRestore, task_restore: TaskRestore) -> None:
        task.restored_at_end = bool(task_restore.operators) and all(o.end_of_data for o in task_restore.operators)
        if not task_restore.channels and not task_restore.moved:
            return
        check_internal(self._host.storage is not None, "a restore without a storage")
        source = self._host.storage.source(restore.root)  # type: ignore[union-attr]
        edges = {e.key: e.edge_id for e in self._graph.edges}
        for state in task_restore.channels:
            address = ChannelAddress(edges[state.edge_key], state.upstream, state.downstream)
            try:
                elements = read_channel(state, source)
            except SnapshotError as error:
                name = task.vertex.operators[0].name
                raise RestoreFailure(name, task.subtask, restore.checkpoint_id, error) from error
            if state.side == "input":
                self._inputs[address][1].restore(elements)
            else:
                self._outputs[address].restore(elements)
        self._restore_moved(task, restore, task_restore.moved, source)

    def _restore_moved(self, task: Task, restore: SlotRestore, moved: list[MovedChannel], source: StateSource) -> None:
        """In-flight records of other subtasks, from before the parallelism was changed."""
        edges = {e.key: e for e in self._graph.edges}
        found: dict[ChannelAddress, list[Element]] = {}
        vertex = task.vertex
        groups = key_group_range(vertex.max_parallelism, vertex.parallelism, task.subtask)
        for one in moved:
            edge = edges[one.channel.edge_key]
            keys = OwnKeys(edge, vertex.max_parallelism, groups) if one.own_keys else None
            try:
                records = read_moved_records(one.channel, source, keys)
            except SnapshotError as error:
                raise RestoreFailure(vertex.operators[0].name, task.subtask, restore.checkpoint_id, error) from error
            address = ChannelAddress(edge.edge_id, one.upstream, task.subtask)
            found.setdefault(address, []).extend(records)
        for address, elements in found.items():
            self._inputs[address][1].restore(elements)
            task.restored_first = True

    # ------------------------------------------------------------ messages and frames
    def on_message(self, message: MasterToSlot) -> None:
        """A control message after Deploy (Leave is the host's business)."""
        if message.attempt != self._attempt:
            return
        now = self._host.clock.now_ms()
        match message:
            case Start():
                for task in self.tasks:
                    task.start()
            case TriggerCheckpoint(barrier=barrier):
                for task in self.tasks:
                    if task.vertex.is_source:
                        task.trigger_checkpoint(barrier, now)
            case DrainSources():
                for task in self.tasks:
                    task.drain()
            case NotifyCheckpointComplete(checkpoint_id=n):
                for task in self.tasks:
                    task.checkpoint_complete(n)
            case NotifyCheckpointAborted(checkpoint_id=n):
                for task in self.tasks:
                    task.checkpoint_aborted(n, now)
            case CollectAck(operator_id=operator_id, seq=seq):
                for task in self.tasks:
                    for operator in task.chain.operators:
                        if isinstance(operator, CollectOperator) and operator.node.operator_id == operator_id:
                            operator.acknowledged(seq)
            case WatermarkLimits(limits=limits):
                self._alignment.on_limits(limits)
            case Finish():
                for task in self.tasks:
                    task.chain.commit_all()
                self._finishing = True
            case MasterHeartbeat():
                pass
        self._pump_all()

    def on_frame(self, frame: Frame) -> None:
        """A frame from another slot. One of an old attempt is dropped: it is fenced."""
        if frame.attempt != self._attempt:
            return
        if frame.kind == CREDIT:
            channel = self._outputs[frame.address]
            channel.grant(frame.records)
            self._pump(channel)
            return
        task, into = self._inputs[frame.address]
        try:
            element = deserialize(frame.kind, frame.payload)
        except Exception as error:
            raise OperatorFailure(
                task.vertex.operators[0].name, task.subtask, "unpickling records from another worker", error
            ) from error
        self._receive(task, into, element)

    def _receive(self, task: Task, channel: InputChannel, element: Element) -> None:
        channel.receive(element)
        if isinstance(element, CheckpointBarrier):
            task.barrier_arrived(channel, element, self._host.clock.now_ms())

    # ------------------------------------------------------------ work
    def step(self) -> bool:
        """One round over all tasks, downstream first so that data drains. False: nothing could be done."""
        worked = False
        clock = self._host.clock
        for task in reversed(self.tasks):
            if task.step(clock.now_ms()):
                worked = True
                self._after_step(task)
        now = clock.now_ms()
        for task in self.tasks:
            if task.tick(now):
                self._after_step(task)
            self._flush_due(task, now)
        watermarks = self._alignment.report_if_due(now)
        if watermarks is not None:
            self._host.send_to_master(WatermarkReport(attempt=self._attempt, slot=self._slot, watermarks=watermarks))
        self.report.refresh_if_due(now)
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
        for channel in task.out_channels:
            if channel.oldest_ms is not None and channel.address not in self._remote:
                channel.flush()  # a local hand-over costs nothing: no reason to wait for a full batch
            if channel.queue:
                self._pump(channel)
        if task.out_channels:
            task.outputs_moved()
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
            task.outputs_moved()

    def _pump_all(self) -> None:
        for task in self.tasks:
            for channel in task.out_channels:
                if channel.queue:
                    self._pump(channel)
            task.outputs_moved()

    def _pump(self, channel: OutputChannel) -> None:
        """Send whatever the channel's credits allow."""
        address = channel.address
        remote = self._remote.get(address)
        if remote is None:
            task, into = self._inputs[address]
            for element in channel.take_sendable():
                self._receive(task, into, element)
            return
        for element in channel.take_sendable():
            try:
                kind, count, payload = serialize(element)
            except Exception as error:
                edge = self._graph.edges[address.edge]
                name = self._graph.vertices[edge.source].operators[edge.source_operator].name
                raise OperatorFailure(
                    name, address.upstream, "pickling its results for another worker", error
                ) from error
            if len(payload) > self._settings.max_batch_bytes and count > 1:
                channel.batch_size = max(1, count * self._settings.max_batch_bytes // len(payload))
            self._host.transport.send(remote, Frame(kind, self._attempt, self._slot, 0, address, count, payload))

    def _return_credits(self, channel: InputChannel) -> None:
        source = self._input_from.get(channel.address)
        if source is None:
            self._outputs[channel.address].grant(channel.take_owed())
        elif channel.owed * 2 >= channel.capacity:
            count = channel.take_owed()
            self._host.transport.send(source, Frame(CREDIT, self._attempt, self._slot, 0, channel.address, count, b""))

    # ------------------------------------------------------------ end
    def _close_after_finish(self) -> None:
        for task in self.tasks:
            check_internal(task.at_rest, f"{task.name} is told to finish in state {task.state}")
            task.close()
        self.finished = True
        metrics, accumulators = self.report.final()
        finished = SlotFinished(
            attempt=self._attempt, slot=self._slot, accumulators=accumulators, metrics={**self.metrics, **metrics}
        )
        self._host.send_to_master(finished)

    def close(self) -> None:
        """Close what is open, whatever happens; for a slot that leaves early."""
        for task in self.tasks:
            with contextlib.suppress(Exception):  # the attempt is over: its first failure has been reported
                task.close()

    @property
    def metrics(self) -> dict[str, float]:
        """Read by the control thread too."""
        read = {f"{t.vertex.vertex_id}.{t.subtask}.records_in": float(t.records_in) for t in self.tasks}
        return read | self.report.metrics

    def check_invariants(self) -> None:
        for output in self._outputs.values():
            output.check_invariants()
        for address, (_, into) in self._inputs.items():
            if address not in self._input_from:
                total = self._outputs[address].credits + into.held + into.owed
                check_internal(total == into.capacity, f"channel {address}: {total} of {into.capacity} credits")

    def vertex_task(self, vertex: VertexId) -> Task | None:
        return next((t for t in self.tasks if t.vertex.vertex_id == vertex), None)
