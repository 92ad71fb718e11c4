"""Keyed state of a micro-batch job that somebody looks at: answers come with the end of a batch, and are committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.micro_batch.engine import Engine
from tests.unit.micro_batch.query_stand_in import KilledError
from tests.unit.micro_batch.test_jobs import World, world
from tidegate.common import Time, Types, WatermarkStrategy
from tidegate.common.errors import (
    StateHiddenError,
    StateNotReadableError,
    UnknownStateError,
    WrongKeyError,
)
from tidegate.common.ids import SlotIndex
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.functions import AggregateFunction
from tidegate.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.jobmanager.job_publisher import JobPublisher
from tidegate.jobmanager.job_view import states_of
from tidegate.jobmanager.live_state import LiveStates, StateHandle, StateLevel
from tidegate.protocol.messages import StateLookup, StateResult
from tidegate.spark.micro_batch.looks import BatchLooks, Look
from tidegate.web.live_state import StateQuestion, answer

__all__ = ["world"]


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, one: Any, other: Any) -> Any:
        return one[0] + other[0], one[1] + other[1]


class AllKinds(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.last = ctx.get_map_state(MapStateDescriptor("last", Types.STRING(), Types.LONG()))
        self.sum = ctx.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        self.mean = ctx.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), Types.PICKLED_BYTE_ARRAY()))
        secret = ValueStateDescriptor("card", Types.LONG())
        secret.hide_from_queries()
        self.card = ctx.get_state(secret)

    def process_element(self, value: int, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.seen.add(value)
        self.last.put("value", value)
        self.sum.add(value)
        self.mean.add(value)
        self.card.update(value)
        yield value


class Asked:
    """The driver's side on the engine: a question is answered by the next batch."""

    patience_s = 1.0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looks = BatchLooks(engine.graph)

    def ask(self, lookups: Any, timeout_s: float) -> list[StateResult]:
        numbers = [self._looks._look(slot, lookup) for slot, lookup in lookups]
        report = self._engine.run_batch(looks=numbers)
        found = dict(report.answers())
        assert set(found) == {look.number for look in numbers}
        return [found[look.number] for look in numbers]


def states_of_engine(engine: Engine) -> LiveStates:
    publisher = JobPublisher(engine.graph, "MICRO_BATCH", 1, 0.0)
    reports = {(s.subtask, s.operator_id, s.state): s for report in engine.reports for s in report.states()}
    publisher.update(states=states_of(engine.graph, publisher.queries, reports.values()))
    return LiveStates(engine.graph, publisher, Asked(engine), committed=None)


def kinds(records: int | None, parallelism: int = 2, **settings: Any) -> Engine:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    source = DataGeneratorSource(lambda i: i, count=records)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers", Types.LONG())
    made = numbers.key_by(lambda n: n % 10, Types.LONG()).process(AllKinds(), Types.LONG()).uid("kinds")
    return Engine.collecting(made, max_records=30, **settings)


def test_every_kind_of_state_while_the_job_runs_and_after_its_input_has_ended() -> None:
    engine = kinds(100, kills=3)
    for _ in range(2):
        engine.run_batch()
    states = states_of_engine(engine)
    for ended in (False, True):
        if ended:
            engine.run()
        for key in (3, 8):
            found = {
                name: states.handle("kinds", name).get(key).value for name in ("count", "seen", "last", "sum", "mean")
            }
            values = [value for value in engine.results if value % 10 == key]
            # Each question is a batch, in which there may be more to count: the last answer is the newest.
            assert found["mean"] == sum(values) / len(values)
            assert {*found["seen"]} <= {*values}
            assert found["count"] <= len(found["seen"])
            assert found["last"]["value"] in values
            assert found["sum"] <= sum(values)
            if ended:
                assert (found["count"], found["sum"], sorted(found["seen"])) == (10, sum(values), sorted(values))
    with pytest.raises(StateHiddenError):
        states.handle("kinds", "card").get(3)
    with pytest.raises(UnknownStateError, match="'count'"):
        states.handle("kinds", "counts").get(3)
    with pytest.raises(WrongKeyError, match="are Long"):
        states.handle("kinds", "count").get("three")
    assert not states.handle("kinds", "count").get(77).found


def test_the_states_are_listed_with_what_all_buckets_have() -> None:
    engine = kinds(None)
    for _ in range(4):
        engine.run_batch()
    listed = {view.state: view for view in states_of_engine(engine).listing()}
    assert listed.keys() == {"count", "seen", "last", "sum", "mean", "card"}
    assert {view.entries for view in listed.values()} == {10}
    assert all(view.bytes > 0 for view in listed.values())
    assert listed["card"].hidden
    assert not listed["count"].hidden
    assert listed["count"].key_types == ("int",)
    assert listed["card"].key_types == ()


class Forgetting(KeyedProcessFunction):
    """Keys come in turn, and each second time a key has nothing any more."""

    def open(self, ctx: Any) -> None:
        self.there = ctx.get_state(ValueStateDescriptor("there", Types.LONG()))

    def process_element(self, value: int, ctx: Any) -> Any:
        if self.there.value() is None:
            self.there.update(value)
        else:
            self.there.clear()
        yield value


def test_the_number_of_entries_follows_what_is_deleted() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = DataGeneratorSource(lambda i: i % 50, count=75)
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers", Types.LONG())
    engine = Engine.collecting(numbers.key_by(lambda n: n).process(Forgetting(), Types.LONG()), max_records=10)
    engine.run()
    counted = [state.entries for report in engine.reports for state in report.states()]
    assert max(counted) == 50
    assert counted[-1] == 25


