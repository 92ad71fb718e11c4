"""Which operator runs which spec."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.common.errors import InternalError
from tidegate.contracts.collect_sink import CollectSink
from tidegate.graph import operator_specs as specs
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.async_wait import AsyncWaitOperator
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.operators.broadcast import BroadcastOperator
from tidegate.taskmanager.operators.collect import CollectOperator
from tidegate.taskmanager.operators.connected import ConnectedOperator
from tidegate.taskmanager.operators.final_reduce import FinalReduceOperator
from tidegate.taskmanager.operators.keyed import KeyedMapOperator, KeyedProcessOperator, ReduceOperator
from tidegate.taskmanager.operators.map_batches import MapBatchesOperator
from tidegate.taskmanager.operators.sink import SinkFunctionOperator, SinkOperator
from tidegate.taskmanager.operators.source import SourceOperator
from tidegate.taskmanager.operators.stateless import (
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProcessOperator,
)
from tidegate.taskmanager.operators.timestamps import AssignTimestampsOperator
from tidegate.taskmanager.operators.window import make_window_operator

_OPERATORS: dict[type[specs.OperatorSpec], Callable[[OperatorContext], Operator]] = {
    specs.SourceSpec: SourceOperator,
    specs.MapSpec: MapOperator,
    specs.MapBatchesSpec: MapBatchesOperator,
    specs.FlatMapSpec: FlatMapOperator,
    specs.FilterSpec: FilterOperator,
    specs.ProcessSpec: ProcessOperator,
    specs.KeyedProcessSpec: KeyedProcessOperator,
    specs.KeyedMapSpec: KeyedMapOperator,
    specs.ReduceSpec: ReduceOperator,
    specs.CoMapSpec: ConnectedOperator,
    specs.CoProcessSpec: ConnectedOperator,
    specs.BroadcastProcessSpec: BroadcastOperator,
    specs.AsyncSpec: AsyncWaitOperator,
    specs.AssignTimestampsSpec: AssignTimestampsOperator,
    specs.WindowSpec: make_window_operator,
    specs.SinkSpec: SinkOperator,
    specs.SinkFunctionSpec: SinkFunctionOperator,
}


def make_operator(context: OperatorContext) -> Operator:
    spec = context.node.spec
    if isinstance(spec, specs.SinkSpec) and isinstance(spec.sink, CollectSink):
        return CollectOperator(context)
    if isinstance(spec, specs.ReduceSpec) and spec.at_end:
        return FinalReduceOperator(context)
    operator = _OPERATORS.get(type(spec))
    if operator is None:
        raise InternalError(f"no operator for {type(spec).__name__} ('{context.node.name}')")
    return operator(context)
