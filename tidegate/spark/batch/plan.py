"""From the job graph to what each task of a batch job is told. Pure.

A vertex with several consumers numbers them; every block says which one it is for. What tasks have to say to the
driver (the *report*) travels along: to the first consumer of each vertex, from there to its first consumer, and so on,
until it comes out behind the vertices that nobody reads. So it goes through the shuffles like everything else, and
exactly those attempts are in it whose output counts.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.errors import ConfigurationError, JobGraphError
from tidegate.common.watermark_strategy import WatermarkKind
from tidegate.graph.boundedness import unbounded_sources
from tidegate.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorNode, PartitionKind
from tidegate.graph.operator_specs import AssignTimestampsSpec, AsyncSpec, ReduceSpec, SourceSpec
from tidegate.spark.batch.blocks import MAX_CONSUMERS, NO_GROUP
from tidegate.spark.batch.combining import combinable
from tidegate.spark.batch.order import OrderLayout, Phase
from tidegate.spark.start_points import StartState
from tidegate.storage.location import StorageLocation, beside
from tidegate.taskmanager.deployment import RuntimeSettings

REPORT_NAME = "the report"
_MAX_CHANNELS = 512  # of one keyed edge and producer: more would make many small blocks


@dataclass(frozen=True)
class OutputPlan:
    """One edge, as its producers see it."""

    edge: JobEdge
    consumer: int  # number of the target among the consumers of the source
    consumer_name: str
    layout: OrderLayout
    first_producer: int  # number of the edge's subtask 0 among all producers of the target
    phase: Phase
    targets: tuple[tuple[int, ...], ...]  # by upstream subtask: the subtasks that it has something for
    groups: int  # per target subtask; 0: the target does not read by groups
    max_parallelism: int  # of the target
    combined_for: OperatorNode | None  # the target's head, when its work can begin before the shuffle


@dataclass(frozen=True)
class ReportPlan:
    """Where the reports of a vertex's tasks go, and those that it passes on."""

    consumer: int
    consumer_name: str
    layout: OrderLayout
    first_producer: int
    targets: int  # reports are spread over as many subtasks


@dataclass(frozen=True)
class SavepointPlan:
    target: str  # URI of the folder
    timestamp: int  # ms since the epoch
    permissions: str  # who may read it, see storage.files
    options: dict[str, str] = field(default_factory=dict, repr=False)  # to reach it, with keys

    @property
    def location(self) -> StorageLocation:
        return beside(self.target, self.options).with_permissions(self.permissions)


@dataclass(frozen=True)
class VertexPlan:
    job_id: str
    vertex: JobVertex
    outputs: tuple[OutputPlan, ...]
    report: ReportPlan
    input_names: tuple[tuple[str, ...], ...]  # by subtask: its input channels, as a streaming job names them
    settings: RuntimeSettings
    buffer_bytes: int
    savepoint: SavepointPlan | None = None
    start: StartState | None = None  # of its subtasks
    prints_on_driver: bool = False  # what print sinks write is part of the report

    @property
    def keyed(self) -> bool:
        return self.vertex.operators[0].spec.keyed


@dataclass(frozen=True)
class BatchPlan:
    graph: JobGraph
    vertices: tuple[VertexPlan, ...]
    consumers: tuple[tuple[int, ...], ...]  # by vertex: the vertices that read it, in the order of their numbers

    @property
    def ends(self) -> list[int]:
        """The vertices that nobody reads: the report comes out of these."""
        return [i for i, readers in enumerate(self.consumers) if not readers]


def check_bounded(graph: JobGraph) -> None:
    names = unbounded_sources(graph)
    if names:
        which = ", ".join(f"'{name}'" for name in names)
        plural = "sources that never end" if len(names) > 1 else "a source that never ends"
        raise ConfigurationError(
            f"the job cannot run in BATCH mode, because it has {plural}: {which}. Give it an end, or run the job in "
            "STREAMING mode (execution.runtime-mode; AUTOMATIC chooses by the sources)"
        )


def plan_job(
    graph: JobGraph,
    settings: RuntimeSettings,
    buffer_bytes: int,
    savepoint: SavepointPlan | None,
    start: StartState | None = None,
) -> BatchPlan:
    graph = dataclasses.replace(graph, vertices=tuple(_prepared(v, savepoint is not None) for v in graph.vertices))
    consumers = tuple(tuple(dict.fromkeys(int(e.target) for e in graph.out_edges(v.vertex_id))) for v in graph.vertices)
    if max(map(len, consumers)) >= MAX_CONSUMERS:
        raise JobGraphError(f"an operator has {max(map(len, consumers))} consumers, which is too many in BATCH mode")
    inputs = [_Inputs(graph, v) for v in graph.vertices]
    end = _end_of_report(graph, consumers)
    plans = []
    for vertex, readers in zip(graph.vertices, consumers, strict=True):
        outputs = tuple(
            inputs[edge.target].output_plan(graph, edge, readers.index(edge.target))
            for edge in graph.out_edges(vertex.vertex_id)
        )
        plans.append(
            VertexPlan(
                job_id=graph.job_id,
                vertex=vertex,
                outputs=outputs,
                report=_report_plan(graph, readers, outputs) if readers else end[vertex.vertex_id],
                input_names=_input_names(graph, vertex),
                settings=settings,
                buffer_bytes=buffer_bytes,
                savepoint=savepoint,
                start=None if start is None else start.of_vertex(int(vertex.vertex_id)),
            )
        )
    return BatchPlan(graph, tuple(plans), consumers)


