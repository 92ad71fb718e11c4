"""Ids that find an operator's state again when the program runs the next time.

With a uid: its hash. Without: a hash of the operator's position, that is of what it does (the kind of its spec), of
the ids of its inputs, and of its ordinal among the operators that are equal in both. Names, parallelism, partitioning
and the identity of objects play no part, so renaming or rescaling keeps the ids. Adding or removing an operator
upstream changes those below it: that is what uids are for.
"""

from __future__ import annotations

import re
from collections import Counter

import xxhash

from tidegate.common.errors import JobGraphError
from tidegate.common.ids import OperatorId
from tidegate.graph.stream_graph import StreamGraph, StreamNode

_HASH_FORMAT = re.compile(r"[0-9a-f]{32}")


def is_uid_hash(text: str) -> bool:
    """Whether the text can be given to `set_uid_hash`: 32 lower-case hex digits."""
    return _HASH_FORMAT.fullmatch(text) is not None


def id_of_uid(uid: str) -> OperatorId:
    return OperatorId(xxhash.xxh3_128_hexdigest(b"uid\0" + uid.encode()))


def assign_operator_ids(graph: StreamGraph) -> None:
    """Set `operator_id` of every node. Raises JobGraphError when two operators have the same uid or id."""
    siblings: Counter[str] = Counter()
    owners: dict[OperatorId, StreamNode] = {}
    for node in graph.nodes:
        transformation = node.transformation
        if transformation.uid_hash is not None:
            node.operator_id = OperatorId(transformation.uid_hash)
        elif transformation.uid is not None:
            node.operator_id = id_of_uid(transformation.uid)
        elif not graph.settings.auto_generate_uids:
            raise JobGraphError(
                f"operator '{node.name}' has no uid, and generated uids are disabled. Call .uid('...') on it, or "
                "enable them with env.get_config().enable_auto_generated_uids()."
            )
        else:
            position = _position(graph, node)
            node.operator_id = OperatorId(xxhash.xxh3_128_hexdigest(f"pos\0{position}\0{siblings[position]}".encode()))
            siblings[position] += 1
        _check_unique(node, owners)


def _position(graph: StreamGraph, node: StreamNode) -> str:
    spec = node.transformation.spec
    kind = type(spec).__name__ + ":" + str(getattr(spec, "kind", ""))
    inputs = [
        f"{graph.nodes[edge.source].operator_id}/{edge.side_output or ''}:{edge.target_input}" for edge in node.in_edges
    ]
    return "\0".join([kind, *inputs])


def _check_unique(node: StreamNode, owners: dict[OperatorId, StreamNode]) -> None:
    other = owners.setdefault(node.operator_id, node)
    if other is node:
        return
    uid = node.transformation.uid
    if uid is not None and uid == other.transformation.uid:
        raise JobGraphError(
            f"the uid '{uid}' is used twice, by '{other.name}' and by '{node.name}'. A uid names the state of one "
            "operator: give each its own."
        )
    raise JobGraphError(
        f"the operators '{other.name}' and '{node.name}' have the same id {node.operator_id}. Check the values given "
        "to set_uid_hash() and uid()."
    )
