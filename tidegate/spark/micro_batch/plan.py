"""What a micro-batch job is told: the graph with its places in Spark's shuffles, limits, and where its state begins."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tidegate.common.ids import CheckpointId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph, JobVertex
from tidegate.spark.micro_batch.looks import Look
from tidegate.spark.micro_batch.places import pick_places
from tidegate.spark.micro_batch.savepoint_storage import SavepointStorage
from tidegate.spark.start_points import StartState, start_state
from tidegate.taskmanager.deployment import RuntimeSettings


class SplitOrder(msgspec.Struct, frozen=True):
    """Splits that one source has found."""

    splits: list[tuple[int, str]]  # (subtask, the pickled split in base64)
    complete: bool  # no others will come


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The order for one batch, the same when the batch is run again: it is in Spark's offset log."""

    batch: int
    time_ms: int
    savepoint: str = ""  # URI of the folder for a savepoint at the end of the batch
    permissions: str = ""  # of that folder
    drain: bool = False  # the sources end here
    splits: dict[str, SplitOrder] = {}  # by operator id
    looks: list[Look] = []  # what somebody wants to know of the state at the end of the batch

    @property
    def checkpoint_id(self) -> CheckpointId:
        """Under which functions and sinks know the batch."""
        return CheckpointId(self.batch + 1)


@dataclass(frozen=True)
class Limits:
    max_records: int  # that all subtasks of a source read in one batch, about
    buckets: int  # of keys, for each keyed operator, at least
    max_bytes: int = 1 << 62  # that one subtask of a source reads in one batch, about


@dataclass(frozen=True)
class MicroBatchPlan:
    graph: JobGraph
    settings: RuntimeSettings
    limits: Limits
    places: dict[tuple[int, int], int]  # (vertex, subtask) -> see `places`
    start: StartState | None = None  # what the first batch begins with
    prints_on_driver: bool = False  # what print sinks write is part of the report
    savepoints: SavepointStorage = field(default_factory=SavepointStorage)
    revoked: frozenset[str] = frozenset()  # savepoints that are not to be taken, whatever an order says

    def in_force(self, tick: Tick) -> Tick:
        """What is left of an order. It is in Spark's log, and cannot be changed there."""
        if tick.savepoint not in self.revoked:
            return tick
        return msgspec.structs.replace(tick, savepoint="", drain=False)

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
    reached: Mapping[str, str] | None = None,
) -> MicroBatchPlan:
    """SnapshotError when `point` does not fit the graph. `reached`: `start_options`."""
    places = pick_places(((int(v), int(i)) for v, i in graph.all_tasks()), width(graph))
    start = None if point is None else start_state(graph, point, allow_non_restored, reached)
    return MicroBatchPlan(graph, settings, limits, places, start)


def key_groups(graph: JobGraph) -> dict[str, int]:
    """Operator id -> how many its keys are in."""
    return {str(node.operator_id): v.max_parallelism for v in graph.vertices for node in v.operators}


def adopt_key_groups(graph: JobGraph, known: Mapping[str, int]) -> JobGraph:
    """The graph with those that a job has that goes on, wherever the program does not ask for others: it may have them
    from a savepoint that this start does not name any more."""
    vertices = []
    for vertex in graph.vertices:
        found = {known[str(node.operator_id)] for node in vertex.operators if str(node.operator_id) in known}
        if vertex.max_parallelism_derived and len(found) == 1 and max(found) >= vertex.parallelism:
            vertex = dataclasses.replace(vertex, max_parallelism=found.pop())
        vertices.append(vertex)
    return dataclasses.replace(graph, vertices=tuple(vertices))


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
