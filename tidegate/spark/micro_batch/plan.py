"""What a micro-batch job is told: the graph with its places in Spark's shuffles, limits, and where its state begins."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field

import msgspec

from tidegate.common.errors import InternalError
from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph, JobVertex
from tidegate.jobmanager.state_assignment import StateAssigner
from tidegate.spark.micro_batch.places import pick_places
from tidegate.storage.handles import TaskRestore
from tidegate.taskmanager.deployment import RuntimeSettings


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The order for one batch, the same when the batch is run again: it is in Spark's offset log."""

    batch: int
    time_ms: int
    savepoint: str = ""  # URI of the folder for a savepoint at the end of the batch
    permissions: str = ""  # of that folder
    drain: bool = False  # the sources end here

    @property
    def checkpoint_id(self) -> CheckpointId:
        """Under which functions and sinks know the batch."""
        return CheckpointId(self.batch + 1)


@dataclass(frozen=True)
class Limits:
    max_records: int  # that all subtasks of a source read in one batch, about
    buckets: int  # of keys, for each keyed operator, at least


@dataclass(frozen=True)
class MicroBatchPlan:
    graph: JobGraph
    settings: RuntimeSettings
    limits: Limits
    places: dict[tuple[int, int], int]  # (vertex, subtask) -> see `places`
    restores: dict[tuple[int, int], TaskRestore] = field(default_factory=dict)  # what the first batch starts from
    restored_id: CheckpointId | None = None  # of that snapshot
    restore_root: str = ""  # URI that the handles in `restores` are relative to

    def buckets_per_group(self, vertex: JobVertex) -> int:
        return -(-self.limits.buckets // vertex.max_parallelism)

    def max_records(self, vertex: JobVertex) -> int:
        """Of one subtask of a source."""
        return max(1, self.limits.max_records // vertex.parallelism)


def width(graph: JobGraph) -> int:
    return max(vertex.parallelism for vertex in graph.vertices)


def plan_job(
    graph: JobGraph,
    settings: RuntimeSettings,
    limits: Limits,
    point: RestorePoint | None = None,
    allow_non_restored: bool = False,
) -> MicroBatchPlan:
    """SnapshotError when `point` does not fit the graph."""
    places = pick_places(((int(v), int(i)) for v, i in graph.all_tasks()), width(graph))
    plan = MicroBatchPlan(graph, settings, limits, places)
    if point is None:
        return plan
    restores: dict[tuple[int, int], TaskRestore] = {}
    for slot in StateAssigner(graph, allow_non_restored).assign(point).values():
        for task in slot.tasks:
            if task.channels or task.moved:
                raise InternalError("in-flight records were let through to a micro-batch job")
            restores[int(task.vertex), int(task.subtask)] = task
    return dataclasses.replace(plan, restores=restores, restored_id=point.checkpoint_id, restore_root=point.root)


def fingerprint(graph: JobGraph, limits: Limits) -> dict[str, str]:
    """What must be the same for a job that goes on in a checkpoint location: operator or setting -> its value."""
    known: dict[str, str] = {}
    for vertex in graph.vertices:
        for number, node in enumerate(vertex.operators):
            known[f"operator '{node.name}' ({node.operator_id})"] = (
                f"place {vertex.vertex_id}.{number}, parallelism {vertex.parallelism}, "
                f"max parallelism {vertex.max_parallelism}"
            )
    edges = json.dumps([[edge.key, edge.partition.kind.value] for edge in graph.edges])
    known["the edges between the operators"] = hashlib.sha256(edges.encode()).hexdigest()[:16]
    known["tidegate.micro-batch.buckets"] = str(limits.buckets)
    return known
