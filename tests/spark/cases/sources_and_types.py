"""Sources (collection, numbers, generator, one of our own), and declared types with their conversions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.spark.cases.case import ApiCase
from tests.spark.cases.single import numbers
from tidegate.common import Row, Types, WatermarkStrategy
from tidegate.datastream import DataStream, OutputTag, ProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, NumberSequenceSource
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader

Env = StreamExecutionEnvironment
NO_WATERMARKS = WatermarkStrategy.no_watermarks()
AS_DOUBLE = OutputTag("double", Types.DOUBLE())


@dataclass(frozen=True)
class Reading:
    sensor: str
    value: float


class Pages(Source[Any]):
    """Splits of different sizes, more of them than subtasks or fewer; polls come back empty now and then."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit(str(i)) for i in range(len(self.sizes))]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> PagesReader:
        return PagesReader(split.split_id, offset or 0, self.sizes[int(split.split_id)])


class PagesReader(SplitReader[Any]):
    def __init__(self, page: str, position: int, size: int) -> None:
        self.page, self.position, self.size, self.polls = page, position, size, 0

    def poll(self, max_records: int) -> list[Any] | None:
        self.polls += 1
        if self.polls % 2 == 0:
            return []
        if self.position == self.size:
            return None
        self.position += 1
        return [(self.page, self.position)]

    def offset(self) -> int:
        return self.position


class TaggedNumber(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield AS_DOUBLE, value


def generated(env: Env, **settings: Any) -> DataStream:
    return env.from_source(DataGeneratorSource(lambda i: f"r{i}", **settings), NO_WATERMARKS, "Generator")


PAGE_SIZES = (3, 0, 5, 1, 2, 4)
PAGE_RECORDS = [(str(page), n + 1) for page, size in enumerate(PAGE_SIZES) for n in range(size)]
PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.LONG()])

CASES = [
    ApiCase("from_collection", lambda env: env.from_collection([3, 1, 2]), [3, 1, 2]),
    ApiCase("from_collection_empty", lambda env: env.from_collection([]), []),
    ApiCase("from_collection_generator", lambda env: env.from_collection(n for n in range(4)), [0, 1, 2, 3]),
    ApiCase("from_collection_of_nones", lambda env: env.from_collection([None, None]).map(lambda n: n), [None, None]),
    ApiCase(
        "from_collection_of_objects",
        lambda env: env.from_collection([Reading("a", 1.0), Reading("b", 2.0)]).map(lambda r: (r.sensor, r)),
        [("a", Reading("a", 1.0)), ("b", Reading("b", 2.0))],
    ),
    ApiCase("number_sequence", lambda env: numbers(env, 25), list(range(25))),
    ApiCase(
        "number_sequence_shorter_than_the_parallelism",
        lambda env: env.from_source(NumberSequenceSource(5, 6), NO_WATERMARKS, "Two"),
        [5, 6],
    ),
    ApiCase("data_generator", lambda env: generated(env, count=30), [f"r{i}" for i in range(30)]),
    ApiCase("data_generator_empty", lambda env: generated(env, count=0), []),
    ApiCase(
        "data_generator_with_a_rate",
        lambda env: generated(env, count=30, records_per_second=300),
        [f"r{i}" for i in range(30)],
    ),
    ApiCase(
        "own_source_in_order_within_a_split",
        lambda env: env.from_source(Pages(PAGE_SIZES), NO_WATERMARKS, "Pages"),
        PAGE_RECORDS,
        lambda r: r[0],
    ),
    ApiCase("own_source_without_splits", lambda env: env.from_source(Pages(()), NO_WATERMARKS, "Pages"), []),
    ApiCase(
        "two_sources_of_different_length",
        lambda env: numbers(env, 3).union(env.from_source(NumberSequenceSource(100, 399), NO_WATERMARKS, "Long")),
        [0, 1, 2, *range(100, 400)],
    ),
    ApiCase(
        "rows_by_name",
        lambda env: env.from_collection([("ann", 3), ("bob", 5)], PERSON).map(
            lambda row: (row.name, row["age"], row[1])
        ),
        [("ann", 3, 3), ("bob", 5, 5)],
    ),
    ApiCase(
        "rows_between_workers",
        lambda env: (
            env.from_collection([("ann", 3)], PERSON).rebalance().map(lambda row: Row(name=row.name, age=row.age + 1))
        ),
        [Row(name="ann", age=4)],
    ),
    ApiCase(
        "map_converts_to_the_declared_type",
        lambda env: env.from_collection([1, 2]).map(float).map(lambda n: n, Types.LONG()),
        [1, 2],
    ),
    ApiCase(
        "booleans_become_numbers", lambda env: env.from_collection([True, False]).map(lambda b: b, Types.INT()), [1, 0]
    ),
    ApiCase(
        "numbers_become_floats", lambda env: env.from_collection([1, 2.5]).map(lambda n: n, Types.DOUBLE()), [1.0, 2.5]
    ),
    ApiCase(
        "numbers_become_decimals", lambda env: env.from_collection([7]).map(lambda n: n, Types.BIG_DEC()), [Decimal(7)]
    ),
    ApiCase(
        "lists_become_tuples",
        lambda env: env.from_collection([1]).map(lambda n: [n, "x"], Types.TUPLE([Types.LONG(), Types.STRING()])),
        [(1, "x")],
    ),
    ApiCase(
        "dicts_become_rows",
        lambda env: env.from_collection([1]).map(lambda n: {"age": n, "name": "ann"}, PERSON),
        [Row(name="ann", age=1)],
    ),
    ApiCase(
        "nested_types",
        lambda env: env.from_collection([1]).map(
            lambda n: (n, {"k": (True, 2)}, ("ann", 3.0)),
            Types.TUPLE([Types.DOUBLE(), Types.MAP(Types.STRING(), Types.LIST(Types.LONG())), PERSON]),
        ),
        [(1.0, {"k": [1, 2]}, Row(name="ann", age=3))],
    ),
    ApiCase(
        "side_output_converts_to_its_type",
        lambda env: env.from_collection([1, 2]).process(TaggedNumber()).get_side_output(AS_DOUBLE),
        [1.0, 2.0],
    ),
    ApiCase(
        "reduce_converts_to_the_declared_type",
        lambda env: env.from_collection([1, 2]).key_by(lambda n: 0).reduce(lambda a, b: a + b, Types.DOUBLE()),
        [1.0, 3.0],
        lambda _: 0,
        rolling=True,
    ),
]
