"""Keyed streams: reduce and the rolling aggregations, keyed functions, all kinds of keyed state.

The source has one subtask, so the records of a key arrive in the order of the collection, and so do their results.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.spark.cases.case import ApiCase
from tests.spark.cases.single import numbers
from tidegate.common import Row, Types
from tidegate.datastream import (
    AggregateFunction,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    KeyedStream,
    KeySelector,
    MapFunction,
    OutputTag,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

Env = StreamExecutionEnvironment
PAIRS = [("a", 3), ("b", 10), ("a", 1), ("c", 5), ("b", 20), ("a", 7), ("a", 1), ("b", 0)]
TRIPLES = [("a", 3, "x"), ("b", 1, "y"), ("a", 1, "z"), ("a", 1, "w"), ("b", 4, "v"), ("a", 9, "u")]
LATE = OutputTag("late")


class Sale(NamedTuple):
    shop: str
    amount: int


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def first(record: Any) -> Any:
    return record[0]


def pairs(env: Env) -> KeyedStream:
    return env.from_collection(PAIRS).key_by(first)


def triples(env: Env) -> KeyedStream:
    return env.from_collection(TRIPLES).key_by(first)


class FirstField(KeySelector):
    def get_key(self, value: Any) -> Any:
        return value[0]


class Longest(ReduceFunction):
    def reduce(self, value1: str, value2: str) -> str:
        return value2 if len(value2) > len(value1) else value1


class CountMap(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def map(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return value[0], self.count.value()


class OnlyNew(FilterFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", Types.LONG(), Types.BOOLEAN()))

    def filter(self, value: Any) -> bool:
        if value[1] in self.seen:
            return False
        self.seen[value[1]] = True
        return True


class History(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.history = runtime_context.get_list_state(ListStateDescriptor("history", Types.LONG()))

    def flat_map(self, value: Any) -> Iterator[Any]:
        for earlier in self.history.get():
            yield value[0], earlier, value[1]
        self.history.add(value[1])


class ValueCount(KeyedProcessFunction):
    """Emits (key, count) and starts again after three."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        if count == 3:
            self.count.clear()
        else:
            self.count.update(count)
        yield ctx.get_current_key(), count


class ListWindow(KeyedProcessFunction):
    """The last two values of the key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.values = runtime_context.get_list_state(ListStateDescriptor("values", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.values.add_all([value[1]])
        kept = list(self.values)[-2:]
        self.values.update(kept)
        yield value[0], tuple(kept)


class MapTally(KeyedProcessFunction):
    """How often each value of the key was seen."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.tally = runtime_context.get_map_state(MapStateDescriptor("tally", Types.LONG(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        key, n = value
        if n == 0:
            self.tally.clear()
            yield key, self.tally.is_empty(), ()
            return
        self.tally.put(n, (self.tally.get(n) or 0) + 1)
        if self.tally.contains(20):
            self.tally.remove(20)
        yield key, self.tally.is_empty(), tuple(sorted(self.tally.items()))


