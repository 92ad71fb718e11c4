"""Buckets of keys: what a batch reads and writes of the state, and where subtasks are in Spark's shuffles."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from tests.unit.micro_batch.engine import Engine, Memory
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.spark.micro_batch import task_state
from tidegate.spark.micro_batch.bucket_keeper import BucketKeeper
from tidegate.spark.micro_batch.places import pick_places, spark_hash
from tidegate.spark.micro_batch.plan import Limits
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.state.heap.buckets import Buckets
from tidegate.state.key_groups import key_group
from tidegate.storage.handles import KeyedStateInfo
from tidegate.storage.writers import InlineTaskStateWriter

KEYS = 1000


class Remember(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update((self.seen.value() or "much to keep " * 20) + ".")
        yield value


class Forget(Remember):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.seen.value() is None:
            self.seen.update("seen")
        else:
            self.seen.clear()
        yield value


class Toggle(KeyedProcessFunction):
    """Keeps much, or nothing, in turn, and says what it had."""

    def open(self, ctx: Any) -> None:
        self.kept = ctx.get_state(ValueStateDescriptor("kept", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        had = self.kept.value() is not None
        if had:
            self.kept.clear()
        else:
            self.kept.update(f"{value} " * 100)
        yield value, had


def engine(function: Any, numbers: list[int], buckets: int, max_records: int = KEYS) -> Engine:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    stream = env.from_collection(numbers).key_by(lambda n: n).process(function)
    return Engine.collecting(stream, max_records=max_records, buckets=buckets)


def last_batch(buckets: int) -> tuple[int, int, int]:
    """Reads, writes and bytes of state in a batch that touches 10 keys of 1,000."""
    running = engine(Remember(), [*range(KEYS), *range(10)] + [0] * KEYS, buckets, max_records=KEYS)
    running.run_batch()
    running.plan = dataclasses.replace(running.plan, limits=Limits(max_records=10, buckets=buckets))
    before = running.memories[1, 0]
    running.run_batch()
    after = running.memories[1, 0]
    return after.reads - before.reads, after.writes - before.writes, after.bytes - before.bytes


def test_more_buckets_mean_less_state_for_a_small_batch() -> None:
    few, many = last_batch(128), last_batch(1024)
    assert few[1] <= 10
    assert many[1] == 10
    assert many[2] < few[2]


def test_only_buckets_with_records_are_read_and_written() -> None:
    running = engine(Remember(), [*range(100), *[7] * 300], 128, max_records=100)
    running.run_batch()
    before = running.memories[1, 0]
    running.run_batch()
    after = running.memories[1, 0]
    assert after.reads - before.reads == 1
    assert after.writes - before.writes == 1


def test_buckets_that_grow_are_split_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a batch that touches few keys: the others move too, and no bucket keeps what has left it."""
    monkeypatch.setattr(task_state, "MOST_BUCKET_BYTES", 1000)
    keys = range(200)  # few in a bucket, so that some lose them all
    running = engine(Toggle(), [*keys, *[7] * 5, *keys, *keys], 128, max_records=len(keys))
    running.run_batch()
    before = running.memories[1, 0].buckets
    assert sum(map(len, before.values())) > 1000 * len(before)
    running.plan = dataclasses.replace(running.plan, limits=Limits(max_records=1, buckets=128))
    for _ in range(5):
        running.run_batch()
    after = running.memories[1, 0]
    assert len(after.buckets) > len(before)
    assert after.blob is not None
    cut = Buckets(128, task_state.load_own(after.blob).buckets_per_group)
    assert after.buckets.keys() == cut.touched(key for key in keys if key != 7)  # which has nothing just now
    running.plan = dataclasses.replace(running.plan, limits=Limits(max_records=len(keys), buckets=128))
    running.run()
    seen: dict[int, list[bool]] = {}
    for key, had in running.results:
        seen.setdefault(key, []).append(had)
    assert seen == {key: [i % 2 == 1 for i in range(8 if key == 7 else 3)] for key in keys}


