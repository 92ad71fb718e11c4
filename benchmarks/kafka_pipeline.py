"""W1 (a running count per key) from Kafka to Kafka, exactly once, on Spark: its rate over a topic that is there, and
how long a record takes from its producer to a reader of committed records, at two checkpoint intervals."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

from benchmarks.report import Figure
from benchmarks.workloads import KEYS, RunningCount, environment, first
from tests.connectors.broker import Broker, running_broker
from tidegate.common import WatermarkStrategy
from tidegate.common.serialization import SerializationSchema, SimpleStringSchema
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)

PARTITIONS = 2
PER_SECOND = 2000  # in the measurement of latency: far from what the job can do


def run(quick: bool) -> list[Figure]:
    with running_broker() as broker:
        _rate(broker, 1000)  # starts Spark, and Python in its workers
        figures = [_rate(broker, 100_000 if quick else 500_000)]
        for interval_ms in (1000, 100):
            figures += _latency(broker, interval_ms, 5 if quick else 20)
    return figures


class Lines(SerializationSchema):
    """(key, count, stamp) as text."""

    def serialize(self, value: Any) -> bytes:
        return ",".join(map(str, value)).encode()


def split_line(line: str) -> tuple[int, str]:
    key, _, stamp = line.partition(",")
    return int(key), stamp


class StampedCount(RunningCount):
    """W1's function; the stamp of the record goes with the count."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        for key, count in super().process_element(value, ctx):
            yield key, count, value[1]


def _job(broker: Broker, topic: str, out: str, interval_ms: int, bounded: bool) -> Any:
    env = environment(2)
    env.enable_checkpointing(interval_ms)
    build = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics(topic)
    build.set_value_only_deserializer(SimpleStringSchema())
    if bounded:
        build.set_bounded(KafkaOffsetsInitializer.latest())
    schema = KafkaRecordSerializationSchema.builder().set_topic(out).set_value_serialization_schema(Lines()).build()
    sink = KafkaSink.builder().set_bootstrap_servers(broker.bootstrap_servers).set_record_serializer(schema)
    sink.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix(out)
    stream = env.from_source(build.build(), WatermarkStrategy.no_watermarks(), "in").map(split_line)
    stream.key_by(first).process(StampedCount()).sink_to(sink.build())
    return env


def _topics(broker: Broker) -> tuple[str, str]:
    name = uuid.uuid4().hex[:10]
    return broker.create_topic(f"{name}-in", PARTITIONS), broker.create_topic(f"{name}-out", PARTITIONS)


def _rate(broker: Broker, records: int) -> Figure:
    topic, out = _topics(broker)
    broker.produce(topic, [f"{n % KEYS},0" for n in range(records)])
    began = time.perf_counter()
    _job(broker, topic, out, 1000, bounded=True).execute("W1")
    took = time.perf_counter() - began
    return Figure("W1 Kafka to Kafka, exactly once, a checkpoint a second", f"{records / took:,.0f}/s")


def _latency(broker: Broker, interval_ms: int, seconds: int) -> list[Figure]:
    topic, out = _topics(broker)
    client = _job(broker, topic, out, interval_ms, bounded=False).execute_async("W1")
    ages: list[float] = []
    over = threading.Event()
    reader = threading.Thread(target=_read, args=(broker, out, ages, over))
    reader.start()
    _produce(broker, topic, seconds)
    time.sleep(2 * interval_ms / 1000 + 1)
    over.set()
    reader.join()
    client.cancel().result()
    ages = sorted(ages[len(ages) // 4 :])  # the first seconds are those of the start
    p50, p99 = ages[len(ages) // 2] * 1000, ages[len(ages) * 99 // 100] * 1000
    what = f"W1 Kafka to Kafka, {PER_SECOND:,}/s, a checkpoint every {interval_ms} ms: producer to committed reader"
    return [Figure(f"{what}, p50", f"{p50:.0f} ms"), Figure(f"{what}, p99", f"{p99:.0f} ms")]


def _produce(broker: Broker, topic: str, seconds: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1})
    began = time.perf_counter()
    for n in range(seconds * PER_SECOND):
        ahead = began + n / PER_SECOND - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        producer.produce(topic, f"{n % KEYS},{time.time()}".encode(), partition=n % PARTITIONS)
        producer.poll(0)
    producer.flush(30)


def _read(broker: Broker, out: str, ages: list[float], over: threading.Event) -> None:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": out, "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition(out, n, 0) for n in range(PARTITIONS)])
    while not over.is_set():
        for message in consumer.consume(1000, 0.01):
            if message.error() is None:
                ages.append(time.time() - float(message.value().decode().rpartition(",")[2]))
    consumer.close()
