"""Partitions and topics that appear while a job from Kafka to Kafka runs, under load and a kill."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import feed, read_whole
from tests.connectors.on_processes import environment, start_job
from tests.spark.recovery_kit import CountPerKey, assert_exact, kill, with_checkpoints
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.serialization import SimpleStringSchema
from tidegate.datastream.connectors.kafka import KafkaSource


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
    places = [(first, 0)]
    feed(broker, places, range(3000))
    assert sum(read_whole(broker, out, 3000).values()) == 3000
    broker.add_partitions(first, 3)
    places += [(first, 1), (first, 2)]
    feed(broker, places, range(3000, 6000))
    kill(client.workers()[0].pid, signal.SIGKILL)
    broker.create_topic(second, 2)
    places += [(second, 0), (second, 1)]
    feed(broker, places, range(6000, 9000))
    found = read_whole(broker, out, 9000)
    client.cancel().result()
    assert_exact(found, 9000)
