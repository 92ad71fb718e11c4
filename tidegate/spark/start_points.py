"""What a job of BATCH or MICRO_BATCH mode starts from: a savepoint, or a checkpoint with nothing in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.common import options
from tidegate.common.configuration import Configuration
from tidegate.common.errors import ConfigurationError, check_internal
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.starting_points import storage_options
from tidegate.jobmanager.state_assignment import assign_state
from tidegate.storage.handles import TaskRestore
from tidegate.storage.location import StorageLocation
from tidegate.storage.metadata import read_metadata
from tidegate.storage.worker_storage import file_source
from tidegate.taskmanager.operator_contexts import RestoredStates


@dataclass(frozen=True)
class StartState:
    """The state that the subtasks of a job begin with."""

    checkpoint_id: CheckpointId  # of the snapshot
    root: str  # URI that the handles in `tasks` are relative to
    tasks: dict[tuple[int, int], TaskRestore]  # (vertex, subtask) -> its part; nothing for those that have none
    options: dict[str, str] = field(default_factory=dict, repr=False)  # to reach it, with keys

    def of_vertex(self, vertex: int) -> StartState:
        tasks = {task: restore for task, restore in self.tasks.items() if task[0] == vertex}
        return StartState(self.checkpoint_id, self.root, tasks, self.options)

    def of_task(self, vertex: int, subtask: int) -> RestoredStates | None:
        restore = self.tasks.get((vertex, subtask))
        if restore is None:
            return None
        operators = {operator.operator_id: operator for operator in restore.operators}
        return RestoredStates(self.checkpoint_id, file_source(self.root, self.options), operators, False)


def initial_point(configuration: Configuration, mode: str) -> RestorePoint | None:
    """What the configuration names. Refuses a snapshot with records that were on their way."""
    path = options.read(configuration, options.RECOVERY_PATH)
    if not path:
        return None
    loaded = read_metadata(path, storage_options(configuration))
    if loaded.metadata.channels:
        raise ConfigurationError(
            f"{options.RECOVERY_PATH.key}: {path} is a checkpoint that holds records that were on their way; a {mode} "
            "job has nowhere to put them. Start it from a savepoint, or from a checkpoint without such records"
        )
    return RestorePoint(loaded.metadata, str(loaded.root), owned=False)


def start_options(configuration: Configuration) -> dict[str, str]:
    """With which the workers reach what `initial_point` has found: it is noted without keys. Those in its own URI win
    over those of the folder for checkpoints."""
    path = options.read(configuration, options.RECOVERY_PATH)
    return storage_options(configuration) | (dict(StorageLocation.parse(path).options) if path else {})


def start_state(
    graph: JobGraph, point: RestorePoint, allow_non_restored: bool, reached: Mapping[str, str] | None = None
) -> StartState:
    """SnapshotError when `point` does not fit the graph. `reached`: `start_options`."""
    tasks: dict[tuple[int, int], TaskRestore] = {}
    for slot in assign_state(graph, point, allow_non_restored).values():
        for task in slot.tasks:
            check_internal(not task.channels and not task.moved, "in-flight records were let through")
            tasks[int(task.vertex), int(task.subtask)] = task
    return StartState(point.checkpoint_id, point.root, tasks, dict(reached or {}))
