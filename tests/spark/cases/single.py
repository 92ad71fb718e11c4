"""Operators on one stream without keys: map, flat_map, filter, process, project, union, side outputs, settings."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.spark.cases.case import ApiCase
from tidegate.common import Row, Types, WatermarkStrategy
from tidegate.datastream import (
    DataStream,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import NumberSequenceSource

Env = StreamExecutionEnvironment
NUMBERS = list(range(20))
EVEN = OutputTag("even", Types.LONG())
TEXT = OutputTag("text", Types.STRING())


def numbers(env: Env, count: int = 20) -> DataStream:
    return env.from_source(NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "Numbers")


class AddInOpen(MapFunction):
    def __init__(self, addend: int) -> None:
        self.addend = addend

    def open(self, runtime_context: RuntimeContext) -> None:
        self.table = {n: n + self.addend for n in range(100)}

    def map(self, value: int) -> int:
        return self.table[value]


class Repeat(FlatMapFunction):
    def flat_map(self, value: int) -> Iterator[int]:
        for _ in range(value % 3):
            yield value


class HoldAll(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.held: list[int] = []

    def flat_map(self, value: int) -> None:
        self.held.append(value)

    def finish(self) -> list[int]:
        return self.held


def changed_in_one_branch(env: Env) -> DataStream:
    def change(record: dict[str, int]) -> dict[str, int]:
        record["changes"] += 1
        return record

    records = numbers(env).map(lambda n: {"n": n, "changes": 0})
    changed = records.map(change).map(lambda r: ("changed", r["n"], r["changes"]))
    return changed.union(records.rebalance().map(lambda r: ("kept", r["n"], r["changes"])))


def some_or_none(value: int) -> list[int] | None:
    return [value, -value] if value % 4 == 0 else None


class IsOdd(FilterFunction):
    def filter(self, value: int) -> bool:
        return value % 2 == 1


class Describe(ProcessFunction):
    """Emits each record twice with what the context says."""

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value, ctx.timestamp(), ctx.timer_service().current_processing_time() > 10**12
        yield value


class SplitEven(ProcessFunction):
    """Odd ones go on, even ones to a side output, a text of every fifth to another."""

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value % 2 == 0:
            yield EVEN, value
        else:
            yield value
        if value % 5 == 0:
            yield TEXT, f"#{value}"


class Where(MapFunction):
    """(value, subtask, parallelism, max parallelism, attempt, task name, a job parameter)"""

    def open(self, runtime_context: RuntimeContext) -> None:
        c = runtime_context
        assert c.get_task_name_with_subtasks() == (
            f"{c.get_task_name()} ({c.get_index_of_this_subtask() + 1}/{c.get_number_of_parallel_subtasks()})#0"
        )
        self.place = (
            c.get_index_of_this_subtask(),
            c.get_number_of_parallel_subtasks(),
            c.get_max_number_of_parallel_subtasks(),
            c.get_attempt_number(),
            c.get_task_name(),
            c.get_job_parameter("greeting", "none"),
            c.get_job_parameter("missing", "default"),
        )

    def map(self, value: Any) -> Any:
        return (value, *self.place)


def side_outputs(env: Env) -> DataStream:
    main = numbers(env).process(SplitEven(), Types.LONG())
    even = main.get_side_output(EVEN).map(lambda n: ("even", n))
    text = main.get_side_output(TEXT).map(lambda t: ("text", t))
    return main.map(lambda n: ("main", n)).union(even, text)


def side_output_twice(env: Env) -> DataStream:
    main = numbers(env).process(SplitEven())
    return main.get_side_output(EVEN).union(main.get_side_output(EVEN).map(lambda n: n + 100))


def diamond(env: Env) -> DataStream:
    """One stream read by three, whose results meet again."""
    source = numbers(env)
    return source.map(lambda n: n + 1000).union(source.filter(lambda n: n < 5), source.map(lambda n: -n - 1))


def deep_chain(env: Env) -> DataStream:
    stream = numbers(env)
    for _ in range(30):
        stream = stream.map(lambda n: n + 1)
    return stream


def settings(env: Env) -> DataStream:
    return (
        numbers(env, 8)
        .map(Where())
        .name("Where it runs")
        .uid("where")
        .set_parallelism(2)
        .set_max_parallelism(64)
        .set_description("says where it runs")
    )


def places_seen(records: list[Any]) -> Any:
    values = sorted(r[0] for r in records)
    return values, {r[2:] for r in records}, {r[1] for r in records}


def chained(env: Env, chaining: str) -> DataStream:
    """pid and thread do not tell a chain, so: the same results whatever the chaining is."""
    if chaining == "off":
        env.disable_operator_chaining()
    stream = numbers(env).map(lambda n: n + 1).name("one")
    if chaining == "new":
        stream.start_new_chain()
    if chaining == "never":
        stream.disable_chaining()
    return stream.filter(lambda n: n % 2 == 0).map(lambda n: n * 10)


def sharing_groups(env: Env) -> DataStream:
    """Operators of different groups run in different processes."""
    first = numbers(env).map(lambda n: (n, os.getpid())).slot_sharing_group("first")
    second = first.map(lambda r: (*r, os.getpid()))
    return second.slot_sharing_group(SlotSharingGroup("second"))


def processes_apart(records: list[Any]) -> Any:
    first, second = {r[1] for r in records}, {r[2] for r in records}
    return sorted(r[0] for r in records), len(first), len(second), len(first & second)


CASES = [
    ApiCase("map", lambda env: numbers(env).map(lambda n: n * n, Types.LONG()), [n * n for n in NUMBERS]),
    ApiCase("map_builtin", lambda env: numbers(env).map(str), [str(n) for n in NUMBERS]),
    ApiCase("map_class_with_open", lambda env: numbers(env).map(AddInOpen(7)), [n + 7 for n in NUMBERS]),
    ApiCase(
        "map_keeps_order_within_a_chain",
        lambda env: env.from_collection(NUMBERS).map(lambda n: n * 2).set_parallelism(1),
        [n * 2 for n in NUMBERS],
        parallelisms=(1,),
        key=lambda _: "all",
    ),
    ApiCase("map_to_none", lambda env: numbers(env, 6).map(lambda n: None), [None] * 6),
    ApiCase(
        "map_batches",
        lambda env: numbers(env).map_batches(lambda values: [-v for v in values], size=3, max_wait=50),
        [-n for n in NUMBERS],
    ),
    ApiCase("held_back_to_the_end", lambda env: numbers(env).flat_map(HoldAll()), NUMBERS),
    ApiCase(
        "changed_in_one_branch",
        changed_in_one_branch,
        [("changed", n, 1) for n in NUMBERS] + [("kept", n, 0) for n in NUMBERS],
    ),
    ApiCase(
        "flat_map_generator", lambda env: numbers(env).flat_map(Repeat()), [n for n in NUMBERS for _ in range(n % 3)]
    ),
    ApiCase(
        "flat_map_list_or_none",
        lambda env: numbers(env).flat_map(some_or_none),
        [m for n in NUMBERS if n % 4 == 0 for m in (n, -n)],
    ),
    ApiCase("filter", lambda env: numbers(env).filter(lambda n: n > 12), [13, 14, 15, 16, 17, 18, 19]),
    ApiCase("filter_class", lambda env: numbers(env).filter(IsOdd()), [n for n in NUMBERS if n % 2]),
    ApiCase("filter_drops_all", lambda env: numbers(env).filter(lambda n: False), []),
    ApiCase(
        "process",
        lambda env: numbers(env, 5).process(Describe()),
        [r for n in range(5) for r in ((n, None, True), n)],
    ),
    ApiCase(
        "side_outputs",
        side_outputs,
        [("main", n) for n in NUMBERS if n % 2]
        + [("even", n) for n in NUMBERS if n % 2 == 0]
        + [("text", f"#{n}") for n in NUMBERS if n % 5 == 0],
    ),
    ApiCase(
        "side_output_read_twice",
        side_output_twice,
        [n for n in NUMBERS if n % 2 == 0] + [n + 100 for n in NUMBERS if n % 2 == 0],
    ),
    ApiCase("side_output_unread", lambda env: numbers(env).process(SplitEven()), [n for n in NUMBERS if n % 2]),
    ApiCase(
        "project",
        lambda env: env.from_collection([(1, "a", 2.0), (2, "b", 4.0)]).project(2, 0),
        [(2.0, 1), (4.0, 2)],
    ),
    ApiCase(
        "project_rows",
        lambda env: env.from_collection([Row(id=1, name="a"), Row(id=2, name="b")]).project(1),
        [("a",), ("b",)],
    ),
    ApiCase(
        "union",
        lambda env: env.from_collection([1, 2]).union(env.from_collection([2, 3]), numbers(env, 3)),
        [1, 2, 2, 3, 0, 1, 2],
    ),
    ApiCase(
        "union_with_itself",
        lambda env: (lambda s: s.union(s))(numbers(env, 5)).map(str),
        [str(n) for n in range(5)] * 2,
    ),
    ApiCase(
        "diamond",
        diamond,
        [n + 1000 for n in NUMBERS] + [n for n in NUMBERS if n < 5] + [-n - 1 for n in NUMBERS],
    ),
    ApiCase("deep_chain", deep_chain, [n + 30 for n in NUMBERS]),
    ApiCase(
        "operator_settings_and_runtime_context",
        settings,
        (list(range(8)), {(2, 64, 0, "Where it runs", "hello", "default")}, {0, 1}),
        view=places_seen,
        config=(("pipeline.global-job-parameters", "greeting:hello"),),
    ),
    ApiCase(
        "environment_max_parallelism",
        lambda env: numbers(env.set_max_parallelism(12), 8).map(Where()),
        lambda p: (list(range(8)), {(p, 12, 0, "Map", "none", "default")}, set(range(p))),
        view=places_seen,
    ),
    ApiCase("start_new_chain", lambda env: chained(env, "new"), [n * 10 for n in range(2, 21, 2)]),
    ApiCase("disable_chaining", lambda env: chained(env, "never"), [n * 10 for n in range(2, 21, 2)]),
    ApiCase("disable_operator_chaining", lambda env: chained(env, "off"), [n * 10 for n in range(2, 21, 2)]),
    ApiCase(  # one source and no operator: PyFlink's order
        "execute_and_collect_of_a_collection",
        lambda env: env.from_collection([*NUMBERS, *NUMBERS]),
        [*NUMBERS, *NUMBERS],
        key=lambda n: "all",
        parallelisms=(2,),
    ),
    ApiCase(
        "slot_sharing_group",
        sharing_groups,
        lambda p: (NUMBERS, p, p, 0),
        view=processes_apart,
        parallelisms=(1,),
    ),
]


def counts_per_subtask(records: list[Any]) -> list[int]:
    """How many records each subtask got, smallest first; records are (value, subtask, ...)."""
    return sorted(Counter(r[1] for r in records).values())
