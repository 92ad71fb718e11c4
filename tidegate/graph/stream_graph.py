"""Transformations resolved: operators with all settings decided, and the edges between them, before chaining.

Virtual transformations (union, partition, side output) are gone: they have become properties of edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.common.errors import JobGraphError
from tidegate.common.ids import OperatorId
from tidegate.graph.job_graph import PartitionKind, PartitionSpec
from tidegate.graph.operator_specs import SinkFunctionSpec, SinkSpec, SourceSpec
from tidegate.graph.transformations import (
    DEFAULT_SLOT_SHARING_GROUP,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
)

MIN_DEFAULT_MAX_PARALLELISM = 128
UPPER_MAX_PARALLELISM = 1 << 15


def default_max_parallelism(parallelism: int) -> int:
    """Room to grow by half, as a power of two between 128 and 32768."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << max(wanted - 1, 0).bit_length(), MIN_DEFAULT_MAX_PARALLELISM), UPPER_MAX_PARALLELISM)


@dataclass(frozen=True)
class GraphSettings:
    """What the environment decides for operators that do not decide for themselves."""

    parallelism: int = 1
    max_parallelism: int | None = None  # None: derived from each operator's parallelism
    buffer_timeout_ms: int = 100
    chaining_enabled: bool = True
    auto_generate_uids: bool = True  # False: an operator without a uid is an error


@dataclass
class StreamNode:
    """One operator with its settings decided. `index` is its place in `StreamGraph.nodes`."""

    index: int
    operator_id: OperatorId  # "" until `graph.operator_ids` has assigned it
    transformation: OperatorTransformation
    name: str
    parallelism: int
    max_parallelism: int
    max_parallelism_derived: bool = field(default=False, kw_only=True)  # from the parallelism: not set by the program
    slot_sharing_group: str
    buffer_timeout_ms: int | None  # None: the environment's
    chaining: bool = True  # False: runs in a task of its own
    in_edges: list[StreamEdge] = field(default_factory=list)
    out_edges: list[StreamEdge] = field(default_factory=list)

    @property
    def is_source(self) -> bool:
        return isinstance(self.transformation.spec, SourceSpec)

    @property
    def is_sink(self) -> bool:
        return isinstance(self.transformation.spec, (SinkSpec, SinkFunctionSpec))


@dataclass(frozen=True)
class StreamEdge:
    source: int
    target: int
    target_input: int
    side_output: str | None
    partition: PartitionSpec


@dataclass(frozen=True)
class StreamGraph:
    """Nodes in the order in which the program made them: inputs come before their consumers."""

    nodes: tuple[StreamNode, ...]
    edges: tuple[StreamEdge, ...]
    settings: GraphSettings


def build_stream_graph(
    transformations: Sequence[Transformation], settings: GraphSettings, require_sink: bool = True
) -> StreamGraph:
    """Resolve the operators among `transformations` (and all their inputs). Raises JobGraphError for a program that
    cannot run; ids are assigned by `graph.operator_ids`."""
    operators = _reachable_operators(transformations)
    if not operators:
        raise JobGraphError(
            "there is nothing to execute: the job has no operators. Add a source and a sink, for example "
            "env.from_collection([1, 2, 3]).print(), before execute()."
        )
    nodes: list[StreamNode] = []
    edges: list[StreamEdge] = []
    by_id: dict[int, StreamNode] = {}
    for operator in operators:
        inputs = [list(_producers(input_)) for input_ in operator.inputs]
        node = _resolve(len(nodes), operator, [by_id[p.id] for way in inputs for p, _, _ in way], settings)
        nodes.append(node)
        by_id[operator.id] = node
        for target_input, producers in enumerate(inputs):
            for producer, tag, partition in producers:
                source = by_id[producer.id]
                edge = StreamEdge(source.index, node.index, target_input, tag, _edge_partition(source, node, partition))
                edges.append(edge)
                source.out_edges.append(edge)
                node.in_edges.append(edge)
    if require_sink and not any(node.is_sink for node in nodes):
        raise JobGraphError(
            f"the job has no sink, so nothing would come out of it (last operator: '{nodes[-1].name}'). "
            "Add a sink, e.g. stream.print(), or use stream.execute_and_collect()."
        )
    return StreamGraph(tuple(nodes), tuple(edges), settings)