class _Inputs:
    """How one vertex reads its input edges."""

    def __init__(self, graph: JobGraph, vertex: JobVertex) -> None:
        self._vertex = vertex
        edges = graph.in_edges(vertex.vertex_id)
        first = _first_input(edges)
        edges.sort(key=lambda e: (e.target_input, e.edge_id))  # of two inputs, the first comes first
        self._phases = {e.edge_id: Phase.FIRST if e.target_input == first else Phase.DATA for e in edges}
        self._first_producers: dict[int, int] = {}
        producers = 0
        for edge in edges:
            self._first_producers[edge.edge_id] = producers
            producers += graph.vertices[edge.source].parallelism
        p = vertex.parallelism
        self._keyed = vertex.operators[0].spec.keyed
        by_key = self._keyed and any(e.partition.kind is PartitionKind.HASH for e in edges)
        self._groups = min(-(-vertex.max_parallelism // p), max(1, _MAX_CHANNELS // p)) if by_key else 1
        self._layout = OrderLayout(self._groups, max(1, producers))
        self._layout.check(vertex.name)

    def output_plan(self, graph: JobGraph, edge: JobEdge, consumer: int) -> OutputPlan:
        hashed = edge.partition.kind is PartitionKind.HASH
        upstream = graph.vertices[edge.source].parallelism
        head = self._vertex.operators[0]
        grouped = self._keyed and self._phases[edge.edge_id] is Phase.DATA
        return OutputPlan(
            edge=edge,
            consumer=consumer,
            consumer_name=self._vertex.name,
            layout=self._layout,
            first_producer=self._first_producers[edge.edge_id],
            phase=self._phases[edge.edge_id],
            targets=tuple(tuple(graph.downstream_subtasks(edge, u)) for u in range(upstream)),  # type: ignore[arg-type]
            groups=(self._groups if hashed else 1) if grouped else 0,
            max_parallelism=self._vertex.max_parallelism,
            combined_for=head if combinable(edge, head) else None,
        )


def group_number(output: OutputPlan, local: int) -> int:
    """What the header of a block says."""
    return local if output.groups else NO_GROUP


def _first_input(edges: list[JobEdge]) -> int | None:
    """The input that is broadcast while the other is not: it is read wholly before."""
    kinds: dict[int, set[bool]] = {}
    for edge in edges:
        kinds.setdefault(edge.target_input, set()).add(edge.partition.kind is PartitionKind.BROADCAST)
    broadcast = [i for i, seen in kinds.items() if seen == {True}]
    return broadcast[0] if len(kinds) == 2 and len(broadcast) == 1 else None


def _report_plan(graph: JobGraph, readers: tuple[int, ...], outputs: tuple[OutputPlan, ...]) -> ReportPlan:
    way = next(o for o in outputs if o.edge.target == readers[0])
    parallelism = graph.vertices[readers[0]].parallelism
    return ReportPlan(0, way.consumer_name, way.layout, way.first_producer, parallelism)


def _end_of_report(graph: JobGraph, consumers: tuple[tuple[int, ...], ...]) -> dict[int, ReportPlan]:
    ends = [v for v, readers in zip(graph.vertices, consumers, strict=True) if not readers]
    layout = OrderLayout(1, sum(v.parallelism for v in ends))
    layout.check(REPORT_NAME)
    plans, first = {}, 0
    for vertex in ends:
        plans[int(vertex.vertex_id)] = ReportPlan(0, REPORT_NAME, layout, first, 1)
        first += vertex.parallelism
    return plans


def _input_names(graph: JobGraph, vertex: JobVertex) -> tuple[tuple[str, ...], ...]:
    edges = graph.in_edges(vertex.vertex_id)
    return tuple(
        tuple(f"{e.key}/{u}" for e in edges for u in graph.upstream_subtasks(e, subtask))  # type: ignore[arg-type]
        for subtask in range(vertex.parallelism)
    )


def _prepared(vertex: JobVertex, keeps_time: bool) -> JobVertex:
    operators = tuple(dataclasses.replace(n, spec=_prepared_spec(n, keeps_time)) for n in vertex.operators)
    return dataclasses.replace(vertex, operators=operators)


def _prepared_spec(node: OperatorNode, keeps_time: bool) -> Any:
    """Results that do not depend on who was faster, no watermarks on the way, since all input is there at once, and of
    a rolling reduce only the end."""
    spec = node.spec
    if isinstance(spec, ReduceSpec):
        return dataclasses.replace(spec, at_end=True)
    if isinstance(spec, AsyncSpec):
        return dataclasses.replace(spec, ordered=True)
    if isinstance(spec, (SourceSpec, AssignTimestampsSpec)) and spec.watermark_strategy is not None:
        strategy = dataclasses.replace(spec.watermark_strategy, alignment=None, idleness_ms=None)
        if not keeps_time:
            strategy = dataclasses.replace(strategy, kind=WatermarkKind.NONE, generator_factory=None)
        return dataclasses.replace(spec, watermark_strategy=strategy)
    return spec
