"""Two totals per key of the same numbers: one in state, one in an attribute, which a recovery forgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import DiscardingSink
from tidegate.datastream.state import ValueStateDescriptor


class InState(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value[1])
        yield value[0], self.total.value()


class InAttribute(KeyedProcessFunction):
    def __init__(self) -> None:
        self.totals: dict[str, int] = {}

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.totals[value[0]] = self.totals.get(value[0], 0) + value[1]
        yield value[0], self.totals[value[0]]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
numbers = env.from_collection([(f"k{i % 7}", i) for i in range(2000)]).key_by(lambda v: v[0])
wrong = numbers.process(InAttribute()).name("in an attribute")
wrong.sink_to(DiscardingSink()).name("wrong")
for result in numbers.process(InState()).name("in state").execute_and_collect():
    print(result)