class Hoard(KeyedProcessFunction):
    """Keeps as many bytes as the record says, and says how many it had."""

    def open(self, ctx: Any) -> None:
        self.kept = ctx.get_state(ValueStateDescriptor("kept", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        key, size = value
        had = len(self.kept.value() or "")
        self.kept.update("x" * size)
        yield key, had


def hoarding(records: list[tuple[int, int]], per_batch: int) -> Engine:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    stream = env.from_collection(records).key_by(lambda record: record[0]).process(Hoard())
    return Engine.collecting(stream, max_records=per_batch, buckets=128)


def own(running: Engine) -> task_state.OwnState:
    blob = running.memories[1, 0].blob
    assert blob is not None
    return task_state.load_own(blob)


def neighbours(count: int) -> list[int]:
    """Keys of one bucket of 128."""
    of_key = Buckets(128, 1).of_key
    return [key for key in range(128 * count * 4) if of_key[key] == of_key[0]][:count]


def test_a_bucket_that_stands_out_is_split_though_the_others_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_state, "MOST_BUCKET_BYTES", 1000)
    near = neighbours(40)
    small = [(10_000 + n, 1) for n in range(300)]
    first = [*small, *((key, 600) for key in near)]
    running = hoarding([*first, *first[:10], *((key, 7) for key, _ in first)], len(first))
    running.run_batch()
    assert own(running).skew > 40 * 600
    assert sum(own(running).buckets.values()) < 1000 * len(own(running).buckets)
    running.plan = dataclasses.replace(running.plan, limits=Limits(max_records=1, buckets=128))
    for _ in range(10):
        running.run_batch()
    assert own(running).buckets_per_group > 1
    assert max(own(running).buckets.values()) <= 8 * 1000
    running.plan = dataclasses.replace(running.plan, limits=Limits(max_records=1000, buckets=128))
    running.run()
    again = dict(running.results[-len(first) :])
    assert again == dict(first)


def test_nothing_is_split_for_one_key_with_much_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bucket is the same size, in however many others the rest lies. And it does not make the average."""
    monkeypatch.setattr(task_state, "MOST_BUCKET_BYTES", 1000)
    running = hoarding([(1, 1_000_000), *((2, 5) for _ in range(20))], 1)
    for _ in range(20):
        running.run_batch()
    assert own(running).buckets_per_group == 1
    assert len(own(running).lone) == 1


def test_what_lies_beside_a_key_with_much_state_is_not_split_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, to see whether that helps."""
    monkeypatch.setattr(task_state, "MOST_BUCKET_BYTES", 1000)
    of_key = Buckets(1024, 1).of_key
    near = [key for key in range(40_000) if of_key[key] == of_key[0]][:5]  # together, however often they are cut
    first = [*((key, 20_000 if key == 0 else 1) for key in near), *((100_000 + n, 1) for n in range(300))]
    running = hoarding([*first, *first[-20:]], len(first))
    running.run_batch()
    assert own(running).skew > 20_000
    running.plan = dataclasses.replace(running.plan, limits=Limits(max_records=1, buckets=128))
    for _ in range(20):
        running.run_batch()
    assert own(running).buckets_per_group == 2


def test_buckets_without_entries_are_dropped() -> None:
    running = engine(Forget(), [*range(50), *range(50)], 128, max_records=50)
    running.run_batch()
    assert running.memories[1, 0].buckets
    running.run_batch()
    assert not running.memories[1, 0].buckets


def test_a_bucket_that_one_of_two_keyed_operators_has_changed_keeps_what_the_other_has_in_it() -> None:
    """And the buckets that neither has changed are not written. No program has two in one chain today: `key_by` is an
    exchange."""

    def backend(name: str) -> tuple[OperatorId, HeapKeyedStateBackend]:
        made = HeapKeyedStateBackend(name, (0, 128), 128)
        made.table(KeyedStateInfo(name="kept", kind="value"))
        return OperatorId(name), made

    buckets, memory = Buckets(128, 1), Memory()
    keyed = [backend("first"), backend("second")]
    for _, one in keyed:
        for key in range(KEYS):
            one.tables()[0].put(key, key)
    keeper = BucketKeeper(buckets, memory, None, {}, False)
    keeper.keep(keyed, CheckpointId(1), InlineTaskStateWriter(1 << 62, "task"))
    first = memory.writes
    assert first == len(memory.buckets) > 120
    own = task_state.OwnState(checkpoint_id=CheckpointId(1), operators=[], buckets=keeper.sizes, figures=keeper.figures)
    loaded = {number: task_state.figures_of(task_state.load_bucket(blob)) for number, blob in memory.buckets.items()}
    keyed[1][1].tables()[0].put(7, -1)
    keyed[1][1].tables()[0].remove(8)
    keeper = BucketKeeper(buckets, memory, own, loaded, False)
    keeper.keep(keyed, CheckpointId(2), InlineTaskStateWriter(1 << 62, "task"))
    assert memory.writes == first + 2
    found = [task_state.figures_of(task_state.load_bucket(blob)) for blob in memory.buckets.values()]
    counted = Counter[str]()
    for figures in found:
        counted.update({name: entries for name, (entries, _) in figures.items()})
    assert counted == {"first/kept": KEYS, "second/kept": KEYS - 1}
    assert keeper.figures is not None
    assert {name: entries for name, (entries, _) in keeper.figures.items()} == counted


class Alarm(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value + 15)
        return []

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp


def test_timers_of_keys_without_records_fire_in_the_batch_that_makes_them_due() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda n, _: n)
    stamped = env.from_collection(list(range(60))).assign_timestamps_and_watermarks(times)
    running = Engine.collecting(stamped.key_by(lambda n: n).process(Alarm()), max_records=10, kills=2)
    for _ in range(5):
        assert not running.run_batch().ended
    assert running.results == [(n, n + 15) for n in range(34)]  # the watermark is at 48
    assert running.run().results == [(n, n + 15) for n in range(60)]


def test_all_keys_of_a_bucket_are_of_one_key_group() -> None:
    buckets = Buckets(128, 8)
    assert buckets.count == 1024
    assert all(buckets.group_of(buckets.of_key[key]) == key_group(key, 128) for key in range(5000))


def test_sparks_hash() -> None:
    """As `SELECT hash(CAST(n AS INT))` says."""
    assert [spark_hash(n) for n in (0, 1, 2, -1, 42)] == [933211791, -559580957, 1765031574, -1604776387, 29417773]


def test_subtasks_are_spread_over_the_partitions() -> None:
    tasks = [(vertex, subtask) for vertex in range(5) for subtask in range(7)]
    places = pick_places(tasks, 7)
    assert len(set(places.values())) == len(tasks)
    assert 0 not in places.values()
    assert all(spark_hash(place) % 7 == subtask for (_, subtask), place in places.items())
    assert Counter(spark_hash(place) % 7 for place in places.values()) == dict.fromkeys(range(7), 5)
