"""Builds the tasks of a slot: channels, operators with their restored state, the model of fault tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidegate.common.errors import InternalError, SnapshotError
from tidegate.common.ids import AttemptNumber, ChannelAddress, SlotIndex
from tidegate.fault_tolerance.barriers.task import BarrierTaskSide
from tidegate.fault_tolerance.none.task import Unprotected
from tidegate.fault_tolerance.task_side import TaskModel, TaskSide
from tidegate.graph.job_graph import JobEdge
from tidegate.graph.task_place import TaskPlace
from tidegate.network.channels import InputChannel, OutputChannel
from tidegate.protocol.messages import SlotWarning
from tidegate.state.backend import StateSource
from tidegate.state.factory import KeyedBackends
from tidegate.storage.handles import SlotRestore, TaskRestore
from tidegate.taskmanager.chain import OperatorChain
from tidegate.taskmanager.deployment import SlotPlan
from tidegate.taskmanager.edge_output import EdgeOutput, make_edge_output
from tidegate.taskmanager.failure import RestoreFailure
from tidegate.taskmanager.model_port import ModelPort
from tidegate.taskmanager.operator_contexts import OperatorContexts, RestoredStates
from tidegate.taskmanager.result_port import JobManagerResults
from tidegate.taskmanager.services import TaskServices
from tidegate.taskmanager.slot_host import SlotHost
from tidegate.taskmanager.task import Task, TaskChannels
from tidegate.taskmanager.time_limit import TimeLimit


@dataclass
class SlotChannels:
    """All channels that begin or end in a slot."""

    inputs: dict[ChannelAddress, tuple[Task, InputChannel]] = field(default_factory=dict)  # those that end here
    outputs: dict[ChannelAddress, OutputChannel] = field(default_factory=dict)  # those that begin here
    remote: dict[ChannelAddress, SlotIndex] = field(default_factory=dict)  # outputs that leave the slot, and where to
    input_from: dict[ChannelAddress, SlotIndex] = field(default_factory=dict)  # inputs from another slot, and which


class SlotBuilder:
    """`build` is called once. It adds the channels of each task to `channels`."""

    def __init__(
        self,
        slot: SlotIndex,
        attempt: AttemptNumber,
        plan: SlotPlan,
        host: SlotHost,
        channels: SlotChannels,
        limit: TimeLimit,
    ) -> None:
        self._slot = slot
        self._attempt = attempt
        self._plan = plan
        self._graph = plan.graph
        self._settings = plan.settings
        self._channels = channels
        self._operator_made = host.operator_made
        results = JobManagerResults(attempt, host.send_to_master)

        def warn(text: str) -> None:
            host.send_to_master(SlotWarning(attempt=attempt, slot=slot, text=text))

        self._services = TaskServices(
            host.clock, host.run_async, host.run_coroutine, results, host.post, warn, host.send_to_master, limit=limit
        )
        self._model = pick_model(plan, host.trace if plan.settings.trace else None)
        storage = plan.storage
        increments = plan.settings.max_increments if storage is not None and storage.supports_increments else 0
        self._backends = KeyedBackends(
            plan.settings.state_backend, plan.settings.rocksdb, increments, lambda: host.clock.now_ms()
        )

    def build(self, restore: SlotRestore | None) -> Iterator[Task]:
        """The tasks, upstream first, each with its state. Raises RestoreFailure when a state cannot be read; the tasks
        before are the caller's to close then."""
        source = None if restore is None else self._source(restore)
        restores = {} if restore is None else {(t.vertex, t.subtask): t for t in restore.tasks}
        for vertex_id, subtask in self._graph.tasks_of_slot(self._slot):
            place = TaskPlace(self._graph.job_id, self._graph.vertices[vertex_id], subtask, self._attempt)
            mine = restores.get((vertex_id, subtask))
            if restore is None or source is None or mine is None:
                yield self._make_task(place, None)
            else:
                yield self._restored_task(place, restore, mine, source)

    def _source(self, restore: SlotRestore) -> StateSource:
        if self._plan.storage is None:
            raise InternalError("a restore without a storage")
        return self._plan.storage.source(restore.root)

    def _restored_task(self, place: TaskPlace, restore: SlotRestore, mine: TaskRestore, source: StateSource) -> Task:
        states = RestoredStates(
            checkpoint_id=restore.checkpoint_id,
            source=source,
            operators={o.operator_id: o for o in mine.operators},
            continue_chain=restore.owned and restore.root == self._plan.storage_root,
        )
        task = self._make_task(place, states)
        task.restored_at_end = bool(mine.operators) and all(o.end_of_data for o in mine.operators)
        try:
            task.model.restore(restore.checkpoint_id, mine, source)
        except SnapshotError as error:
            name = place.vertex.operators[0].name
            raise RestoreFailure(name, place.subtask, restore.checkpoint_id, error) from error
        return task

    def _make_task(self, place: TaskPlace, restored: RestoredStates | None) -> Task:
        vertex = place.vertex
        outputs = [self._edge_output(place, edge) for edge in self._graph.out_edges(vertex.vertex_id)]
        inputs: list[InputChannel] = []
        names: list[str] = []
        for edge in self._graph.in_edges(vertex.vertex_id):
            for upstream in self._graph.upstream_subtasks(edge, place.subtask):
                address = ChannelAddress(edge.edge_id, upstream, place.subtask)
                credits = self._settings.credits_per_channel
                inputs.append(InputChannel(address, len(inputs), edge.target_input, credits))
                names.append(f"{edge.key}/{upstream}")
                slot = self._graph.slot_of(edge.source, upstream)
                if slot != self._slot:
                    self._channels.input_from[address] = slot
        contexts = OperatorContexts(place, self._services, self._backends, self._settings, restored)
        chain = OperatorChain(vertex, outputs, contexts.make, self._operator_made)
        channels = TaskChannels(inputs, outputs, names)
        task = Task(place, chain, channels, self._services, self._settings, self._make_side)
        for into in inputs:
            self._channels.inputs[into.address] = (task, into)
        return task

    def _edge_output(self, place: TaskPlace, edge: JobEdge) -> EdgeOutput[OutputChannel]:
        graph, settings = self._graph, self._settings
        channels: list[OutputChannel] = []
        local: int | None = None
        for downstream in graph.downstream_subtasks(edge, place.subtask):
            address = ChannelAddress(edge.edge_id, place.subtask, downstream)
            channel = self._model.output_channel(
                address, settings.credits_per_channel, settings.batch_size, settings.max_batch_bytes
            )
            self._channels.outputs[address] = channel
            slot = graph.slot_of(edge.target, downstream)
            if slot != self._slot:
                self._channels.remote[address] = slot
            else:
                local = len(channels)
            channels.append(channel)
        name = place.vertex.operators[edge.source_operator].name
        groups = graph.vertices[edge.target].max_parallelism
        output = make_edge_output(edge, channels, self._services.clock, name, place.subtask, groups)
        output.local, output.copies = local, not settings.object_reuse
        return output

    def _make_side(self, task: Task) -> TaskSide:
        return self._model.make(ModelPort(task, self._services, self._graph.edges))


def pick_model(plan: SlotPlan, trace: Callable[[str], None] | None) -> TaskModel:
    """Barriers also when checkpointing is off, since a savepoint may be asked for. Without a storage there is nowhere
    to put one."""
    storage = plan.storage
    if storage is None:
        return TaskModel(lambda port: Unprotected())
    return TaskModel(lambda port: BarrierTaskSide(port, storage, plan.settings.exactly_once, trace))
