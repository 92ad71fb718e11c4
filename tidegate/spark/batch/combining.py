"""Reduce before the shuffle: of the records that one task has for a key, only what they come to is sent.

A reduce function is associative, as Flink asks. Only for records without timestamps, among which no order is promised
between tasks, and for functions without a life cycle of their own: those expect to run in their operator.
"""

from __future__ import annotations

from typing import Any

from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.contracts.functions import CheckpointedFunction, Function
from tidegate.graph.job_graph import JobEdge, OperatorNode, PartitionKind
from tidegate.graph.operator_specs import ReduceSpec
from tidegate.spark.batch.blocks import COMBINED, BlockChannel, BlockOutput
from tidegate.state.key_groups import KeyRouter, is_unhashable, selector_without_lists, unhashable_key
from tidegate.taskmanager.edge_output import EdgeOutput
from tidegate.taskmanager.failure import OperatorFailure
from tidegate.taskmanager.operators.base import bind, last_taken
from tidegate.taskmanager.operators.final_reduce import fold

MAX_KEYS = 1 << 17  # that are held at a time
_BLOCK = 4096


def combinable(edge: JobEdge, head: OperatorNode) -> bool:
    """The operator that reads the edge reduces, and its function can be called before it."""
    spec = head.spec
    if edge.partition.kind is not PartitionKind.HASH or not isinstance(spec, ReduceSpec) or not spec.at_end:
        return False
    kind = type(spec.function)
    return not isinstance(spec.function, CheckpointedFunction) and all(
        getattr(kind, method, None) in (None, getattr(Function, method)) for method in ("open", "close")
    )


class CombiningOutput(EdgeOutput[BlockChannel]):
    """In front of the edge's own output. `flush` before the end. The value of a key is sent with the key: a selector
    might make another one of what records have been reduced to."""

    def __init__(
        self, output: BlockOutput, inner: EdgeOutput[BlockChannel], head: OperatorNode, subtask: int, groups: int
    ) -> None:
        super().__init__(inner.edge, inner.channels, inner._clock, inner._operator_name, subtask)
        self._output = output
        self._inner = inner
        self._name = head.name
        self._reduce = bind(head.spec.user_function, "reduce")
        self._select = bind(inner.edge.partition.key_selector, "get_key")
        self._router = KeyRouter(groups, len(inner.channels))
        self._combined: dict[Any, Any] = {}
        self._taken = 0  # records since the last flush
        self._worth_it = True

    @property
    def hands_on(self) -> bool:
        return True  # the reduce function may put its result into one of the two records

    def emit(self, batch: Batch) -> None:
        if batch.timestamps is not None or not self._worth_it:
            self._inner.emit(batch)
            return
        values = batch.rows().values
        combined, rest = self._combined, iter(values)
        try:
            fold(combined, self._reduce, rest, map(self._select, values))
        except Exception as error:
            if self._takes_lists(values[0]):
                self.emit(batch)
                return
            culprit = values[last_taken(values, rest)]
            self._inner.emit(RecordBatch([culprit]))  # raises, when the key is the trouble
            self._refuse_lists(culprit)
            raise OperatorFailure(self._name, self._subtask, "reduce()", error, culprit) from error
        self._taken += len(values)
        if len(combined) >= MAX_KEYS:
            self._worth_it = self._taken > 2 * len(combined)
            self.flush()

    def _takes_lists(self, first: Any) -> bool:
        """After a failure: as `HashOutput` does, when there was no key before."""
        select = None if self._combined or self._router else selector_without_lists(self._select, first)
        if select is None:
            return False
        self._select = select
        return True

    def _refuse_lists(self, record: Any) -> None:
        """The output behind this one would take a list, if that came first there."""
        if is_unhashable(key := self._select(record)):
            self._fail("key_by()", unhashable_key(key), record)

    def flush(self) -> None:
        combined, self._combined, self._taken = self._combined, {}, 0
        parts: list[tuple[list[Any], list[Any]]] = [([], []) for _ in self.channels]
        for key, value in combined.items():
            try:
                keys, values = parts[self._router[key]]
            except Exception as error:
                raise OperatorFailure(self._name, self._subtask, "key_by()", error, value) from error
            keys.append(key)
            values.append(value)
        for channel, (keys, values) in zip(self.channels, parts, strict=True):
            for start in range(0, len(keys), _BLOCK):
                end = start + _BLOCK
                self._output.cut(channel.series, COMBINED, self._name, values[start:end], keys[start:end])
