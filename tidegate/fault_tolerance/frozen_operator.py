"""One operator's part of a snapshot: frozen on the mailbox thread, written on a helper thread."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.common.ids import CheckpointId
from tidegate.common.type_schema import schema_of
from tidegate.contracts.collect_sink import CollectSink
from tidegate.graph.job_graph import OperatorNode
from tidegate.graph.operator_specs import SinkSpec
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.operator_state import OperatorStateBackend
from tidegate.state.savepoint.format import operator_folder
from tidegate.state.savepoint.writer import SavepointWriter
from tidegate.storage.handles import KeyedSnapshot, OperatorSnapshot


class FrozenOperator:
    """One operator's synchronous part of a snapshot; `write` runs on a helper thread."""

    def __init__(
        self,
        node: OperatorNode,
        keyed: KeyedStateBackend | None,
        operator_state: OperatorStateBackend,
        checkpoint_id: CheckpointId,
        full: bool,
    ) -> None:
        self._node = node
        self._keyed = None if keyed is None else keyed.snapshot(checkpoint_id, full)
        self._lists = operator_state.snapshot()
        self._holds_results = isinstance(node.spec, SinkSpec) and isinstance(node.spec.sink, CollectSink)

    def write(self, writer: Any) -> OperatorSnapshot:
        return OperatorSnapshot(
            operator_id=self._node.operator_id,
            name=self._node.name,
            uid=self._node.uid or "",
            keyed=None if self._keyed is None else self._with_key_type(self._keyed.write(writer.shared)),
            lists=self._lists.write(writer.results if self._holds_results else writer.exclusive),
        )

    def write_savepoint(self, writer: SavepointWriter) -> OperatorSnapshot:
        node = self._node
        folder = operator_folder(node.operator_id, node.uid or "", node.name)
        keys = schema_of(node.key_type)
        return OperatorSnapshot(
            operator_id=node.operator_id,
            name=node.name,
            uid=node.uid or "",
            keyed=None
            if self._keyed is None
            else self._with_key_type(writer.keyed(node.name, folder, keys, self._keyed)),
            lists=writer.lists(node.name, folder, self._lists),
        )

    def _with_key_type(self, snapshot: KeyedSnapshot) -> KeyedSnapshot:
        if self._node.key_type is None:
            return snapshot
        return msgspec.structs.replace(snapshot, key=schema_of(self._node.key_type))
