"""Batch tasks without Spark: a small engine runs a graph's tasks one after the other and sorts as Spark would."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.common import Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import (
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    ProcessFunction,
    ReduceFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import DataGeneratorSource, NumberSequenceSource
from tidegate.datastream.state import ListStateDescriptor, ValueStateDescriptor
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.splits import make_splits
from tidegate.spark.batch import blocks
from tidegate.spark.batch.group_sorter import GroupSorter
from tidegate.spark.batch.plan import BatchPlan, plan_job
from tidegate.spark.batch.report import JobReport
from tidegate.spark.batch.task import BatchTask
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.taskmanager.failure import OperatorFailure

Env = StreamExecutionEnvironment


def environment(parallelism: int = 2) -> Env:
    return Env.get_execution_environment().set_parallelism(parallelism)


def planned(stream: Any, buffer_bytes: int = 1 << 20) -> BatchPlan:
    stream.sink_to(CollectSink())
    env = stream._environment
    graph = make_splits(build_job_graph(env._operators, env._graph_settings()).job_graph)
    return plan_job(graph, RuntimeSettings(), buffer_bytes, None)


class Engine:
    """What Spark does between the tasks. `shuffle`: blocks arrive in this order before they are sorted."""

    def __init__(self, plan: BatchPlan, seed: int = 0, sort: bool = True) -> None:
        self.plan, self.random, self.sort = plan, random.Random(seed), sort
        self.outputs: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}

    def input_of(self, vertex: int, subtask: int) -> list[bytes]:
        pairs = []
        for (producer, _), output in self.outputs.items():
            if vertex in self.plan.consumers[producer]:
                wanted = self.plan.consumers[producer].index(vertex)
                pairs += [(k, b) for k, b in output if blocks.is_for(wanted, b)]
        mine = [(key, b) for k, b in pairs if (key := int.from_bytes(k, "big", signed=True)) & 0xFFFFFFFF == subtask]
        self.random.shuffle(mine)
        return [b for _, b in sorted(mine, key=lambda p: p[0])] if self.sort else [b for _, b in mine]

    def run_task(self, vertex: int, subtask: int) -> None:
        task = BatchTask(self.plan.vertices[vertex], subtask, 0, f"{vertex}-{subtask}")
        out = list(task.run(iter(self.input_of(vertex, subtask))))
        self.outputs[vertex, subtask] = list(zip(out[::2], out[1::2], strict=True))

    def run(self) -> list[Any]:
        for v in self.plan.graph.vertices:
            for subtask in range(v.parallelism):
                self.run_task(v.vertex_id, subtask)
        return self.results()

    def report(self) -> JobReport:
        found = [b for end in self.plan.ends for (v, _), out in self.outputs.items() if v == end for _, b in out]
        return JobReport.read(found, {(int(v), int(s)) for v, s in self.plan.graph.all_tasks()})

    def results(self) -> list[Any]:
        import pickle

        return [v for chunk in self.report().chunks for payload in chunk.payloads for v in pickle.loads(payload)]


def dealt_out(env: Env) -> Any:
    """Where a record goes depends on how many came before it: twice."""
    numbers = env.from_source(NumberSequenceSource(0, 999), WatermarkStrategy.no_watermarks(), "Numbers")
    return numbers.rebalance().map(lambda n: n).rebalance().map(lambda n: n).rebalance().map(lambda n: n)


@pytest.mark.parametrize("sorts", [True, False])
def test_a_recomputed_task_deals_its_records_out_as_the_first_time(
    sorts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of a middle task is lost when one of its two readers is done. Without an order, records get lost."""
    monkeypatch.setattr(blocks, "_FIRST_LIMIT", 20)
    plan = planned(dealt_out(environment(3)), buffer_bytes=200)
    engine = Engine(plan, seed=1, sort=sorts)
    vertices = [v.vertex_id for v in plan.graph.vertices]
    assert len(vertices) == 4
    for v in vertices[:3]:
        for subtask in range(3):
            engine.run_task(v, subtask)
    engine.run_task(vertices[3], 0)
    engine.run_task(vertices[2], 1)  # again: the others read this one's second output
    engine.run_task(vertices[3], 1)
    engine.run_task(vertices[3], 2)
    exact = Counter(engine.results()) == Counter(range(1000))
    assert exact is sorts


