"""Reduce before the shuffle: of the records that one task has for a key, only what they come to is sent.

A reduce function is associative, as Flink asks. Only for records without timestamps, among which no order is promised
between tasks, and for functions without a life cycle of their own: those expect to run in their operator.
"""

from __future__ import annotations

from typing import Any

from tidegate.common.record_batch import RecordBatch
from tidegate.datastream.functions import CheckpointedFunction, Function
from tidegate.graph.job_graph import JobEdge, OperatorNode, PartitionKind
from tidegate.graph.operator_specs import ReduceSpec
from tidegate.taskmanager.edge_output import EdgeOutput
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.taskmanager.operators.base import bind

MAX_KEYS = 1 << 17  # that are held at a time
_EMIT = 4096


def combinable(edge: JobEdge, head: OperatorNode) -> bool:
    """The operator that reads the edge reduces, and its function can be called before it."""
    spec = head.spec
    if edge.partition.kind is not PartitionKind.HASH or not isinstance(spec, ReduceSpec) or not spec.at_end:
        return False
    kind = type(spec.function)
    return not isinstance(spec.function, CheckpointedFunction) and all(
        getattr(kind, method, None) in (None, getattr(Function, method)) for method in ("open", "close")
    )


class CombiningOutput(EdgeOutput):
    """In front of the edge's own output. `flush` before the end."""

    def __init__(self, inner: EdgeOutput, head: OperatorNode, subtask: int) -> None:
        self.edge = inner.edge
        self.channels = inner.channels
        self._inner = inner
        self._name, self._subtask = head.name, subtask
        self._reduce = bind(head.spec.user_function, "reduce")
        self._select = bind(inner.edge.partition.key_selector, "get_key")
        self._combined: dict[Any, Any] = {}
        self._taken = 0  # records since the last flush
        self._worth_it = True

    def emit(self, batch: RecordBatch) -> None:
        if batch.timestamps is not None or not self._worth_it:
            self.flush()
            self._inner.emit(batch)
            return
        reduce, select, combined = self._reduce, self._select, self._combined
        v = None
        try:
            for v in batch.values:
                key = select(v)
                so_far = combined.get(key)
                combined[key] = v if so_far is None else reduce(so_far, v)
        except Exception as error:
            self._inner.emit(RecordBatch([v]))  # raises, when the key is the trouble
            raise OperatorFailure(self._name, self._subtask, "reduce()", error, v) from error
        self._taken += len(batch.values)
        if len(combined) >= MAX_KEYS:
            self._worth_it = self._taken > 2 * len(combined)
            self.flush()

    def flush(self) -> None:
        if self._combined:
            values = list(self._combined.values())
            self._combined.clear()
            self._taken = 0
            for start in range(0, len(values), _EMIT):
                self._inner.emit(RecordBatch(values[start : start + _EMIT]))
