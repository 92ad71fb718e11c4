"""Kafka and PostgreSQL: the connectors' own code against bare loops with the same clients and settings, in one run.

What is compared is what the connectors add: readers and writers are driven as a task drives them, without a job around
them. A broker and a database are started for it (see `tests/connectors`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks.report import Figure
from tests.connectors.broker import Broker, running_broker
from tests.connectors.database import Database, running_database
from tests.connectors.kafka_kit import WallClock, barrier, builder, open_writer
from tidegate.common.serialization import ByteArraySchema, SimpleStringSchema
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.connectors.postgres.sink import PostgresSink
from tidegate.contracts.connectors import SinkContext, SourceContext

BATCH = 1000
VALUE = "x" * 100


def run(quick: bool) -> list[Figure]:
    records = 200_000 if quick else 1_000_000
    figures: list[Figure] = []
    with running_broker() as broker:
        topic = broker.create_topic("in", 2)
        broker.produce(topic, [VALUE.encode()] * records)
        figures += _compared(
            "KafkaSource", records, lambda: _bare_read(broker, topic), lambda: _read(broker, topic), 0.7
        )
        figures += _compared(
            "KafkaSink, exactly once, a checkpoint a second",
            records,
            lambda: _bare_write(broker, records),
            lambda: _write(broker, records),
            0.7,
        )
    with running_database() as database:
        rows = records // 4
        figures += _compared(
            "PostgresSink, append", rows, lambda: _bare_copy(database, rows), lambda: _append(database, rows), 0.6
        )
        figures += _compared(
            "PostgresSink, upsert", rows, lambda: _bare_upsert(database, rows), lambda: _upsert(database, rows), 0.6
        )
    return figures


def _compared(
    name: str, count: int, bare: Callable[[], float], ours: Callable[[], float], wanted: float
) -> list[Figure]:
    """The better of two runs each, in turn: the machine is not always the same."""
    times = [(bare(), ours()) for _ in range(2)]
    alone, with_us = min(t for t, _ in times), min(t for _, t in times)
    ratio = alone / with_us
    return [
        Figure(f"{name}: bare loop", f"{count / alone:,.0f}/s"),
        Figure(name, f"{count / with_us:,.0f}/s"),
        Figure(f"{name}: ratio", f"{ratio:.2f}", f">= {wanted}", ratio >= wanted),
    ]


# ---------------------------------------------------------------- Kafka


def _source(broker: Broker, topic: str) -> KafkaSource:
    build = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics(topic)
    build.set_value_only_deserializer(ByteArraySchema()).set_bounded(KafkaOffsetsInitializer.latest())
    return build.build()


def _bare_read(broker: Broker, topic: str) -> float:
    from confluent_kafka import Consumer, TopicPartition

    source = _source(broker, topic)
    splits: list[Any] = list(source.create_splits(1))
    began = time.perf_counter()
    consumer = Consumer(source._consumer_settings())
    consumer.assign([TopicPartition(s.topic, s.partition, s.start) for s in splits])
    left, kept = sum(s.stop - s.start for s in splits), 0
    while kept < left:
        kept += len([m.value() for m in consumer.consume(10_000, 0.05) if m.error() is None])
    took = time.perf_counter() - began
    consumer.close()
    return took


def _read(broker: Broker, topic: str) -> float:
    source = _source(broker, topic)
    splits = source.create_splits(1)
    began = time.perf_counter()
    context = SourceContext("source", 0, 1, WallClock())
    readers = [source.create_reader(split, None, context) for split in splits]
    while readers:
        idle = True
        for reader in list(readers):
            polled = reader.poll(BATCH)
            if polled is None:
                readers.remove(reader)
                reader.close()
            idle = idle and not polled
        if idle:
            time.sleep(0.001)
    return time.perf_counter() - began


def _bare_write(broker: Broker, records: int) -> float:
    from confluent_kafka import Producer

    topic = broker.create_topic(f"o{uuid.uuid4().hex}", 2)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "linger.ms": 20}
    producer = Producer({**settings, "delivery.report.only.error": True, "queue.buffering.max.messages": 200_000})
    producer.init_transactions(30)
    began = last = time.perf_counter()
    producer.begin_transaction()
    serialize = SimpleStringSchema().serialize
    for n in range(records):
        while True:
            try:
                producer.produce(topic, serialize(VALUE))
                break
            except BufferError:
                producer.poll(0.1)
        if n % BATCH == 0 and time.perf_counter() - last > 1:
            producer.commit_transaction()
            producer.begin_transaction()
            last = time.perf_counter()
    producer.commit_transaction()
    return time.perf_counter() - began


def _write(broker: Broker, records: int) -> float:
    topic = broker.create_topic(f"o{uuid.uuid4().hex}", 2)
    writer = open_writer(builder(broker, topic).build())
    batch = [VALUE] * BATCH
    while not writer.available:
        time.sleep(0.001)
    began = last = time.perf_counter()
    for _ in range(records // BATCH):
        while not writer.available:
            time.sleep(0.001)
        writer.write_batch(batch, None)
        if time.perf_counter() - last > 1:
            assert writer.committer.commit(barrier(writer)) == []
            last = time.perf_counter()
    assert writer.committer.commit(barrier(writer)) == []
    took = time.perf_counter() - began
    writer.close()
    return took


# ---------------------------------------------------------------- PostgreSQL


def _table(database: Database) -> str:
    name = f"t{uuid.uuid4().hex}"
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, text text)")
    return name


def _rows(count: int) -> list[tuple[int, str]]:
    return [(n, VALUE) for n in range(count)]


def _bare_copy(database: Database, count: int) -> float:
    import psycopg

    name, rows = _table(database), _rows(count)
    began = time.perf_counter()
    statement = f"COPY {name} FROM STDIN (FORMAT BINARY)"
    with psycopg.connect(database.url) as connection, connection.cursor().copy(statement) as copy:
        copy.set_types(["int8", "text"])
        for row in rows:
            copy.write_row(row)
    return time.perf_counter() - began


def _bare_upsert(database: Database, count: int) -> float:
    import psycopg

    name, rows = _table(database), _rows(count)
    began = time.perf_counter()
    with psycopg.connect(database.url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE stage (id int8, text text) ON COMMIT DROP")
        with cursor.copy("COPY stage FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "text"])
            for row in rows:
                copy.write_row(row)
        cursor.execute(f"INSERT INTO {name} SELECT * FROM stage ON CONFLICT (id) DO UPDATE SET text = excluded.text")
    return time.perf_counter() - began


def _append(database: Database, count: int) -> float:
    return _sink(PostgresSink.builder().set_url(database.url).set_table(_table(database)).build(), count)


def _upsert(database: Database, count: int) -> float:
    return _sink(PostgresSink.builder().set_url(database.url).set_table(_table(database)).upsert().build(), count)


def _sink(sink: PostgresSink, count: int) -> float:
    sink.check_start(1)
    rows = _rows(count)
    began = time.perf_counter()
    context = SinkContext("job", "sink", 0, 1, 0, WallClock(), operator_id="op")
    writer, committer = sink.create_writer(context), sink.create_committer()
    for at in range(0, count, BATCH):
        writer.write_batch(rows[at : at + BATCH], None)
    assert committer.commit(barrier(writer)) == []
    took = time.perf_counter() - began
    writer.close()
    committer.close()
    return took
