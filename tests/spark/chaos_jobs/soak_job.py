"""The jobs of `make soak-kills`: `soak_job.py KIND BACKEND ALIGNMENT`. All are bounded, deterministic, exactly once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from tidegate.common import Configuration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import (
    AsyncDataStream,
    AsyncFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows

RECORDS = 40_000
KEYS = 211


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1]) * 10


class Totals(KeyedProcessFunction):
    """The running total of each key, and a timer that says it again once event time has passed."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        if value[1] % 50 == 0:
            ctx.timer_service().register_event_time_timer(value[1] * 10 + 5_000)
        yield value[0], total

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), "timer", timestamp


class Pairs(KeyedCoProcessFunction):
    """Joins the two sides by position in their key: the n-th of one with the n-th of the other."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.left = runtime_context.get_list_state(ListStateDescriptor("left", Types.LONG()))
        self.right = runtime_context.get_list_state(ListStateDescriptor("right", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        return self._match(value, self.left, self.right)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        return self._match(value, self.right, self.left)

    @staticmethod
    def _match(value: Any, mine: Any, others: Any) -> Iterator[Any]:
        waiting = list(others.get())
        if waiting:
            others.update(waiting[1:])
            yield value[0], min(value[1], waiting[0]), max(value[1], waiting[0])
        else:
            mine.add(value[1])


RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Counted(KeyedBroadcastProcessFunction):
    """Counts each key. What is broadcast is kept and not used: when it comes is not the same in every run."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value[0], count

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(value[0], value[1])
        return iter(())


class Elsewhere(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        return [(value[0], value[1] * 2)]


def numbers(env: StreamExecutionEnvironment, name: str = "numbers", records: int = RECORDS) -> Any:
    source = DataGeneratorSource(lambda i: (f"k{i % KEYS}", i), records)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    return env.from_source(source, strategy, name).set_parallelism(1)  # so that the order within a key is the same


def build(env: StreamExecutionEnvironment, kind: str) -> Any:
    stream = numbers(env)
    keyed = stream.key_by(lambda v: v[0])
    if kind == "windows":
        return keyed.window(TumblingEventTimeWindows.of(Time.seconds(20))).reduce(lambda a, b: (a[0], a[1] + b[1]))
    if kind == "sliding":
        assigner = SlidingEventTimeWindows.of(Time.seconds(40), Time.seconds(10))
        return keyed.window(assigner).reduce(lambda a, b: (a[0], a[1] + b[1]))
    if kind == "timers":
        return keyed.process(Totals())
    if kind == "joins":
        other = numbers(env, "others").key_by(lambda v: v[0])
        return keyed.connect(other).process(Pairs()).map(lambda v: (v[0], 1))
    if kind == "broadcast":
        rules = env.from_collection([(f"rule {i}", i) for i in range(50)]).broadcast(RULES)
        return keyed.connect(rules).process(Counted())
    if kind == "async":
        answered = AsyncDataStream.unordered_wait(stream, Elsewhere(), Time.seconds(60), 50)
        return answered.key_by(lambda v: v[0]).reduce(lambda a, b: (a[0], a[1] + b[1])).map(lambda v: (v[0], 1))
    raise SystemExit(f"there is no job {kind}")


def main(kind: str, backend: str, alignment: str) -> None:
    configuration = Configuration()
    configuration.set_string("state.backend.type", backend)
    configuration.set_string("execution.checkpointing.unaligned.enabled", str(alignment == "unaligned").lower())
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(2)
    env.enable_checkpointing(200)
    for _ in build(env, kind).execute_and_collect():
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
