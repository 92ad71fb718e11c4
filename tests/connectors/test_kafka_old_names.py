"""`FlinkKafkaConsumer` and `FlinkKafkaProducer`: what each of their settings does to the reader or the writer below."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import barrier, builder, commit, numbers, open_writer, write
from tests.connectors.test_kafka_source import Reading, of
from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import SimpleStringSchema
from tidegate.connectors.kafka.admin import ClusterAdmin
from tidegate.connectors.kafka.settings import KafkaError
from tidegate.contracts.connectors import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import FlinkKafkaConsumer, FlinkKafkaProducer, Semantic


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    return broker.create_topic(name)


def consumer(broker: Broker, topic: str, **more: str) -> FlinkKafkaConsumer:
    properties = {"bootstrap.servers": broker.bootstrap_servers} | {k.replace("_", "."): v for k, v in more.items()}
    return FlinkKafkaConsumer(topic, SimpleStringSchema(), properties)


def producer(broker: Broker, topic: str, semantic: Semantic, **more: str) -> FlinkKafkaProducer:
    properties = {"bootstrap.servers": broker.bootstrap_servers} | {k.replace("_", "."): v for k, v in more.items()}
    return FlinkKafkaProducer(topic, SimpleStringSchema(), properties, semantic=semantic)


def read(source: FlinkKafkaConsumer, count: int) -> list[Any]:
    reading = Reading(source)
    found = reading.until(count)
    reading.close()
    return found


def group_offset(broker: Broker, topic: str) -> int | None:
    admin = ClusterAdmin("test", {"bootstrap.servers": broker.bootstrap_servers})
    return admin.group_offsets(topic, [(topic, 0)]).get((topic, 0))


def test_where_a_consumer_starts(broker: Broker, topic: str) -> None:
    broker.produce(topic, numbers(range(10)))
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    broker.produce(topic, numbers(range(10, 20)))
    assert read(consumer(broker, topic), 20) == numbers(range(20))  # the earliest, without a group
    assert read(consumer(broker, topic).set_start_from_earliest(), 20) == numbers(range(20))
    assert read(consumer(broker, topic).set_start_from_timestamp(middle), 10) == numbers(range(10, 20))
    latest = Reading(consumer(broker, topic).set_start_from_latest())
    broker.produce(topic, ["new"])
    assert latest.until(1) == ["new"]
    latest.close()
    with pytest.raises(ConfigurationError, match=r"group offsets need the property 'group\.id'"):
        consumer(broker, topic).set_start_from_group_offsets()
    grouped = consumer(broker, topic, group_id=topic).set_start_from_group_offsets()
    first = Reading(grouped)  # the group has none: the earliest
    assert first.until(21)[:1] == ["0"]
    first.readers[0].notify_checkpoint_complete(1, 15)
    first.close()
    assert group_offset(broker, topic) == 15
    for again in (consumer(broker, topic, group_id=topic), grouped):  # it is the default of one with a group
        assert read(again, 6) == [*numbers(range(15, 20)), "new"]


def test_offsets_are_committed_to_the_group_unless_told_otherwise(broker: Broker, topic: str) -> None:
    broker.produce(topic, ["a", "b"])
    for commits, committed in ((False, None), (True, 2)):
        reading = Reading(consumer(broker, topic, group_id=topic).set_commit_offsets_on_checkpoints(commits))
        assert reading.until(2) == ["a", "b"]
        reading.readers[0].notify_checkpoint_complete(1, 2)
        reading.close()  # waits for the commit
        assert group_offset(broker, topic) == committed


def test_partitions_of_a_checkpoint_are_read_whatever_the_topics_are_now(broker: Broker, topic: str) -> None:
    other = broker.create_topic(f"{topic}-other")
    broker.produce(topic, ["a"])
    restored = Reading(consumer(broker, topic)).splits
    source = consumer(broker, other).disable_filter_restored_partitions_with_subscribed_topics()
    reading = Reading(source, splits=restored)
    assert reading.until(1) == ["a"]
    reading.close()


def test_log_failures_only_leaves_out_what_the_broker_refuses_and_says_so(
    broker: Broker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic(name, config={"max.message.bytes": "1000"})
    strict = producer(broker, topic, Semantic.AT_LEAST_ONCE).set_log_failures_only(False)
    writer = open_writer(strict)
    write(writer, ["x" * 5000])
    with pytest.raises(KafkaError, match=f"refuses a record for topic {topic}"):
        barrier(writer)
    writer.close()
    writer = open_writer(strict.set_log_failures_only(True))
    for value in ("x" * 5000, "small"):  # not in one request, which the broker would refuse as a whole
        write(writer, [value])
        assert barrier(writer) == []
        writer.flush(True)
    writer.close()
    assert broker.values(topic) == ["small"]
    assert f"left out (DeliveryGuarantee.NONE), 1 so far; the latest for topic {topic}" in caplog.text
    with pytest.raises(ConfigurationError, match="contradict each other"):
        producer(broker, topic, Semantic.EXACTLY_ONCE).set_log_failures_only(True)


def test_flush_on_checkpoint_is_what_a_barrier_waits_for(broker: Broker, topic: str) -> None:
    """The records lie in the client for a quarter of an hour unless somebody flushes."""
    patient = {"linger_ms": "900000", "message_timeout_ms": "7200000"}
    for flushes, seen in ((False, []), (True, ["a"])):
        sink = producer(broker, topic, Semantic.AT_LEAST_ONCE, **patient).set_flush_on_checkpoint(flushes)
        writer = open_writer(sink)
        write(writer, ["a"])
        assert barrier(writer) == []
        assert broker.values(topic) == seen
        writer._producer.purge()
        writer.close()


def test_timestamps_are_written_when_that_was_asked_for(broker: Broker, topic: str) -> None:
    for writes in (False, True):
        writer = open_writer(producer(broker, topic, Semantic.NONE).set_write_timestamp_to_kafka(writes))
        writer.write_batch([str(writes)], [1234])
        writer.flush(True)
        writer.close()
    without, with_timestamp = broker.read(topic)
    assert without.timestamp()[1] > 1_000_000_000
    assert with_timestamp.timestamp()[1] == 1234


def test_a_transaction_that_was_lost_is_an_error_unless_that_is_to_be_ignored(broker: Broker, topic: str) -> None:
    sink = producer(broker, topic, Semantic.EXACTLY_ONCE)
    writer = open_writer(sink)
    write(writer, ["lost"])
    (transaction,) = barrier(writer)
    writer.committer._client.ended(transaction.transactional_id, transaction.producer_id, transaction.epoch, False, 10)

    with pytest.raises(KafkaError, match=r"has aborted .*transaction\.timeout\.ms"):
        commit(writer.committer, [transaction])
    writer.close()
    committer = sink.ignore_failures_after_transaction_timeout().create_committer()
    assert committer is not None
    commit(committer, [transaction])
    committer.close()


def test_each_subtask_has_a_client_id_of_its_own(broker: Broker, topic: str) -> None:
    source = of(broker, topic).set_client_id_prefix("mine").build()
    assert [source._consumer_settings(subtask)["client.id"] for subtask in range(2)] == ["mine-0", "mine-1"]
    assert "client.id" not in of(broker, topic).build()._consumer_settings(0)


def test_a_sink_does_nothing_to_the_stream_before_it(broker: Broker, topic: str) -> None:
    assert builder(broker, topic, DeliveryGuarantee.NONE).build().get_transformer() is None
