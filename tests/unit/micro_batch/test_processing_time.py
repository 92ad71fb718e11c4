"""Windows and timers in processing time: what is due when a batch begins fires in it, before its records; and that is
all that the reference model says, with the clock moving between batches only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.micro_batch.engine import Engine
from tests.unit.windows.kinds import PROCESSING_TIME, Kind
from tests.unit.windows.script_job import KEYS, START, Record, Script, Step, Wait, outcome_of, script_environment
from tests.unit.windows.test_against_the_model import compare, named, numbered, styles_of
from tidegate.common import Configuration, Types, WatermarkStrategy
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing.clock import ManualClock

PER_BATCH = 3
records = st.builds(Record, st.sampled_from("abc"), st.integers(0, 99))
batches = st.lists(
    st.tuples(st.lists(records, min_size=PER_BATCH, max_size=PER_BATCH), st.integers(1, 9).map(lambda n: 2 * n)),
    min_size=1,
    max_size=8,
)
"""The records of each, and how long nothing runs after it."""
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def steps_of(drawn: list[tuple[list[Record], int]]) -> list[Step]:
    return numbered([step for found, pause in drawn for step in (*found, Wait(pause))])


def run(env: StreamExecutionEnvironment, pauses: list[int], rest_ms: int, kills: int) -> Engine:
    """A batch for the records before each pause, and one when the source has come to its end."""
    clock = ManualClock()
    engine = Engine(env, max_records=PER_BATCH, kills=kills, seed=len(pauses), clock=clock)
    for pause in pauses:
        assert engine.run_batch().records_read == PER_BATCH
        clock.now += pause
    clock.now += rest_ms
    assert engine.run_batch().ended
    return engine


@pytest.mark.parametrize("kind", PROCESSING_TIME, ids=named)
@few
@given(drawn=batches, data=st.data(), parallelism=st.sampled_from([1, 2]), kills=st.integers(0, 2))
def test_windows_give_what_the_model_gives(
    kind: Kind, drawn: list[tuple[list[Record], int]], data: st.DataObject, parallelism: int, kills: int
) -> None:
    steps, pauses = steps_of(drawn), [pause for _, pause in drawn]
    windows: Any = partial(kind.windows, style=data.draw(st.sampled_from(styles_of(kind))))
    env = script_environment(steps, windows, KEYS, parallelism, with_late=True, rest_ms=kind.rest_ms)
    outcome = outcome_of(run(env, pauses, kind.rest_ms, kills).results, 0)
    compare(kind, steps, outcome.results, outcome.late)


class Alarms(KeyedProcessFunction):
    """Sets a timer for `value` ms from now, and takes the one before back when that is odd."""

    def open(self, ctx: Any) -> None:
        self.latest = ctx.get_state(ValueStateDescriptor("latest", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers = ctx.timer_service()
        now, latest = timers.current_processing_time(), self.latest.value()
        if latest is not None and value.value % 2:
            timers.delete_processing_time_timer(latest)
        self.latest.update(now + value.value)
        timers.register_processing_time_timer(now + value.value)
        yield ("record", value.key, now)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ("timer", ctx.get_current_key(), timestamp, ctx.timer_service().current_processing_time())


def alarms(drawn: list[tuple[list[Record], int]], rest_ms: int) -> list[Any]:
    found: list[Any] = []
    now, latest, timers = START, dict[str, int](), set[tuple[int, str]]()
    for records_of, pause in [*drawn, ([], 0)]:
        if not records_of:
            now += rest_ms
        found += [("timer", key, due, now) for due, key in timers if due <= now]
        timers = {(due, key) for due, key in timers if due > now}
        for key, value, _ in records_of:
            if value % 2:
                timers.discard((latest.get(key, -1), key))
            latest[key] = now + value
            timers.add((now + value, key))
            found.append(("record", key, now))
        now += pause
    return sorted(found)


@pytest.mark.parametrize("buckets", [1, 128, 1000])
@few
@given(drawn=batches, parallelism=st.sampled_from([1, 2]), kills=st.integers(0, 2))
def test_timers_fire_in_the_first_batch_after_they_are_due(
    buckets: int, drawn: list[tuple[list[Record], int]], parallelism: int, kills: int
) -> None:
    """In buckets that have no records in it, too."""
    small = [([r._replace(value=r.value % 20 + 1) for r in found], pause) for found, pause in drawn]
    steps = [step for found, pause in small for step in (*found, Wait(pause))]
    settings_of = {**KEYS, "tidegate.micro-batch.buckets": buckets}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings_of))
    source = env.from_source(Script([*steps, Wait(4)]), WatermarkStrategy.no_watermarks(), "script").set_parallelism(1)
    keyed = source.key_by(lambda record: record.key, Types.STRING())
    keyed.process(Alarms()).set_parallelism(parallelism).sink_to(CollectSink())
    assert sorted(run(env, [pause for _, pause in small], 4, kills).results) == alarms(small, 4)