@pytest.mark.parametrize("chained", [True, False])
def test_large_records_leave_a_task_by_its_buffer_and_not_by_the_thousand(chained: bool) -> None:
    """A task that gathered thousands of records before it looked at their size brought Spark's JVM down, and so did
    blocks of many megabytes. Not chained, the small numbers come in one block and grow in the second task."""
    made: list[int] = []

    def grow(n: int) -> tuple[int, bytes]:
        made.append(n)
        return n, b"x" * 10_000

    source = NumberSequenceSource(0, 2999)
    numbers = environment(1).from_source(source, WatermarkStrategy.no_watermarks(), "Numbers")
    large = (numbers if chained else numbers.rebalance()).map(grow)
    plan = planned(large.key_by(lambda v: v[0] % 2).map(lambda v: v[0]), 1 << 18)
    engine = Engine(plan)
    growing = [v.vertex_id for v in plan.graph.vertices][0 if chained else 1]
    for vertex in range(growing):
        engine.run_task(vertex, 0)
    sizes, out = [], []
    for key_or_block in BatchTask(plan.vertices[growing], 0, 0, "a").run(iter(engine.input_of(growing, 0))):
        out.append(key_or_block)
        if len(out) % 2 == 0 and (kind := blocks.read_header(key_or_block).kind) == blocks.ROWS:
            sizes.append((len(blocks.read_records(key_or_block, kind)), len(key_or_block)))
            assert len(made) - sum(count for count, _ in sizes) <= 128
    assert max(size for _, size in sizes) <= blocks.MAX_BLOCK_BYTES
    assert sum(count for count, size in sizes if size > 1 << 18) <= 128  # before the size of records was known
    engine.outputs[growing, 0] = list(zip(out[::2], out[1::2], strict=True))
    engine.run_task(growing + 1, 0)
    assert sorted(engine.results()) == list(range(3000))


class Timed(KeyedProcessFunction):
    """Shows the order of records, the clock, both kinds of timers, and how many keys there is state for."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        assert ctx.timer_service().current_watermark() == -(2**63)
        self.seen.add(value[1])
        ctx.timer_service().register_event_time_timer(value[1] + 10)
        ctx.timer_service().register_processing_time_timer(2**50)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        if timestamp == 2**50:
            ctx.timer_service().register_processing_time_timer(2**51)  # never fires: the key is over
            yield ctx.get_current_key(), "end", list(self.seen.get())
        elif self.total.value() is None:
            self.total.update(1)
            yield ctx.get_current_key(), "first", timestamp


def test_keyed_input_comes_by_group_in_order_of_time_and_ends_with_its_timers() -> None:
    env = environment(2)
    events = [(f"k{i % 7}", (i * 37) % 100) for i in range(100)]
    stamped = env.from_collection(events).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda e, _: e[1])
    )
    found = Engine(planned(stamped.key_by(lambda e: e[0]).process(Timed()))).run()
    for key in {k for k, _ in events}:
        times = sorted(t for k, t in events if k == key)
        mine = [(what, value) for k, what, value in found if k == key]
        assert mine == [("first", times[0] + 10), ("end", times)]


def test_state_is_kept_for_one_group_of_keys_only() -> None:
    found = Engine(planned(env_numbers(environment(1), 5000).key_by(lambda n: n).process(LiveKeys()))).run()
    assert len(found) == 5000
    assert max(found) < 5000 / 128 * 3  # about a 128th of the keys, not all of them


def env_numbers(env: Env, count: int) -> Any:
    return env.from_source(NumberSequenceSource(1, count), WatermarkStrategy.no_watermarks(), "Numbers")


class LiveKeys(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.mine = runtime_context.get_state(ValueStateDescriptor("mine"))
        self.backend = runtime_context._context.keyed

    def process_element(self, value: int, ctx: Any) -> Iterator[int]:
        self.mine.update(value)
        yield sum(1 for _ in self.backend.keys("mine"))


class Slow(AsyncFunction):
    """Later records are answered sooner."""

    async def async_invoke(self, value: int) -> list[int]:
        import asyncio

        await asyncio.sleep((20 - value) / 2000)
        return [value]


def test_asynchronous_results_come_in_order_whatever_was_asked_for() -> None:
    stream = env_numbers(environment(1), 20)
    found = Engine(planned(AsyncDataStream.unordered_wait(stream, Slow(), 1000, 8))).run()
    assert found == list(range(1, 21))


def test_the_sorter_spills_and_keeps_the_order_of_equal_times() -> None:
    sorter = GroupSorter(in_memory=50)
    entries = [(i * 7 % 40, i % 2, i) for i in range(300)]
    for time, side, value in entries:
        sorter.add(RecordBatch([value], [time]), side)
    found = [(t, side, v) for side, b in sorter.drain() for t, v in zip(b.timestamps or [], b.values, strict=True)]
    assert found == sorted(entries, key=lambda e: e[0])
    assert sorter.empty


def test_an_unbounded_source_is_refused_by_name() -> None:
    env = environment(1).set_runtime_mode(RuntimeExecutionMode.BATCH)
    endless = env.from_source(DataGeneratorSource(lambda i: i), WatermarkStrategy.no_watermarks(), "Endless")
    endless.print()
    with pytest.raises(ConfigurationError, match=r"'Source: Endless'.*STREAMING"):
        env.execute()


def test_recovery_and_savepoint_folders_are_checked_first(tmp_path: Any) -> None:
    (tmp_path / "something").write_text("")
    for key, value, message in [
        ("execution.state-recovery.path", "file:///nowhere", "the checkpoint was never completed"),
        ("execution.batch.savepoint-path", str(tmp_path), "is not empty"),
        ("execution.batch.savepoint-path", f"{os.devnull}/x", "execution.batch.savepoint-path"),
    ]:
        env = environment(1).set_runtime_mode(RuntimeExecutionMode.BATCH)
        env._configuration.set_string(key, value)
        env.from_collection([1]).print()
        with pytest.raises(TidegateError, match=message):
            env.execute()


def test_the_buffer_size_decides_how_blocks_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_FIRST_LIMIT", 10)
    monkeypatch.setattr("tidegate.spark.batch.task._POLL", 100)

    def blocks_made(buffer_bytes: int) -> int:
        engine = Engine(planned(env_numbers(environment(1), 20_000).rebalance().map(lambda n: n), buffer_bytes))
        engine.run_task(0, 0)
        return len(engine.outputs[0, 0])

    assert blocks_made(1000) > 5 * blocks_made(1 << 20)


class Rich(ReduceFunction):
    def open(self, runtime_context: Any) -> None:
        self.opened = True

    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1], self.opened


def sent(engine: Engine) -> int:
    """Records that the sources' tasks have put into blocks."""
    found = [b for (v, _), out in engine.outputs.items() if v == 0 for _, b in out]
    kinds = [(b, blocks.read_header(b).kind) for b in found]
    rows = sum(len(blocks.read_records(b, kind)) for b, kind in kinds if kind in (blocks.ROWS, blocks.STAMPED))
    return rows + sum(len(blocks.read_combined(b)[0]) for b, kind in kinds if kind == blocks.COMBINED)