def test_windows_are_looked_into() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    ordered = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v * 1000)
    source = DataGeneratorSource(lambda i: i, count=None)
    numbers = env.from_source(source, ordered, "Numbers", Types.LONG())
    sums = (
        numbers.key_by(lambda n: "all", Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.seconds(1000)))
        .reduce(lambda a, b: a + b)
        .uid("sums")
    )
    engine = Engine.collecting(sums, max_records=30)
    for _ in range(3):
        engine.run_batch()
    found = states_of_engine(engine).handle("sums", "window-contents").get("all", window=(0, 1_000_000))
    assert found.value == sum(range(120))


def test_one_key_reads_one_bucket_and_nothing_is_written_for_it() -> None:
    engine = kinds(100, parallelism=1, buckets=512)
    engine.run()
    handle = states_of_engine(engine).handle("kinds", "count")
    before = {task: memory.reads for task, memory in engine.memories.items()}
    written = sum(memory.writes for memory in engine.memories.values())
    assert handle.get(4).value == 10
    reads = [memory.reads - before[task] for task, memory in engine.memories.items()]
    assert sum(reads) == 1
    assert sum(memory.writes for memory in engine.memories.values()) == written


def test_some_entries_of_all_subtasks() -> None:
    engine = kinds(100).run()
    handle = states_of_engine(engine).handle("kinds", "count")
    batches = engine.batch
    assert sorted(one.key for one in handle.scan()) == list(range(10))
    assert engine.batch == batches + 1  # all subtasks were asked at once
    assert len(handle.scan(limit=3)) == 3


# ---------------------------------------------------------------- on the driver


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)


def test_a_running_job_answers_with_what_is_committed(world: World) -> None:
    client = world.counting(records=None, rate=2000)
    handle: StateHandle = client.get_state("count", "count")
    latest: dict[int, tuple[int, int]] = {}
    for _ in range(3):
        for one in handle.get_many(range(10)):
            assert one.level is StateLevel.COMMITTED
            assert one.checkpoint is not None
            before = latest.get(one.key, (0, 0))
            latest[one.key] = one.checkpoint, one.value or 0
            assert latest[one.key] >= before
        assert len({checkpoint for checkpoint, _ in latest.values()}) == 1  # all of one batch
    assert handle.get(3, level="committed").value >= latest[3][1]
    document = answer(handle, StateQuestion(keys=("3",)))
    assert document["level"] == "committed"
    assert document["answers"][0]["checkpoint"] > 0
    assert [view.state for view in client.view().states] == ["count"]
    assert client.view().states[0].entries == 10
    client.cancel().result(60)
    with pytest.raises(StateNotReadableError, match="over"):
        handle.get(3)


@pytest.mark.parametrize("step", ["run", "report", "commit"])
def test_what_a_batch_had_that_was_not_committed_is_never_told(world: World, step: str) -> None:
    """The batch with the question dies; what it would have said is not handed out, and the next question is
    answered."""
    asked = threading.Event()
    died = threading.Event()

    def die_once(at: str, batch: int) -> None:
        if at == step and asked.is_set() and not died.is_set() and '"number"' in order_of(world, batch):
            died.set()
            raise KilledError

    world.hook = die_once
    client = world.counting(records=None, rate=2000)
    handle = client.get_state("count", "count")
    first = handle.get(3)
    asked.set()
    with pytest.raises(StateNotReadableError, match="RESTARTING"):
        handle.get(3)
    assert died.is_set()
    second = handle.get(3)
    assert second.checkpoint > first.checkpoint
    assert second.value >= first.value
    client.cancel().result(60)


def order_of(world: World, batch: int) -> str:
    return (world.location / "offsets" / str(batch)).read_text().replace("\\", "")


def test_an_answer_to_a_driver_before_this_one_is_nobodys() -> None:
    looks = BatchLooks(kinds(1).graph)
    looks.done([("of another driver", StateResult())], 3)  # type: ignore[arg-type]
    assert looks.take() == []


def test_a_question_waits_no_longer_than_its_asker() -> None:
    looks = BatchLooks(kinds(1).graph)
    with pytest.raises(StateNotReadableError, match="end of a batch"):
        looks.ask([(SlotIndex(0), a_lookup())], 0.01)
    assert looks.take() == []  # and goes with no batch then


def test_what_is_too_much_for_one_batch_waits_for_the_next() -> None:
    looks = BatchLooks(kinds(1).graph)
    threads = [
        threading.Thread(target=lambda: looks.ask([(SlotIndex(0), a_lookup(bytes(150_000)))], 60), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(looks._open) == 2)
    first, second = looks.take(), looks.take()
    assert len(first) == len(second) == 1
    answers: list[tuple[str, StateResult]] = [(look.number, StateResult()) for look in [*first, *second]]
    looks.done(answers, 1)  # type: ignore[arg-type]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_more_than_a_thousand_questions_are_refused() -> None:
    looks = BatchLooks(kinds(1).graph)
    with pytest.raises(StateNotReadableError, match="1000 at most"):
        looks.ask([(SlotIndex(0), a_lookup())] * 1_001, 60)


def a_lookup(query: bytes = b"") -> StateLookup:
    return StateLookup(vertex=0, operator_id="o", state="s", query=query)  # type: ignore[arg-type]


def test_a_question_that_cannot_be_read_is_answered_and_harms_no_batch() -> None:
    engine = kinds(100)
    engine.run_batch()
    keyed = next(v for v in engine.graph.vertices if v.operators[0].uid == "kinds")
    look = Look("1", int(keyed.vertex_id), 0, str(keyed.operators[0].operator_id), "count", "bm8gcGlja2xl")
    ((number, result),) = engine.run_batch(looks=[look]).answers()
    assert number == "1"
    assert result.problem is not None
    assert sorted(engine.run().results) == list(range(100))