def _reachable_operators(transformations: Sequence[Transformation]) -> list[OperatorTransformation]:
    """All operators among the transformations and their inputs, in the order of their making."""
    found: dict[int, Transformation] = {}
    stack = list(transformations)
    while stack:
        transformation = stack.pop()
        if transformation.id not in found:
            found[transformation.id] = transformation
            stack.extend(transformation.inputs)
    return [t for _, t in sorted(found.items()) if isinstance(t, OperatorTransformation)]


def _producers(
    transformation: Transformation, tag: str | None = None, partition: PartitionSpec | None = None
) -> Iterator[tuple[OperatorTransformation, str | None, PartitionSpec | None]]:
    """The operators behind an input. Of several partitionings in a row the one nearest to the consumer counts."""
    while not isinstance(transformation, OperatorTransformation):
        if isinstance(transformation, UnionTransformation):
            for input_ in transformation.inputs:
                yield from _producers(input_, tag, partition)
            return
        if isinstance(transformation, PartitionTransformation):
            partition = partition if partition is not None else transformation.partition
        elif isinstance(transformation, SideOutputTransformation):
            tag = tag if tag is not None else transformation.tag_id
        transformation = transformation.inputs[0]
    yield transformation, tag, partition


def _resolve(
    index: int, operator: OperatorTransformation, inputs: list[StreamNode], settings: GraphSettings
) -> StreamNode:
    name = _display_name(operator)
    created = operator.created_under
    parallelism = _first(operator.parallelism, created.parallelism, settings.parallelism)
    if parallelism <= 0:
        raise JobGraphError(f"operator '{name}': parallelism has to be at least 1, got {parallelism}")
    max_parallelism = _first(operator.max_parallelism, created.max_parallelism, settings.max_parallelism)
    derived = max_parallelism is None
    if max_parallelism is None:
        max_parallelism = default_max_parallelism(parallelism)
    if not 1 <= max_parallelism <= UPPER_MAX_PARALLELISM:
        raise JobGraphError(
            f"operator '{name}': max parallelism has to be between 1 and {UPPER_MAX_PARALLELISM}, got {max_parallelism}"
        )
    if parallelism > max_parallelism:
        raise JobGraphError(
            f"operator '{name}': parallelism {parallelism} is greater than its max parallelism {max_parallelism}. "
            "Lower the parallelism, or raise the maximum with set_max_parallelism()."
        )
    groups = {node.slot_sharing_group for node in inputs}
    inherited = groups.pop() if len(groups) == 1 else DEFAULT_SLOT_SHARING_GROUP
    return StreamNode(
        index=index,
        operator_id=OperatorId(""),
        transformation=operator,
        name=name,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        max_parallelism_derived=derived,
        slot_sharing_group=operator.slot_sharing_group or inherited,
        buffer_timeout_ms=operator.buffer_timeout_ms,
        chaining=_first(created.chaining, settings.chaining_enabled),
    )


def _first(*chosen: Any) -> Any:
    """The first that was set."""
    return next((one for one in chosen if one is not None), None)


def _display_name(operator: OperatorTransformation) -> str:
    if isinstance(operator.spec, SourceSpec):
        return f"Source: {operator.name}"
    if isinstance(operator.spec, (SinkSpec, SinkFunctionSpec)):
        return f"Sink: {operator.name}"
    return operator.name


def _edge_partition(source: StreamNode, target: StreamNode, partition: PartitionSpec | None) -> PartitionSpec:
    equal = source.parallelism == target.parallelism
    if partition is None:
        return PartitionSpec(PartitionKind.FORWARD if equal else PartitionKind.REBALANCE)
    if partition.kind is PartitionKind.FORWARD and not equal:
        raise JobGraphError(
            f"forward() from '{source.name}' (parallelism {source.parallelism}) to '{target.name}' (parallelism "
            f"{target.parallelism}) needs the same parallelism on both sides. Set the same parallelism, or use "
            "rebalance() or rescale()."
        )
    return partition
