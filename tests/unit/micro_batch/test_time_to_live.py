"""State with a time to live: expired entries that nobody asks for are removed by small batches too."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.unit.micro_batch.engine import Engine
from tests.unit.micro_batch.test_buckets import neighbours
from tidegate.common import Time, Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import StateTtlConfig, ValueStateDescriptor
from tidegate.spark.micro_batch.plan import Limits
from tidegate.spark.micro_batch.task_state import figures_of, load_bucket
from tidegate.testing.clock import ManualClock

TTL_MS = 3_600_000
SMALL = 250  # batches, each of which looks at five entries


class Keep(KeyedProcessFunction):
    def open(self, ctx: Any) -> None:
        descriptor = ValueStateDescriptor("kept", Types.INT())
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(TTL_MS)).build())
        self.kept = ctx.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.kept.update(value)
        yield value


def entries(running: Engine) -> int:
    found = [figures_of(load_bucket(blob)) for blob in running.memories[1, 0].buckets.values()]
    return sum(count for figures in found for count, _ in figures.values())


def test_small_batches_come_to_every_entry_of_the_buckets_that_they_touch() -> None:
    """The backends are made anew for each batch. What is looked at first is alive: the head of the table, and what the
    batch has changed."""
    keys = neighbours(200)
    alive, forgotten = keys[:100], keys[100:]
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    stream = env.from_collection([*keys, *alive, *alive[:1] * SMALL, *range(10)]).key_by(lambda n: n).process(Keep())
    clock = ManualClock()
    running = Engine.collecting(stream, max_records=len(keys), buckets=128, clock=clock)

    def run(records: int) -> None:
        running.plan = dataclasses.replace(running.plan, limits=Limits(max_records=records, buckets=128))
        running.run_batch()

    run(len(keys))
    clock.now += TTL_MS * 0.6
    run(len(alive))
    clock.now += TTL_MS * 0.6
    assert entries(running) == len(alive) + len(forgotten)
    before = running.batch
    while entries(running) > len(alive) and running.batch < before + SMALL:
        run(1)
    assert entries(running) == len(alive)
