"""Kafka and PostgreSQL: the connectors' own code against bare loops with the same clients and settings, in one run.

What is compared is what the connectors add: readers and writers are driven as a task drives them, without a job around
them; one more figure is that of a whole job, from its first record to its last. A broker and a database are started for
it (see `tests/connectors`).
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Figure
from tests.connectors.broker import Broker, running_broker
from tests.connectors.database import Database, running_database
from tests.connectors.kafka_kit import WallClock, barrier, builder, open_writer
from tests.connectors.on_processes import environment, processes_for_spark, run_job
from tidegate.common import WatermarkStrategy
from tidegate.common.serialization import ByteArraySchema, SimpleStringSchema
from tidegate.connectors.discard import DiscardingSink, DiscardingWriter
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
        for pair in kafka_pairs(broker, topic, records):
            figures += _compared(records, *pair)
    with running_database() as database:
        for pair in postgres_pairs(database, records // 4):
            figures += _compared(records // 4, *pair)
    return figures


Pair = tuple[str, Callable[[], float], Callable[[], float], float]
"""What is compared: the seconds of a bare loop, ours, and the ratio that is wanted."""


def kafka_pairs(broker: Broker, topic: str, records: int) -> list[Pair]:
    """The topic holds so many records."""
    bare_since_first, job = partial(_bare_read, broker, topic, since_first=True), partial(_run_job, broker, topic)
    bare_write, write = partial(_bare_write, broker, records), partial(_write, broker, records)
    return [
        ("KafkaSource", partial(_bare_read, broker, topic), partial(_read, broker, topic), 0.7),
        ("KafkaSource -> discard, a job with a checkpoint a second", bare_since_first, job, 0.7),
        ("KafkaSink, exactly once, a checkpoint a second", bare_write, write, 0.7),
    ]


def postgres_pairs(database: Database, rows: int) -> list[Pair]:
    return [
        ("PostgresSink, append", partial(_bare_copy, database, rows), partial(_append, database, rows), 0.6),
        ("PostgresSink, upsert", partial(_bare_upsert, database, rows), partial(_upsert, database, rows), 0.6),
    ]


def _compared(
    count: int, name: str, bare: Callable[[], float], ours: Callable[[], float], wanted: float
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


def _bare_read(broker: Broker, topic: str, since_first: bool = False) -> float:
    """`since_first`: from the first records, as of a job, not from the opening of the client."""
    from confluent_kafka import Consumer, TopicPartition

    source = _source(broker, topic)
    splits: list[Any] = list(source.create_splits(1))
    began = time.perf_counter()
    consumer = Consumer(source._consumer_settings(0))
    consumer.assign([TopicPartition(s.topic, s.partition, s.start) for s in splits])
    left, kept = sum(s.stop - s.start for s in splits), 0
    while kept < left:
        found = len([m.value() for m in consumer.consume(10_000, 0.05) if m.error() is None])
        if since_first and found and not kept:
            began = time.perf_counter()
        kept += found
    took = time.perf_counter() - began
    consumer.close()
    return took


class TimedDiscard(DiscardingSink):
    """Tells when its first records came and when its input had ended, and how many there were."""

    def __init__(self, told: Path) -> None:
        self._told = told

    def create_writer(self, context: SinkContext) -> TimedWriter:
        return TimedWriter(self._told)


class TimedWriter(DiscardingWriter):
    def __init__(self, told: Path) -> None:
        self._told = told
        self._began = 0.0
        self._count = 0

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._began = self._began or time.perf_counter()
        self._count += len(values)

    def flush(self, end_of_input: bool) -> None:
        if end_of_input:
            self._told.write_text(f"{time.perf_counter() - self._began} {self._count}")


def _run_job(broker: Broker, topic: str) -> float:
    """A job with one slot, which is a process of its own."""
    with tempfile.TemporaryDirectory() as folder, processes_for_spark():
        env = environment(1)
        env.enable_checkpointing(1000).get_checkpoint_config().set_checkpoint_storage_dir(f"{folder}/checkpoints")
        stream = env.from_source(_source(broker, topic), WatermarkStrategy.no_watermarks(), "in")
        stream.sink_to(TimedDiscard(Path(folder, "told")))
        run_job(env)
        took, count = Path(folder, "told").read_text().split()
    splits: list[Any] = list(_source(broker, topic).create_splits(1))
    if int(count) != sum(split.stop - split.start for split in splits):
        raise RuntimeError(f"{count} records came to the sink")
    return float(took)


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
