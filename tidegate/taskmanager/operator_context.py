"""What an operator is given: its place in the job, its state, and what it may ask from whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidegate.common.accumulators import Accumulator
from tidegate.common.errors import check_internal
from tidegate.common.ids import CheckpointId
from tidegate.common.metrics import MetricGroup
from tidegate.contracts.state import StateDescriptor
from tidegate.graph.job_graph import OperatorNode
from tidegate.graph.task_place import TaskPlace
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.keyed_states import NamespaceCursor
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.taskmanager.services import OperatorServices
from tidegate.taskmanager.state_watch import MutationWatch


@dataclass(frozen=True)
class OperatorStates:
    """The state of one operator in one subtask, restored if there is anything to restore."""

    keyed: KeyedStateBackend | None  # of operators on keyed streams
    operator_state: OperatorStateBackend
    restored_checkpoint: CheckpointId | None  # None: the operator starts afresh


class OperatorContext:
    """Everything an operator may know of and ask from its place in the job."""

    def __init__(
        self,
        node: OperatorNode,
        place: TaskPlace,
        services: OperatorServices,
        states: OperatorStates,
        settings: RuntimeSettings,
    ) -> None:
        self.node = node
        self.job_id = place.job_id
        self.task_name = place.vertex.name
        self.subtask = place.subtask
        self.parallelism = place.vertex.parallelism
        self.max_parallelism = place.vertex.max_parallelism
        self.attempt = place.attempt
        self.clock = services.clock
        self.limit = services.limit
        self.run_async = services.run_async
        self.run_coroutine = services.run_coroutine
        self.results = services.results
        self.post = services.post
        self.warn = services.warn
        self.keyed = states.keyed
        self.operator_state = states.operator_state
        self.restored_checkpoint = states.restored_checkpoint
        self.settings = settings
        self.watch = MutationWatch(node.name) if settings.check_mutations else None  # of keyed state
        self.metrics = MetricGroup((node.name, str(place.subtask)))  # of the user's function
        self.accumulators: dict[str, Accumulator] = {}  # likewise
        self.sink_owner: str | None = None  # under which sinks name what they write; None: the operator's id

    def keyed_state(self, descriptor: StateDescriptor, namespaced: bool = False) -> Any:
        """The state object for user code, and for what hands out the objects that it keeps."""
        backend = self.keyed
        check_internal(backend is not None, f"'{self.node.name}' has no keyed state")
        state = backend.get_state(descriptor, namespaced)  # type: ignore[union-attr]
        if self.watch is None:
            return state
        if namespaced:
            return self.watch.watched(state, descriptor.get_name(), lambda: NamespaceCursor(backend).current_key)  # type: ignore[arg-type]
        return self.watch.watched(state, descriptor.get_name(), lambda: backend.current_key)  # type: ignore[union-attr]
