"""Partitions and topics that appear while a job from Kafka to Kafka runs, under load and a kill."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import feed, read_whole
from tests.connectors.on_processes import environment, start_job
from tests.spark.recovery_kit import CountPerKey, assert_exact, kill, until, with_checkpoints
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.serialization import SimpleStringSchema
from tidegate.datastream.connectors.kafka import KafkaSource


class Load:
    """Writes from a thread, without a pause, to the places that there are at the moment; at the end of the block the
    last batch is with the broker. `written`: records so far, whose keys are those of 0, 1, 2 and so on."""

    def __init__(self, broker: Broker, *places: tuple[str, int]) -> None:
        self.places = list(places)
        self.written = 0
        self._broker = broker
        self._over = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        try:
            while not self._over.is_set():
                feed(self._broker, self.places, range(self.written, self.written + 200))
                self.written += 200
                self._over.wait(0.05)  # some thousands a second: more only fills the topic that is read as a whole
        except BaseException as problem:
            self._problem = problem

    def goes_on(self, records: int) -> None:
        """Returns when so many more were written."""
        wanted = self.written + records
        until(lambda: self.written >= wanted or self._problem is not None, "the load", 60)
        assert self._problem is None, self._problem

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def end_of(broker: Broker, topic: str) -> int:
    """The end of its first partition. Reading it as a whole would find no end while more is written all the time."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "tests"})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        return end
    finally:
        consumer.close()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("on_processes")
def test_partitions_and_topics_that_appear_under_load_are_read_once(broker: Broker, name: str, tmp_path: Path) -> None:
    first, second = broker.create_topic(f"{name}-a", 1), f"{name}-b"
    out = broker.create_topic(f"{name}-out", 1)
    build = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topic_pattern(f"{name}-[ab]")
    build.set_property("partition.discovery.interval.ms", "100").set_value_only_deserializer(SimpleStringSchema())
    env = with_checkpoints(environment(2), tmp_path, interval_ms=200)
    stream = env.from_source(build.build(), WatermarkStrategy.no_watermarks(), "in", Types.STRING()).uid("in")
    counts = stream.key_by(lambda key: key).process(CountPerKey(), Types.STRING()).uid("count")
    counts.sink_to(builder(broker, out).set_transactional_id_prefix(f"{name}-tx").build()).uid("out")
    client = start_job(env)
    with Load(broker, (first, 0)) as load:
        until(lambda: end_of(broker, out) >= 1000, "the job to read and write", 90)
        broker.add_partitions(first, 3)
        load.goes_on(1000)
        load.places = [*load.places, (first, 1), (first, 2)]
        load.goes_on(1000)
        kill(client.workers()[0].pid, signal.SIGKILL)
        broker.create_topic(second, 2)
        load.goes_on(1000)
        load.places = [*load.places, (second, 0), (second, 1)]
        load.goes_on(2000)
    found = read_whole(broker, out, load.written)
    client.cancel().result()
    assert_exact(found, load.written)