def test_a_reduce_function_has_keyed_state() -> None:
    """As in STREAMING: one count per key, and what the function returns depends on it."""

    class Numbered(ReduceFunction):
        def open(self, runtime_context: Any) -> None:
            self.calls = runtime_context.get_state(ValueStateDescriptor("calls", Types.LONG()))

        def reduce(self, value1: Any, value2: Any) -> Any:
            self.calls.update((self.calls.value() or 0) + 1)
            return value1[0], value1[1] + value2[1], self.calls.value()

    env = environment().set_runtime_mode(RuntimeExecutionMode.BATCH)
    pairs = env.from_collection([(key, 1, 0) for key in ("a", "b", "c") for _ in range(5)])
    engine = Engine(planned(pairs.key_by(lambda p: p[0]).reduce(Numbered())))
    assert sorted(engine.run()) == [("a", 5, 4), ("b", 5, 4), ("c", 5, 4)]


def test_a_reduced_value_may_have_another_key() -> None:
    """The sums of 0..99 by their last digits: 450 to 540, which all end with 0."""
    env = environment()
    numbers = env.from_source(NumberSequenceSource(0, 99), WatermarkStrategy.no_watermarks(), "Numbers")
    engine = Engine(planned(numbers.key_by(lambda n: n % 10).reduce(lambda a, b: a + b)))
    assert sorted(engine.run()) == list(range(450, 541, 10))
    assert sent(engine) == 20


