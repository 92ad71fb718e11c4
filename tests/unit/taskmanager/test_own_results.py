"""A result belongs to who gets it: what the function does to its own objects afterwards does not reach it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from tidegate.common import Configuration, Row, Time, Types, WatermarkStrategy
from tidegate.datastream import DataStream, OutputTag, StreamExecutionEnvironment
from tidegate.datastream.functions import (
    AggregateFunction,
    CoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
)
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.datastream.window import CountTrigger, SlidingEventTimeWindows, TumblingEventTimeWindows
from tidegate.taskmanager.own_results import OwnResults
from tidegate.testing import InProcessJob

pytestmark = pytest.mark.filterwarnings("ignore::tidegate.common.errors.MutatedInputWarning")

EXPECTED = [1, 2, 3]
SIDE = OutputTag("side")


def environment() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    return env


class Total(KeyedProcessFunction):
    """Yields the very object that it keeps."""

    def __init__(self) -> None:
        self.total = {"n": 0}

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total["n"] += 1
        yield self.total


class TotalInState(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.state = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        total = self.state.value() or {"n": 0}
        total["n"] += 1
        self.state.update(total)
        yield total


class TotalOnTimer(KeyedProcessFunction):
    def __init__(self) -> None:
        self.total = {"n": 0}

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        self.total["n"] += 1
        yield self.total


class TotalPlain(ProcessFunction):
    def __init__(self) -> None:
        self.total = {"n": 0}

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total["n"] += 1
        yield self.total


class TotalToSide(TotalPlain):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total["n"] += 1
        yield SIDE, self.total


class TotalReturned(TotalPlain):
    def process_element(self, value: Any, ctx: Any) -> list[Any]:  # type: ignore[override]
        self.total["n"] += 1
        return [self.total]


class TotalOfTwo(CoProcessFunction):
    def __init__(self) -> None:
        self.total = {"n": 0}

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total["n"] += 1
        yield self.total

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from ()


class TotalMap(MapFunction):
    def __init__(self) -> None:
        self.total = {"n": 0}

    def map(self, value: Any) -> Any:
        self.total["n"] += 1
        return self.total


class InPlace(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        value1["n"] += value2["n"]
        return value1


def reduce_in_place(a: Any, b: Any) -> Any:
    a["n"] += b["n"]
    return a


class Counter(AggregateFunction):
    """Returns its accumulator, which it goes on changing."""

    def create_accumulator(self) -> Any:
        return {"n": 0}

    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator["n"] += 1
        return accumulator

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        raise NotImplementedError


class Elements(ProcessWindowFunction):
    def __init__(self) -> None:
        self.total = {"n": 0}

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        self.total["n"] += 1
        yield self.total


def numbers(stream: DataStream) -> DataStream:
    return stream.key_by(lambda r: 0)


def timed(stream: DataStream) -> DataStream:
    ordered = WatermarkStrategy.for_monotonous_timestamps()
    stamped = stream.assign_timestamps_and_watermarks(ordered.with_timestamp_assigner(lambda n, _: n))
    return stamped.key_by(lambda r: 0)


def records(stream: DataStream) -> DataStream:
    return stream.map(lambda n: {"n": 1}).key_by(lambda r: 0)


WAYS: dict[str, Callable[[DataStream], DataStream]] = {
    "keyed process": lambda s: numbers(s).process(Total()),
    "state": lambda s: numbers(s).process(TotalInState()),
    "timers": lambda s: timed(s).process(TotalOnTimer()),
    "process": lambda s: s.process(TotalPlain()),
    "a returned list": lambda s: s.process(TotalReturned()),
    "side output": lambda s: s.process(TotalToSide()).get_side_output(SIDE),
    "connected": lambda s: s.connect(s.filter(lambda n: False)).process(TotalOfTwo()),
    "map": lambda s: s.map(TotalMap()),
    "keyed map": lambda s: numbers(s).map(TotalMap()),
    "reduce": lambda s: records(s).reduce(reduce_in_place),
    "a ReduceFunction": lambda s: records(s).reduce(InPlace()),
    "windows": lambda s: timed(s).window(TumblingEventTimeWindows.of(Time.milliseconds(1))).process(Elements()),
}


@pytest.mark.parametrize("far", [False, True], ids=["chained", "sent on"])
@pytest.mark.parametrize("way", WAYS)
def test_results_are_what_they_were_when_they_came(way: str, far: bool) -> None:
    stream = WAYS[way](environment().from_collection(EXPECTED))
    if far:
        stream = stream.rebalance()
    with InProcessJob.collecting(stream) as job:
        job.run_to_end()
        assert [result["n"] for result in job.results] == EXPECTED


def test_a_trigger_that_fires_again_shows_the_accumulator_as_it_was_each_time() -> None:
    stream = timed(environment().from_collection([1, 1001, 2001, 3001]))
    window = stream.window(TumblingEventTimeWindows.of(Time.seconds(10)))
    fired = window.trigger(CountTrigger.of(1)).aggregate(Counter())
    with InProcessJob.collecting(fired.map(lambda r: r)) as job:
        job.run_to_end()
        assert [result["n"] for result in job.results] == [1, 2, 3, 4]


def test_what_a_reader_does_to_a_result_does_not_reach_the_state_of_reduce() -> None:
    def spoil(record: Any) -> Any:
        record["n"] += 100
        return record["n"] - 100

    with InProcessJob.collecting(
        records(environment().from_collection(EXPECTED)).reduce(reduce_in_place).map(spoil)
    ) as job:
        job.run_to_end()
        assert job.results == EXPECTED


def parts_in_windows(backend: str, values: list[dict[str, Any]], reuse: bool = False) -> Any:
    """Windows of 3 ms every ms over records that come a ms apart, the first at 1."""
    env = environment()
    configuration = Configuration()
    configuration.set_string("state.backend.type", backend)
    env.configure(configuration)
    if reuse:
        env.get_config().enable_object_reuse()
    return timed(env.from_collection(range(1, len(values) + 1))).map(values_of(values)).key_by(lambda r: 0)


def values_of(values: list[dict[str, Any]]) -> Callable[[int], Any]:
    return lambda n: values[n - 1]


def spoil_and_tell(record: Any) -> Any:
    told = record["n"]
    record["n"] = 1000
    return told


class SpoilAndTell(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        (total,) = elements
        yield spoil_and_tell(total)


SLIDING = SlidingEventTimeWindows.of(Time.milliseconds(3), Time.milliseconds(1))
IN_WINDOWS = {
    "in place": lambda w: w.reduce(reduce_in_place).map(lambda r: r["n"]),
    "the second": lambda w: w.reduce(lambda a, b: reduce_in_place(b, a)).map(lambda r: r["n"]),
    "a map that changes its record": lambda w: w.reduce(reduce_in_place).map(spoil_and_tell),
    "and process": lambda w: w.reduce(reduce_in_place, SpoilAndTell()),
}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("reuse", [False, True], ids=["", "with object reuse"])
@pytest.mark.parametrize("way", IN_WINDOWS)
def test_what_a_sliding_window_gives_away_is_not_what_the_next_one_is_made_of(
    way: str, reuse: bool, backend: str
) -> None:
    stream = parts_in_windows(backend, [{"n": 1}, {"n": 1}, {"n": 5}], reuse).window(SLIDING)
    with InProcessJob.collecting(IN_WINDOWS[way](stream)) as job:
        job.run_to_end()
        assert job.results == [1, 2, 7, 6, 5]


def test_nor_when_thousands_of_parts_could_not_be_changed_before() -> None:
    def add(a: Any, b: Any) -> Any:
        return reduce_in_place(b, a) if isinstance(a, dict) and isinstance(b, dict) else {"n": number(a) + number(b)}

    def number(part: Any) -> Any:
        return part["n"] if isinstance(part, dict) else part

    values: list[Any] = [1] * 1500 + [{"n": 1}] * 20
    stream = parts_in_windows("hashmap", values).window(SLIDING).reduce(add)
    with InProcessJob.collecting(stream.map(number)) as job:
        job.run_to_end()
        assert job.results == [1, 2, *[3] * 1518, 2, 1]


def test_with_object_reuse_nothing_is_copied() -> None:
    env = environment()
    env.get_config().enable_object_reuse()
    with InProcessJob.collecting(env.from_collection(EXPECTED).process(TotalPlain()).map(id)) as job:
        job.run_to_end()
        assert len(set(job.results)) == 1


# ---------------------------------------------------------------- what is copied, and what need not be
class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    key: str
    value: Any


@dataclass
class Point:
    x: int
    items: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    items: list[int]


SHARED = [1, 2]
MADE: dict[str, Callable[[], Any]] = {
    "number": lambda: 1,
    "tuple": lambda: (1, ("a", Color.RED)),
    "named tuple": lambda: Pair("a", 1.5),
    "dict": lambda: {"a": 1, "b": [1, 2]},
    "Row": lambda: Row(1, [2]),
    "dataclass": lambda: Point(1, [2]),
    "array": lambda: np.zeros(3),
    "view of its own": lambda: np.zeros(4).reshape(2, 2),
}
HELD: dict[str, Callable[[], Any]] = {
    "itself": lambda: SHARED,
    "in a dict": lambda: {"a": SHARED},
    "in a tuple": lambda: (1, SHARED),
    "in a named tuple": lambda: Pair("a", SHARED),
    "in a Row": lambda: Row(1, SHARED),
    "in an object": lambda: Point(1, SHARED),
    "in slots": lambda: Slotted(SHARED),
    "deep": lambda: {"a": [({"b": SHARED},)]},
    "view": lambda: ARRAY[:2],
}
ARRAY = np.arange(4)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_was_made_for_the_result_is_not_copied(make: Callable[[], Any]) -> None:
    made: list[int] = []

    def noted() -> Any:
        result = make()
        made.append(id(result))
        return result

    def yielding() -> Iterator[Any]:
        yield noted()

    own = OwnResults(True)
    (result,) = own.many(yielding)()
    assert id(result) == made[0]
    result = own.one(lambda record: noted())(None)
    assert id(result) == made[1]


@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
def test_what_somebody_else_has_too_is_copied(make: Callable[[], Any]) -> None:
    def spoiled() -> Iterator[Any]:
        yield make()
        SHARED.append(3)
        ARRAY[0] = 9

    own = OwnResults(True)
    before = repr(make())
    try:
        assert repr(next(iter([*own.many(spoiled)()]))) == before
    finally:
        del SHARED[2:]
        ARRAY[0] = 0


def test_a_record_that_a_map_returns_is_not_copied() -> None:
    record = [1]
    assert OwnResults(True).one(lambda r: r)(record) is record


def test_plain_results_soon_cost_nothing_until_one_can_be_changed() -> None:
    own, function = OwnResults(True), len
    assert own.one(function) is not function
    own.look([1] * 999)
    assert own.careful
    own.look(["a"])
    assert own.one(function) is function
    held = [1]
    changing = [held, held]
    own.look(changing)
    assert all(value is not held for value in changing)
    own.look([1] * 10_000)
    assert own.one(function) is not function, "for good"


def test_an_object_that_is_kept_after_thousands_that_were_not_is_copied() -> None:
    kept: list[dict[str, int]] = []

    def count(n: int) -> dict[str, int]:
        result = {"n": n}
        if n > 5000:
            kept.append(result)
            for other in kept:
                other["n"] = n
        return result

    with InProcessJob.collecting(environment().from_collection(range(6000)).map(count)) as job:
        job.run_to_end()
        assert [result["n"] for result in job.results] == list(range(6000))


def test_so_is_one_that_is_a_part_of_the_result() -> None:
    shared: list[int] = []
    own = OwnResults(True)
    own.one(lambda r: [r])(1)
    own.look([[1]] * 1000)
    results = [{"items": shared}, {"items": shared}]
    own.look(results)
    assert results[0]["items"] is not shared


def test_records_in_a_returned_list_are_not_copied_unless_somebody_has_them() -> None:
    own, held = OwnResults(True), {"a": 1}
    made: list[int] = []

    def listed() -> list[Any]:
        results: list[Any] = [{"b": n} for n in range(3)]
        made[:] = map(id, results)
        return results

    assert list(map(id, own.many(listed)())) == made
    assert own.many(lambda: [held])()[0] is not held


def test_a_declared_type_is_no_way_around_it() -> None:
    row = Row(0)

    def count(n: int) -> Row:
        row[0] = n
        return row

    stream = environment().from_collection(EXPECTED).map(count, Types.ROW([Types.INT()]))
    with InProcessJob.collecting(stream) as job:
        job.run_to_end()
        assert [result[0] for result in job.results] == EXPECTED
