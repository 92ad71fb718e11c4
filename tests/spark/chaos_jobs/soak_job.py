"""The jobs of `make soak-kills`: `soak_job.py KIND BACKEND ALIGNMENT`. All are bounded, exactly once, and
deterministic: the same records, and those with the same first field in the same order.

Those of `WITH_TARGETS` write to real targets outside (`soak_targets.py` has them ready), one for each run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from tidegate.common import Configuration, Encoder, Time, Types, WatermarkStrategy
from tidegate.common.serialization import SimpleStringSchema
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
from tidegate.datastream.connectors import (
    BucketAssigner,
    DataGeneratorSource,
    DeliveryGuarantee,
    FileSink,
    RollingPolicy,
)
from tidegate.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from tidegate.datastream.connectors.postgres import PostgresSink
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows

RECORDS = 40_000
KEYS = 211
WITH_TARGETS = ("files", "kafka", "postgres")


def target_of(folder: str) -> str:
    """The topic or table of the run with this folder."""
    return re.sub(r"\W", "_", "_".join(os.path.normpath(folder).split(os.sep)[-2:])).lower()


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1]) * 10


class Totals(KeyedProcessFunction):
    """The running total of each key, in order; and timers, in order among themselves: when event time moves on is not
    the same in every run."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        if value[1] % 50 == 0:
            ctx.timer_service().register_event_time_timer(value[1] * 10 + 5_000)
        yield value[0], total

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield f"timer of {ctx.get_current_key()}", timestamp


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


class Lines(KeyedProcessFunction):
    """ "key count" for every record: each line has to be there exactly once."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield f"{value} {count}"


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


def build_with_target(env: StreamExecutionEnvironment, kind: str) -> None:
    folder = os.environ["TIDEGATE_CHAOS_FOLDER"]
    unmarked = WatermarkStrategy.no_watermarks()
    if kind == "kafka":
        servers, topic = os.environ["SOAK_KAFKA"].split()
        source = (
            KafkaSource.builder()
            .set_bootstrap_servers(servers)
            .set_topics(topic)
            .set_group_id(target_of(folder))
            .set_value_only_deserializer(SimpleStringSchema())
            .set_bounded(KafkaOffsetsInitializer.latest())
            .build()
        )
        keys = env.from_source(source, unmarked, "keys")
    else:
        keys = env.from_source(DataGeneratorSource(lambda i: f"k{i % KEYS}", RECORDS), unmarked, "keys")
    lines = keys.key_by(lambda key: key).process(Lines(), Types.STRING())
    if kind == "kafka":
        schema = KafkaRecordSerializationSchema.builder().set_topic(target_of(folder))
        sink = KafkaSink.builder().set_bootstrap_servers(servers).set_transactional_id_prefix(target_of(folder))
        sink.set_record_serializer(schema.set_value_serialization_schema(SimpleStringSchema()).build())
        lines.sink_to(sink.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).build())
    elif kind == "postgres":
        rows = PostgresSink.builder().set_url(os.environ["SOAK_POSTGRES"]).set_table(target_of(folder))
        lines.map(lambda line: (line,)).sink_to(rows.set_columns("line").build())
    else:
        files = FileSink.for_row_format(os.path.join(folder, "out"), Encoder.simple_string_encoder())
        files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        lines.sink_to(files.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).build())


def main(kind: str, backend: str, alignment: str) -> None:
    configuration = Configuration()
    configuration.set_string("state.backend.type", backend)
    configuration.set_string("execution.checkpointing.unaligned.enabled", str(alignment == "unaligned").lower())
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(2)
    env.enable_checkpointing(200)
    if kind in WITH_TARGETS:
        build_with_target(env, kind)
        env.execute(kind)
        return
    for _ in build(env, kind).execute_and_collect():
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