@pytest.mark.parametrize(
    ("reduce", "stamped", "records"),
    [
        (lambda a, b: (a[0], a[1] + b[1], True), False, 14),
        (lambda a, b: (a[0], a[1] + b[1], True), True, 1000),  # an order is promised
        (Rich(), False, 1000),  # has to run in its operator
    ],
)
def test_a_reduce_begins_before_the_shuffle(reduce: Any, stamped: bool, records: int) -> None:
    env = environment()
    numbers = env.from_source(NumberSequenceSource(0, 999), WatermarkStrategy.no_watermarks(), "Numbers")
    pairs = numbers.map(lambda n: (n % 7, n, True))
    if stamped:
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
        pairs = pairs.assign_timestamps_and_watermarks(times)
    engine = Engine(planned(pairs.key_by(lambda p: p[0]).reduce(reduce)))
    assert sorted(engine.run()) == [(k, sum(range(k, 1000, 7)), True) for k in range(7)]
    assert sent(engine) == records


def test_many_keys_are_combined_in_turns_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.spark.batch.combining.MAX_KEYS", 100)
    for keys, expected in ((150, None), (1000, 1000)):
        env = environment(1)
        numbers = env.from_source(NumberSequenceSource(0, 2999), WatermarkStrategy.no_watermarks(), "Numbers")
        pairs = numbers.map(lambda n, keys=keys: (n % keys, n))
        engine = Engine(planned(pairs.key_by(lambda p: p[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))))
        assert sorted(engine.run()) == [(k, sum(range(k, 3000, keys))) for k in range(keys)]
        assert expected is None or sent(engine) > expected


def test_a_reduce_that_fails_before_the_shuffle_is_told_like_any_other() -> None:
    env = environment()
    reduced = env.from_collection([1, 2]).name("pair").key_by(lambda n: 0).reduce(lambda a, b: a / 0).name("divide")
    with pytest.raises(OperatorFailure, match=r"divide.*reduce\(\).*ZeroDivisionError"):
        Engine(planned(reduced)).run()
    reduced = environment().from_collection([1, 2]).key_by(lambda n: {n}).reduce(lambda a, b: a)
    with pytest.raises(OperatorFailure, match=r"key_by\(\).*set"):
        Engine(planned(reduced)).run()
    reduced = environment().from_collection([1, 2]).key_by(lambda n: [n] if n == 2 else n).reduce(lambda a, b: a)
    with pytest.raises(OperatorFailure, match=r"key_by\(\).*list"):
        Engine(planned(reduced)).run()


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("how", ["before the shuffle", "in its operator", "in order of time"])
def test_lists_are_keys(parallelism: int, how: str) -> None:
    env = environment(parallelism)
    numbers = env.from_source(NumberSequenceSource(0, 99), WatermarkStrategy.no_watermarks(), "Numbers")
    pairs = numbers.map(lambda n: (n % 10, n, True))
    if how == "in order of time":
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
        pairs = pairs.assign_timestamps_and_watermarks(times)
    keyed = pairs.key_by(lambda v: [v[0] % 5, [v[0] % 2]])
    reduced = keyed.reduce(Rich() if how == "in its operator" else lambda a, b: (a[0], a[1] + b[1], True))
    assert sorted(Engine(planned(reduced)).run()) == [(k, sum(range(k, 100, 10)), True) for k in range(10)]


def test_a_reduce_of_records_with_and_without_timestamps() -> None:
    """A union may have both; the result of a key has the timestamp of its last record that had one."""
    env = environment(1).set_max_parallelism(1)  # the keys are in one group
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
    stamped = env.from_collection([("a", 1), ("b", 2)]).assign_timestamps_and_watermarks(times)
    both = stamped.union(env.from_collection([("b", 10), ("c", 20)])).key_by(lambda p: p[0])
    reduced = both.reduce(lambda a, b: (a[0], a[1] + b[1])).process(Stamped())
    assert sorted(Engine(planned(reduced)).run()) == [("a", 1, 1), ("b", 12, 2), ("c", 20, None)]


class Stamped(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield *value, ctx.timestamp()


def test_large_results_of_a_reduce_leave_in_small_blocks_too() -> None:
    source = NumberSequenceSource(0, 199)
    env = environment(1).set_max_parallelism(1)  # all keys in one group
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers")
    large = numbers.map(lambda n: (n, b"x" * 20_000)).key_by(lambda v: v[0]).reduce(lambda a, b: a)
    engine = Engine(planned(large.map(lambda v: v[0])))
    assert sorted(engine.run()) == list(range(200))
    combined = [b for _, b in engine.outputs[0, 0] if blocks.read_header(b).kind == blocks.COMBINED]
    assert sum(map(len, combined)) > 200 * 20_000
    assert max(map(len, combined)) <= blocks.MAX_BLOCK_BYTES
