"""Transformations to job graph: operators that can hand records to each other by a call become one vertex.

An edge is chained when it is FORWARD between operators of the same parallelism, max parallelism and slot sharing
group, it is the only input edge of the operator below, neither side's chaining strategy forbids it, and chaining is
enabled. So the operators of a vertex form a tree: only its head has edges from other vertices.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.common.errors import JobGraphError
from tidegate.common.ids import EdgeId, OperatorId, VertexId
from tidegate.graph.event_time import check_event_time
from tidegate.graph.job_graph import ChainLink, JobEdge, JobGraph, JobVertex, OperatorNode, PartitionKind
from tidegate.graph.operator_ids import assign_operator_ids
from tidegate.graph.stream_graph import GraphSettings, StreamEdge, StreamGraph, StreamNode, build_stream_graph
from tidegate.graph.transformations import ChainingStrategy, Transformation, TwoInputTransformation

MAX_EDGES = 65_535
"""A channel address holds the edge in 16 bits."""


@dataclass(frozen=True)
class BuiltGraph:
    """A job graph, and which operator each transformation (by its id) became."""

    job_graph: JobGraph
    operator_ids: dict[int, OperatorId]


def build_job_graph(
    transformations: Sequence[Transformation],
    settings: GraphSettings | None = None,
    job_name: str = "Tidegate Streaming Job",
    job_id: str | None = None,
) -> BuiltGraph:
    """All checks of the graph and the graph itself; source splits are added by `graph.splits.make_splits`.

    `job_id` is 32 hex digits, a random one by default."""
    stream_graph = build_stream_graph(transformations, settings or GraphSettings())
    check_event_time(stream_graph)
    assign_operator_ids(stream_graph)
    return BuiltGraph(
        chain(stream_graph, job_name, job_id or uuid.uuid4().hex),
        {node.transformation.id: node.operator_id for node in stream_graph.nodes},
    )


def is_chainable(graph: StreamGraph, edge: StreamEdge) -> bool:
    up, down = graph.nodes[edge.source], graph.nodes[edge.target]
    return (
        up.chaining
        and down.chaining
        and edge.partition.kind is PartitionKind.FORWARD
        and len(down.in_edges) == 1
        and not isinstance(down.transformation, TwoInputTransformation)
        and down.transformation.chaining_strategy is ChainingStrategy.ALWAYS
        and up.transformation.chaining_strategy is not ChainingStrategy.NEVER
        and up.parallelism == down.parallelism
        and up.max_parallelism == down.max_parallelism
        and up.slot_sharing_group == down.slot_sharing_group
    )


def chain(graph: StreamGraph, job_name: str, job_id: str) -> JobGraph:
    """The nodes come in topological order, so a chain's head comes before its members, and vertices ordered by their
    heads are in topological order too."""
    links: dict[int, StreamEdge] = {edge.target: edge for edge in graph.edges if is_chainable(graph, edge)}
    members: list[list[StreamNode]] = []  # by vertex
    place: dict[int, tuple[VertexId, int]] = {}  # node index -> vertex, index in it
    for node in graph.nodes:
        link = links.get(node.index)
        vertex = VertexId(len(members)) if link is None else place[link.source][0]
        if link is None:
            members.append([])
        place[node.index] = (vertex, len(members[vertex]))
        members[vertex].append(node)
    vertices = tuple(_vertex(VertexId(i), nodes, links, place, graph) for i, nodes in enumerate(members))
    return JobGraph(job_id, job_name, vertices, _edges(graph, links, place))


def _vertex(
    vertex_id: VertexId,
    nodes: list[StreamNode],
    links: dict[int, StreamEdge],
    place: dict[int, tuple[VertexId, int]],
    graph: StreamGraph,
) -> JobVertex:
    operators = []
    for node in nodes:
        link = links.get(node.index)
        transformation = node.transformation
        operators.append(
            OperatorNode(
                operator_id=node.operator_id,
                name=node.name,
                uid=transformation.uid,
                spec=transformation.spec,
                link=None if link is None else ChainLink(place[link.source][1], link.side_output),
                key_selectors=transformation.key_selectors,
                key_type=transformation.key_type,
                output_type=transformation.output_type if transformation.converts_output else None,
                side_output_types={t: i for t, i in transformation.side_output_types.items() if i is not None},
            )
        )
    head = nodes[0]
    return JobVertex(
        vertex_id=vertex_id,
        name=_chain_name(operators),
        operators=tuple(operators),
        parallelism=head.parallelism,
        max_parallelism=head.max_parallelism,
        max_parallelism_derived=head.max_parallelism_derived,
        slot_sharing_group=head.slot_sharing_group,
        buffer_timeout_ms=_buffer_timeout(nodes, graph.settings.buffer_timeout_ms),
    )


def _chain_name(operators: list[OperatorNode]) -> str:
    """For example `Source: Numbers -> Map -> (Filter, Sink: Print)`."""
    names = [operator.name for operator in operators]
    children: dict[int, list[int]] = {}
    for i, operator in enumerate(operators):
        if operator.link is not None:
            children.setdefault(operator.link.upstream, []).append(i)
    for i in reversed(range(len(operators))):  # children come after their parent
        below = [names[child] for child in children.get(i, [])]
        if below:
            names[i] += f" -> {below[0]}" if len(below) == 1 else f" -> ({', '.join(below)})"
    return names[0]


def _buffer_timeout(nodes: list[StreamNode], default: int) -> int:
    """The shortest of those that operators of the chain set, else of those that the environment said when they were
    made; -1 (full buffers only) gives way to any other."""
    own = [node.buffer_timeout_ms for node in nodes]
    of_environment = [node.transformation.created_under.buffer_timeout_ms for node in nodes]
    for timeouts in (own, of_environment):
        chosen = [timeout for timeout in timeouts if timeout is not None]
        if chosen:
            return min((timeout for timeout in chosen if timeout >= 0), default=-1)
    return default


def _edges(
    graph: StreamGraph, links: dict[int, StreamEdge], place: dict[int, tuple[VertexId, int]]
) -> tuple[JobEdge, ...]:
    edges: list[JobEdge] = []
    seen: Counter[str] = Counter()
    for edge in graph.edges:
        if edge.target in links:
            continue
        tag = "" if edge.side_output is None else f"/{edge.side_output}"
        ids = graph.nodes[edge.source].operator_id, graph.nodes[edge.target].operator_id
        key = f"{ids[0]}{tag}->{ids[1]}:{edge.target_input}"
        seen[key] += 1
        source, source_operator = place[edge.source]
        edges.append(
            JobEdge(
                edge_id=EdgeId(len(edges)),
                source=source,
                source_operator=source_operator,
                side_output=edge.side_output,
                target=place[edge.target][0],
                target_input=edge.target_input,
                partition=edge.partition,
                key=key if seen[key] == 1 else f"{key}#{seen[key]}",
            )
        )
    if len(edges) > MAX_EDGES:
        raise JobGraphError(f"the job has {len(edges)} edges between its tasks; at most {MAX_EDGES} are possible")
    return tuple(edges)
