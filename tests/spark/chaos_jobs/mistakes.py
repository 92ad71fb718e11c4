"""One mistake of a user each: `mistakes.py draws|in-place|forgetful|plain`.

`right_and_wrong.py` has another one, state that is kept in attributes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.common import Types, WatermarkStrategy
from tidegate.contracts.connectors import Source, SourceContext, SourceSplit, SplitReader
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import DiscardingSink
from tidegate.datastream.state import ValueStateDescriptor

RECORDS = 2000


class Baskets(KeyedProcessFunction):
    """Changes the list that state gave it, and does not write it back."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.items = runtime_context.get_state(ValueStateDescriptor("items", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        items = self.items.value()
        if items is None:
            self.items.update([value[1]])
        else:
            items.append(value[1])
        yield value[0], len(items or [1])


class ForgetfulSource(Source[Any]):
    """Begins anew wherever it is asked to go on."""

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("all")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return FromTheBeginning()


class FromTheBeginning(SplitReader[Any]):
    def __init__(self) -> None:
        self._next = 0

    def poll(self, max_records: int) -> list[Any] | None:
        if self._next == RECORDS:
            return None
        first, self._next = self._next, min(RECORDS, self._next + max_records)
        return [(f"k{i % 7}", i) for i in range(first, self._next)]

    def offset(self) -> int:
        return self._next


def main(which: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    if which == "forgetful":
        numbers = env.from_source(ForgetfulSource(), WatermarkStrategy.no_watermarks(), "forgetful").set_parallelism(1)
    else:
        numbers = env.from_collection([(f"k{i % 7}", i) for i in range(RECORDS)])
    if which == "in-place":
        result = numbers.key_by(lambda v: v[0]).process(Baskets()).name("baskets")
    elif which == "draws":
        result = numbers.map(lambda v: (v[0], random.random())).name("draws")
    else:
        result = numbers.map(lambda v: v).name("same")
    if which == "plain":
        result.sink_to(DiscardingSink()).name("plain")  # writes at once, in one phase
        env.execute("plain")
        return
    for _ in result.execute_and_collect():
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
