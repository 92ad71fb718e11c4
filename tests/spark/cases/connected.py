"""Two streams as the inputs of one operator. No order is promised between them, so the expected results need none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.spark.cases.case import ApiCase
from tests.spark.cases.single import numbers
from tidegate.common import Types
from tidegate.datastream import (
    CoFlatMapFunction,
    CoMapFunction,
    ConnectedStreams,
    CoProcessFunction,
    DataStream,
    KeyedCoProcessFunction,
    OutputTag,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import ListStateDescriptor, ValueStateDescriptor

Env = StreamExecutionEnvironment
ORDERS = [("o1", "ann"), ("o2", "bob"), ("o3", "ann"), ("o4", "eve")]
ADDRESSES = [("ann", "Lima"), ("bob", "Oslo"), ("dan", "Rome")]
UNMATCHED = OutputTag("unmatched", Types.STRING())


class NumberOrText(CoMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.name = runtime_context.get_task_name()

    def map1(self, value: int) -> Any:
        return self.name, value + 1

    def map2(self, value: str) -> Any:
        return self.name, value.upper()


class Expand(CoFlatMapFunction):
    def flat_map1(self, value: int) -> Iterator[Any]:
        yield from [value] * value

    def flat_map2(self, value: str) -> list[str] | None:
        return list(value) if value != "no" else None


class Sides(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield "first", value, ctx.timestamp()

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield "second", value, ctx.timestamp()
        if value == "no":
            yield UNMATCHED, value


class CountBoth(CoMapFunction):
    """Shares one count per key between the inputs."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def _count(self, key: str) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return key, self.count.value()

    def map1(self, value: Any) -> Any:
        return self._count(value[1])

    def map2(self, value: Any) -> Any:
        return self._count(value[0])


class CountBothFlat(CoFlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def _count(self, key: str) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield key, self.count.value()

    def flat_map1(self, value: Any) -> Iterator[Any]:
        return self._count(value[1])

    def flat_map2(self, value: Any) -> Iterator[Any]:
        return self._count(value[0])


class Join(KeyedCoProcessFunction):
    """Orders wait for the address of their customer, and the address for orders."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.STRING()))
        self.address = runtime_context.get_state(ValueStateDescriptor("address", Types.STRING()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        assert ctx.get_current_key() == value[1]
        if self.address.value() is None:
            self.waiting.add(value[0])
        else:
            yield value[0], self.address.value()

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        assert ctx.get_current_key() == value[0]
        self.address.update(value[1])
        for order in self.waiting.get():
            yield order, value[1]
        self.waiting.clear()


def numbers_and_texts(env: Env) -> ConnectedStreams:
    return numbers(env, 4).connect(env.from_collection(["ab", "no", "c"]))


def by_customer(env: Env) -> ConnectedStreams:
    return env.from_collection(ORDERS).connect(env.from_collection(ADDRESSES)).key_by(lambda o: o[1], lambda a: a[0])


def co_process_with_side_output(env: Env) -> DataStream:
    main = numbers_and_texts(env).process(Sides())
    return main.union(main.get_side_output(UNMATCHED))


def connect_keyed_streams(env: Env) -> DataStream:
    orders = env.from_collection(ORDERS).key_by(lambda o: o[1])
    return orders.connect(env.from_collection(ADDRESSES).key_by(lambda a: a[0])).process(Join())


COUNTS = [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1), ("bob", 2), ("dan", 1), ("eve", 1)]
JOINED = [("o1", "Lima"), ("o2", "Oslo"), ("o3", "Lima")]

CASES = [
    ApiCase(
        "co_map",
        lambda env: numbers_and_texts(env).map(NumberOrText()).name("Both"),
        [("Both", v) for v in (1, 2, 3, 4, "AB", "NO", "C")],
    ),
    ApiCase("co_flat_map", lambda env: numbers_and_texts(env).flat_map(Expand()), [1, 2, 2, 3, 3, 3, "a", "b", "c"]),
    ApiCase(
        "co_process",
        co_process_with_side_output,
        [("first", n, None) for n in range(4)] + [("second", t, None) for t in ("ab", "no", "c")] + ["no"],
    ),
    ApiCase("keyed_co_map", lambda env: by_customer(env).map(CountBoth()), COUNTS, lambda r: r[0]),
    ApiCase("keyed_co_flat_map", lambda env: by_customer(env).flat_map(CountBothFlat()), COUNTS, lambda r: r[0]),
    ApiCase("keyed_co_process", lambda env: by_customer(env).process(Join()), JOINED),
    ApiCase("connect_of_keyed_streams", connect_keyed_streams, JOINED),
    ApiCase(
        "connect_with_itself",
        lambda env: (lambda s: s.connect(s).process(Sides()))(numbers(env, 3)),
        [(side, n, None) for n in range(3) for side in ("first", "second")],
    ),
    ApiCase(
        "connect_with_a_broadcast",
        lambda env: numbers(env, 4).connect(env.from_collection(["x"]).broadcast()).process(Sides()),
        lambda p: [("first", n, None) for n in range(4)] + [("second", "x", None)] * p,
    ),
]
