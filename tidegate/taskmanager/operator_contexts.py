"""The one factory of operator contexts, for the slots of a streaming job and for the tasks of a batch job."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.common.errors import SnapshotError, StateBackendError
from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.graph.job_graph import OperatorNode
from tidegate.graph.task_place import TaskPlace
from tidegate.state.backend import KeyedStateBackend, StateSource
from tidegate.state.factory import KeyedBackends
from tidegate.state.key_groups import key_group_range
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.storage.calls import on_behalf_of
from tidegate.storage.handles import OperatorRestore
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.taskmanager.failure import RestoreFailure
from tidegate.taskmanager.operator_context import OperatorContext, OperatorStates
from tidegate.taskmanager.services import OperatorServices


@dataclass(frozen=True)
class RestoredStates:
    """The part of a snapshot that belongs to one task."""

    checkpoint_id: CheckpointId
    source: StateSource
    operators: dict[OperatorId, OperatorRestore]
    continue_chain: bool  # the next snapshot may refer to the files of this one


class OperatorContexts:
    """Makes the contexts of one task's operators, each with a state backend that holds what was restored."""

    def __init__(
        self,
        place: TaskPlace,
        services: OperatorServices,
        backends: KeyedBackends,
        settings: RuntimeSettings,
        restored: RestoredStates | None = None,
    ) -> None:
        self._place = place
        self._services = services
        self._backends = backends
        self._settings = settings
        self._restored = restored

    def make(self, index: int) -> OperatorContext:
        """For the operator at this place of the chain. Raises RestoreFailure when its state cannot be read."""
        node = self._place.vertex.operators[index]
        return OperatorContext(node, self._place, self._services, self._states(node), self._settings)

    def _states(self, node: OperatorNode) -> OperatorStates:
        vertex = self._place.vertex
        keyed = None
        if node.spec.keyed:
            groups = key_group_range(vertex.max_parallelism, vertex.parallelism, self._place.subtask)
            keyed = self._backends.make(node.name, groups, vertex.max_parallelism)
        operator_state = OperatorStateBackend(node.name)
        restored = self._restored
        # An operator that the snapshot does not know starts afresh.
        if restored is None or node.operator_id not in restored.operators:
            return OperatorStates(keyed, operator_state, None)
        self._restore(node, keyed, operator_state, restored)
        return OperatorStates(keyed, operator_state, restored.checkpoint_id)

    def _restore(
        self,
        node: OperatorNode,
        keyed: KeyedStateBackend | None,
        operator_state: OperatorStateBackend,
        restored: RestoredStates,
    ) -> None:
        mine = restored.operators[node.operator_id]
        who = f"operator '{node.name}' (subtask {self._place.subtask}), restoring checkpoint {restored.checkpoint_id}"
        try:
            with on_behalf_of(who):
                operator_state.restore(mine, restored.source)
                if keyed is not None:
                    keyed.restore(mine.keyed, restored.source, continue_chain=restored.continue_chain)
        except (SnapshotError, StateBackendError) as error:
            if keyed is not None:
                keyed.dispose()
            raise RestoreFailure(node.name, self._place.subtask, restored.checkpoint_id, error) from error
