"""The execution plan as JSON, in the form of Flink's plan: one node per operator, with how each gets its input."""

from __future__ import annotations

import json
from typing import Any

from tidegate.graph.stream_graph import StreamGraph, StreamNode


def execution_plan(graph: StreamGraph) -> str:
    return json.dumps({"nodes": [_node(graph, node) for node in graph.nodes]}, indent=2)


def _node(graph: StreamGraph, node: StreamNode) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "id": node.index + 1,
        "type": node.name,
        "pact": "Data Source" if node.is_source else "Data Sink" if node.is_sink else "Operator",
        "contents": node.transformation.description or node.name,
        "parallelism": node.parallelism,
    }
    if node.in_edges:
        two_inputs = len(node.transformation.inputs) == 2
        plan["predecessors"] = [
            {
                "id": graph.nodes[edge.source].index + 1,
                "ship_strategy": edge.partition.kind.name,
                "side": "first" if two_inputs and edge.target_input == 0 else "second",
                **({} if edge.side_output is None else {"side_output": edge.side_output}),
            }
            for edge in node.in_edges
        ]
    return plan