class ReducingTotal(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
        assert descriptor.get_reduce_function().reduce(1, 2) == 3
        self.total = runtime_context.get_reducing_state(descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.total.add(value[1])
        yield value[0], self.total.get()


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: int, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class AggregatingMean(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = AggregatingStateDescriptor("mean", Mean())
        assert isinstance(descriptor.get_agg_function(), Mean)
        self.mean = runtime_context.get_aggregating_state(descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.mean.add(value[1])
        yield value[0], self.mean.get()


class SideOutputOfKeyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield (LATE, value) if value[1] > 6 else value


def keyed_side_output(env: Env) -> DataStream:
    main = pairs(env).process(SideOutputOfKeyed())
    return main.map(lambda r: ("main", r)).union(main.get_side_output(LATE).map(lambda r: ("late", r)))


def rekeyed(env: Env) -> DataStream:
    """A second key_by behind the first: 10 keys, then 2, over results whose order does not matter."""
    return (
        numbers(env, 100)
        .key_by(lambda n: n % 10)
        .reduce(lambda a, b: a + b)
        .map(lambda n: (n % 2, 1))
        .key_by(first)
        .sum(1)
    )


def rolling(reduce: Any, values: Any = None) -> list[Any]:
    """What a rolling reduce over the first field emits."""
    state: dict[Any, Any] = {}
    out = []
    for record in PAIRS if values is None else values:
        key = record[0]
        state[key] = record if key not in state else reduce(state[key], record)
        out.append(state[key])
    return out


def partial_sums_of_ten() -> dict[int, int]:
    """How many of the rolling sums of n % 10 over 0..99 are even and odd: the last counts of `rekeyed`."""
    totals: dict[int, int] = {}
    parity = {0: 0, 1: 0}
    for n in range(100):
        totals[n % 10] = totals.get(n % 10, 0) + n
        parity[totals[n % 10] % 2] += 1
    return parity


SALES = [Sale("s", 1), Sale("t", 2), Sale("s", 3)]
ROWS = [Row(shop="s", amount=5), Row(shop="t", amount=2), Row(shop="s", amount=4)]
KEYS = ["k", 7, -7, 2**70, None, True, 1.5, ("a", (1, None)), b"bytes", Colour.RED, Colour.BLUE, frozenset({1, 2})]

CASES = [
    ApiCase(
        "reduce",
        lambda env: pairs(env).reduce(lambda a, b: (a[0], a[1] + b[1])),
        rolling(lambda a, b: (a[0], a[1] + b[1])),
        first,
        rolling=True,
    ),
    ApiCase(
        "reduce_class",
        lambda env: env.from_collection(["a", "abc", "ab", "b", "bcde"]).key_by(first).reduce(Longest()),
        ["a", "abc", "abc", "b", "bcde"],
        first,
        rolling=True,
    ),
    ApiCase("sum", lambda env: pairs(env).sum(1), rolling(lambda a, b: (a[0], a[1] + b[1])), first, rolling=True),
    ApiCase(
        "sum_of_plain_values",
        lambda env: env.from_collection([1, 2, 3]).key_by(lambda n: 0).sum(),
        [1, 3, 6],
        lambda _: 0,
        rolling=True,
    ),
    ApiCase(
        "sum_by_name",
        lambda env: env.from_collection(ROWS).key_by(lambda r: r.shop).sum("amount"),
        [Row(shop="s", amount=5), Row(shop="t", amount=2), Row(shop="s", amount=9)],
        lambda r: r.shop,
        rolling=True,
    ),
    ApiCase(
        "sum_of_named_tuples",
        lambda env: env.from_collection(SALES).key_by(lambda s: s.shop).sum("amount"),
        [Sale("s", 1), Sale("t", 2), Sale("s", 4)],
        first,
        rolling=True,
    ),
    ApiCase(
        "min",
        lambda env: triples(env).min(1),
        rolling(lambda a, b: (a[0], min(a[1], b[1]), a[2]), TRIPLES),
        first,
        rolling=True,
    ),
    ApiCase(
        "max",
        lambda env: triples(env).max(1),
        rolling(lambda a, b: (a[0], max(a[1], b[1]), a[2]), TRIPLES),
        first,
        rolling=True,
    ),
    ApiCase(
        "min_by",
        lambda env: triples(env).min_by(1),
        rolling(lambda a, b: b if b[1] < a[1] else a, TRIPLES),
        first,
        rolling=True,
    ),
    ApiCase(
        "max_by",
        lambda env: triples(env).max_by(1),
        rolling(lambda a, b: b if b[1] > a[1] else a, TRIPLES),
        first,
        rolling=True,
    ),
    ApiCase(
        "key_selector_class",
        lambda env: env.from_collection(PAIRS).key_by(FirstField(), Types.STRING()).sum(1),
        rolling(lambda a, b: (a[0], a[1] + b[1])),
        first,
        rolling=True,
    ),
    ApiCase(
        "keyed_map",
        lambda env: pairs(env).map(CountMap()),
        [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 3)],
        first,
    ),
    ApiCase(
        "keyed_filter", lambda env: pairs(env).filter(OnlyNew()), [r for i, r in enumerate(PAIRS) if i != 6], first
    ),
    ApiCase(
        "keyed_flat_map",
        lambda env: pairs(env).flat_map(History()),
        [
            ("a", 3, 1),
            ("b", 10, 20),
            ("a", 3, 7),
            ("a", 1, 7),
            ("a", 3, 1),
            ("a", 1, 1),
            ("a", 7, 1),
            ("b", 10, 0),
            ("b", 20, 0),
        ],
        first,
    ),
    ApiCase(
        "value_state",
        lambda env: pairs(env).process(ValueCount()),
        [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("b", 2), ("a", 3), ("a", 1), ("b", 3)],
        first,
    ),
    ApiCase(
        "list_state",
        lambda env: pairs(env).process(ListWindow()),
        [
            ("a", (3,)),
            ("b", (10,)),
            ("a", (3, 1)),
            ("c", (5,)),
            ("b", (10, 20)),
            ("a", (1, 7)),
            ("a", (7, 1)),
            ("b", (20, 0)),
        ],
        first,
    ),
    ApiCase(
        "map_state",
        lambda env: pairs(env).process(MapTally()),
        [
            ("a", False, ((3, 1),)),
            ("b", False, ((10, 1),)),
            ("a", False, ((1, 1), (3, 1))),
            ("c", False, ((5, 1),)),
            ("b", False, ((10, 1),)),
            ("a", False, ((1, 1), (3, 1), (7, 1))),
            ("a", False, ((1, 2), (3, 1), (7, 1))),
            ("b", True, ()),
        ],
        first,
    ),
    ApiCase(
        "reducing_state",
        lambda env: pairs(env).process(ReducingTotal()),
        rolling(lambda a, b: (a[0], a[1] + b[1])),
        first,
    ),
    ApiCase(
        "aggregating_state",
        lambda env: pairs(env).process(AggregatingMean()),
        [("a", 3.0), ("b", 10.0), ("a", 2.0), ("c", 5.0), ("b", 15.0), ("a", 11 / 3), ("a", 3.0), ("b", 10.0)],
        first,
    ),
    ApiCase(
        "keyed_side_output",
        keyed_side_output,
        [("late" if r[1] > 6 else "main", r) for r in PAIRS],
    ),
    ApiCase(
        "keys_of_many_types",
        lambda env: env.from_collection([(k, i) for i in range(3) for k in KEYS]).key_by(first).map(CountMap()),
        [(k, i) for i in (1, 2, 3) for k in KEYS],
        lambda r: (type(r[0]), r[0]),
    ),
    ApiCase(
        "equal_keys_are_one_key",  # as in a dict: 1 == 1.0 == True
        lambda env: env.from_collection([(1,), (1.0,), (True,), (0,), (-0.0,), (False,)]).key_by(first).map(CountMap()),
        [1, 2, 3, 1, 2, 3],
        view=lambda records: [count for wanted in (1, 0) for key, count in records if key == wanted],
    ),
    ApiCase(
        "key_type_converts_the_key",
        lambda env: env.from_collection([(1, 1), (2, 1), (1, 1)]).key_by(first, Types.DOUBLE()).process(ValueCount()),
        [(1.0, 1), (2.0, 1), (1.0, 2)],
        first,
    ),
    ApiCase(
        "lists_as_keys",  # without a type; the function sees tuples
        lambda env: (
            env.from_collection([(1, 2), (1, 3), (1, 2)]).key_by(lambda r: [r[0], [r[1]]]).process(ValueCount())
        ),
        [((1, (2,)), 1), ((1, (3,)), 1), ((1, (2,)), 2)],
        first,
    ),
    ApiCase(
        "a_list_as_the_key_of_all",
        lambda env: env.from_collection(PAIRS).key_by(lambda r: [1]).min_by(1),
        [*[("a", 3)] * 2, *[("a", 1)] * 5, ("b", 0)],
        key=lambda r: 0,
        rolling=True,
    ),
    ApiCase(
        "key_by_twice",
        rekeyed,
        partial_sums_of_ten(),
        view=lambda records: dict(sorted(records)),
        in_batch={0: 10},  # the ten totals are even
    ),
    ApiCase(
        "keyed_stream_loses_its_keys_in_a_union",
        lambda env: pairs(env).union(pairs(env)).map(lambda r: r[1]),
        [n for _, n in PAIRS] * 2,
    ),
]
