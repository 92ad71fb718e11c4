"""KafkaSource against a real broker: where it starts and stops, what it replays, what it says when it cannot read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import WallClock, barrier, builder, numbers, open_writer, write
from tests.unit.micro_batch.engine import Engine
from tidegate.common import WatermarkStrategy
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.serialization import DeserializationSchema, SimpleStringSchema
from tidegate.connectors.kafka import admin
from tidegate.connectors.kafka.offsets import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
)
from tidegate.connectors.kafka.reading import KafkaSplit
from tidegate.connectors.kafka.serialization import KafkaRecord, KafkaRecordDeserializationSchema
from tidegate.connectors.kafka.settings import KafkaError
from tidegate.connectors.kafka.source import KafkaSource, KafkaSourceBuilder
from tidegate.contracts.connectors import Boundedness, SourceContext
from tidegate.datastream import StreamExecutionEnvironment

Offsets = KafkaOffsetsInitializer


def of(broker: Broker, *topics: str) -> KafkaSourceBuilder:
    build = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers)
    build.set_value_only_deserializer(SimpleStringSchema())
    return build.set_topics(*topics) if topics else build


class Reading:
    """The splits of one subtask, read as the task does."""

    def __init__(
        self,
        source: KafkaSource,
        offsets: dict[str, Any] | None = None,
        splits: Any = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.source = cloudpickle.loads(cloudpickle.dumps(source))
        self.splits = self.source.create_splits(1) if splits is None else splits
        self._context = SourceContext("source", 0, 1, WallClock())
        self._context.wake = wake
        wanted = offsets or {}
        self.readers = [self.source.create_reader(s, wanted.get(s.split_id), self._context) for s in self.splits]

    def add(self, splits: Any) -> None:
        self.splits = [*self.splits, *splits]
        self.readers += [self.source.create_reader(split, None, self._context) for split in splits]

    def until(self, count: int | None = None, seconds: float = 60) -> list[Any]:
        """Until so many records have come; None: until all splits have ended."""
        found: list[Any] = []
        open_readers = list(self.readers)
        deadline = time.monotonic() + seconds
        while open_readers and (count is None or len(found) < count):
            assert time.monotonic() < deadline, f"{len(found)} records in {seconds} s"
            for reader in list(open_readers):
                polled = reader.poll(100)
                if polled is None:
                    open_readers.remove(reader)
                else:
                    found += polled.values if hasattr(polled, "values") else polled
        return found

    def offsets(self) -> dict[str, Any]:
        return {split.split_id: reader.offset() for split, reader in zip(self.splits, self.readers, strict=True)}

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    return broker.create_topic(name, partitions=3)


def test_a_bounded_read_has_all_and_ends_and_goes_on_from_any_offset(broker: Broker, topic: str) -> None:
    broker.produce(topic, list(range(1000)))
    source = of(broker, topic).set_bounded(Offsets.latest()).build()
    assert source.boundedness is Boundedness.BOUNDED
    whole = Reading(source)
    assert len(whole.splits) == 3
    assert sorted(whole.until(), key=int) == numbers(range(1000))
    part = Reading(source)
    first = part.until(300)
    offsets = part.offsets()
    part.close()
    broker.produce(topic, ["behind the stop"])
    rest = Reading(source, offsets, part.splits)
    assert sorted(first + rest.until(), key=int) == numbers(range(1000))
    for reading in (whole, rest):
        reading.close()


def test_a_bounded_read_ends_behind_transactions_and_sees_only_committed_ones(broker: Broker, topic: str) -> None:
    writer = open_writer(builder(broker, topic).build())
    write(writer, numbers(range(100)))
    assert writer.committer.commit(barrier(writer)) == []
    write(writer, ["aborted"])
    writer.flush(False)
    aborted = barrier(writer)[0]
    writer.committer._client.ended(aborted.transactional_id, aborted.producer_id, aborted.epoch, False, 10)
    assert sorted(Reading(of(broker, topic).set_bounded(Offsets.latest()).build()).until(), key=int) == numbers(
        range(100)
    )
    write(writer, ["open"])
    writer.flush(False)
    assert len(Reading(of(broker, topic).set_bounded(Offsets.latest()).build()).until()) == 100
    dirty = of(broker, topic).set_property("isolation.level", "read_uncommitted").set_bounded(Offsets.latest()).build()
    assert len(Reading(dirty).until()) == 102
    writer.close()


def test_where_it_starts(broker: Broker, name: str) -> None:
    topic = broker.create_topic(name, 1)
    broker.produce(topic, numbers(range(10)))
    time.sleep(0.05)
    middle = int(time.time() * 1000)
    time.sleep(0.05)
    broker.produce(topic, numbers(range(10, 20)))

    def read(start: Offsets) -> list[str]:
        build = of(broker, topic).set_group_id(f"{name}-group").set_starting_offsets(start)
        reading = Reading(build.set_bounded(Offsets.latest()).build())
        found = reading.until()
        reading.close()
        return found

    assert read(Offsets.earliest()) == numbers(range(20))
    assert read(Offsets.latest()) == []
    assert read(Offsets.timestamp(middle)) == numbers(range(10, 20))
    assert read(Offsets.timestamp(middle + 10**9)) == []
    assert read(Offsets.offsets({KafkaTopicPartition(topic, 0): 15})) == numbers(range(15, 20))
    assert read(Offsets.offsets({}, KafkaOffsetResetStrategy.LATEST)) == []
    assert read(Offsets.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)) == numbers(range(20))
    with pytest.raises(KafkaError, match=rf"partition 0 of topic '{topic}': group '{name}-group' has committed none"):
        read(Offsets.committed_offsets())
    commit = Reading(of(broker, topic).set_group_id(f"{name}-group").build())
    commit.until(20)
    commit.readers[0].notify_checkpoint_complete(1, 12)
    commit.close()
    assert read(Offsets.committed_offsets()) == numbers(range(12, 20))


def test_topics_by_pattern_and_partitions_by_number(broker: Broker, name: str) -> None:
    for n in range(2):
        broker.create_topic(f"{name}-{n}", 2)
        for partition in range(2):
            broker.produce(f"{name}-{n}", [f"{n}/{partition}"], partition)
    pattern = of(broker).set_topic_pattern(f"{name}-.*").set_bounded(Offsets.latest()).build()
    assert sorted(Reading(pattern).until()) == ["0/0", "0/1", "1/0", "1/1"]
    some = of(broker).set_partitions({KafkaTopicPartition(f"{name}-0", 1), KafkaTopicPartition(f"{name}-1", 0)})
    assert sorted(Reading(some.set_bounded(Offsets.latest()).build()).until()) == ["0/1", "1/0"]
    with pytest.raises(KafkaError, match="has 2 partitions, there is no number 7"):
        of(broker).set_partitions({KafkaTopicPartition(f"{name}-0", 7)}).build().create_splits(1)
    with pytest.raises(KafkaError, match="no topic matches"):
        of(broker).set_topic_pattern(f"{name}-none").build().create_splits(1)


def test_partitions_and_topics_that_appear_are_discovered(broker: Broker, name: str) -> None:
    broker.create_topic(f"{name}-a", 1)
    build = of(broker).set_topic_pattern(f"{name}-.").set_starting_offsets(Offsets.latest())
    source = build.set_property("partition.discovery.interval.ms", "100").build()
    broker.produce(f"{name}-a", ["not read"])
    reading = Reading(source)
    known = {split.split_id for split in reading.splits}
    enumerator = source.create_enumerator(1)
    assert enumerator.discover(known).splits == []
    broker.produce(f"{name}-a", ["first"])
    assert reading.until(1) == ["first"]
    broker.add_partitions(f"{name}-a", 2)
    broker.create_topic(f"{name}-b", 1)
    broker.produce(f"{name}-a", ["second"], 1)
    broker.produce(f"{name}-b", ["third"], 0)  # before it is discovered: read all the same
    discovery = enumerator.discover(known)
    assert [split.split_id for split in discovery.splits] == [f"{name}-b-0", f"{name}-a-1"]
    assert not discovery.complete
    reading.add(discovery.splits)
    assert sorted(reading.until(2)) == ["second", "third"]
    assert enumerator.discover(known | {split.split_id for split in discovery.splits}).splits == []
    reading.close()


def test_when_partitions_are_looked_for(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    def interval(build: KafkaSourceBuilder, value: str | None = None) -> float | None:
        if value is not None:
            build.set_property("partition.discovery.interval.ms", value)
        return build.build().discovery_interval_ms

    assert interval(of(broker, topic)) == 300_000
    assert interval(of(broker, topic), "50") == 50
    assert interval(of(broker, topic), "0") is None
    assert interval(of(broker, topic), "-1") is None
    assert interval(of(broker, topic).set_bounded(Offsets.latest()), "50") is None
    assert interval(of(broker, topic).set_unbounded(Offsets.latest())) is None
    assert interval(of(broker).set_partitions({KafkaTopicPartition(topic, 0)}), "50") is None
    with pytest.raises(ConfigurationError, match=r"'partition.discovery.interval.ms' is a number of milliseconds"):
        interval(of(broker, topic), "soon")
    waiting = of(broker).set_topic_pattern(f"{topic}-nothing.*").set_property("partition.discovery.interval.ms", "50")
    assert waiting.build().create_splits(1) == []
    gone = of(broker, f"{topic}-nothing").build().create_enumerator(1)
    assert not gone.discover(frozenset()).splits
    assert "tried again after the interval" in caplog.text


def test_a_reader_wakes_its_task_instead_of_being_asked(broker: Broker, topic: str) -> None:
    woken = threading.Event()
    reading = Reading(of(broker, topic).set_group_id(topic).build(), wake=woken.set)
    for _ in range(3):
        for reader in reading.readers:
            assert reader.poll(10) == []
            assert reader.wake_at_ms() > WallClock().now_ms() + 500
            # The consumer is waited in by another thread: to ask it something must not hang.
            assert reader.pending_records() is None
            reader.notify_checkpoint_complete(1, reader.offset())
        assert not woken.is_set()
        broker.produce(topic, ["a", "b"], 1)
        assert woken.wait(20)
        assert reading.until(2) == ["a", "b"]
        woken.clear()
    reading.readers.pop().close()
    while reading.readers[0].wake_at_ms() is None:
        assert reading.readers[0].poll(10) == []
    broker.add_partitions(topic, 4)
    broker.produce(topic, ["c"], 3)
    reading.add([KafkaSplit(f"{topic}-3", topic, 3, 0, None)])  # discovered while nothing comes
    assert reading.until(1) == ["c"]
    reading.close()


class Whole(KafkaRecordDeserializationSchema):
    def deserialize(self, record: KafkaRecord) -> Any:
        return record


def test_a_schema_may_see_the_whole_record(broker: Broker, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"value", b"key", partition=2, timestamp=1234, headers={"h": b"1"})
    producer.produce(topic, None, b"gone", partition=2, timestamp=1235)
    producer.flush()
    build = KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers).set_topics(topic)
    source = build.set_deserializer(Whole()).set_bounded(Offsets.latest()).build()
    assert Reading(source).until() == [
        KafkaRecord(topic, 2, 0, 1234, b"key", b"value", [("h", b"1")]),
        KafkaRecord(topic, 2, 1, 1235, b"gone", None, []),
    ]
    assert Reading(of(broker, topic).set_bounded(Offsets.latest()).build()).until() == ["value"]


class Poisoned(SimpleStringSchema):
    def deserialize(self, message: bytes) -> str:
        if message == b"poison":
            raise ValueError("bad bytes")
        return super().deserialize(message)

    def is_end_of_stream(self, next_element: Any) -> bool:
        return bool(next_element == "end")


def test_a_record_that_cannot_be_deserialized_is_named(broker: Broker, topic: str) -> None:
    broker.produce(topic, ["a", "b", "poison", "c"], 1)
    reading = Reading(of(broker, topic).set_value_only_deserializer(Poisoned()).build())
    with pytest.raises(TidegateError, match=rf"topic {topic}, partition 1, offset 2 .*ValueError: bad bytes"):
        reading.until(4)
    reading.close()


def test_a_schema_may_end_the_stream(broker: Broker, topic: str) -> None:
    broker.produce(topic, ["a", "end", "c"], 1)
    single = of(broker).set_partitions({KafkaTopicPartition(topic, 1)}).set_value_only_deserializer(Poisoned())
    assert Reading(single.build()).until() == ["a"]


def ended_by_a_record(broker: Broker, topic: str) -> KafkaSource:
    """Reads partition 1 up to the record `end`, and leaves out those that are empty."""
    broker.produce(topic, ["", "a", "", "b", "end", "c", "poison"], 1)
    single = of(broker).set_partitions({KafkaTopicPartition(topic, 1)})
    return single.set_value_only_deserializer(SkippingPoisoned()).build()


class SkippingPoisoned(Poisoned):
    def deserialize(self, message: bytes) -> str | None:  # type: ignore[override]
        return super().deserialize(message) or None


@pytest.mark.parametrize("portion", [1, 2, 100])
def test_a_stream_that_a_record_has_ended_stays_ended_after_a_recovery(
    broker: Broker, topic: str, portion: int
) -> None:
    """From every offset that a checkpoint may have held: what lies behind the record is never read."""
    source = ended_by_a_record(broker, topic)
    reading = Reading(source)
    (reader,) = reading.readers
    found: list[Any] = []
    after: list[tuple[Any, int]] = [({}, 0)]  # offsets, and how many records came before
    deadline = time.monotonic() + 30
    while (polled := reader.poll(portion)) is not None:
        assert time.monotonic() < deadline
        found += polled.values if hasattr(polled, "values") else polled
        after.append((reading.offsets(), len(found)))
    after.append((reading.offsets(), len(found)))
    assert found == ["a", "b"]
    for offsets, before in {str(one): one for one in after}.values():
        again = Reading(source, offsets, reading.splits)
        assert again.until() == found[before:], offsets
        again.close()


def test_a_stream_that_a_record_has_ended_stays_ended_in_later_micro_batches(broker: Broker, topic: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = ended_by_a_record(broker, topic)
    engine = Engine.collecting(env.from_source(source, WatermarkStrategy.no_watermarks(), "in"), max_records=1)
    while len(engine.results) < 2:
        engine.run_batch()
        assert engine.batch < 60, engine.results
    for _ in range(6):
        assert engine.run_batch().records_read == 0
    assert engine.results == ["a", "b"]


class OddOnly(DeserializationSchema):
    def deserialize(self, message: bytes) -> Any:
        return int(message) if int(message) % 2 else None


def test_records_that_the_schema_leaves_out(broker: Broker, topic: str) -> None:
    broker.produce(topic, list(range(10)))
    source = of(broker, topic).set_value_only_deserializer(OddOnly()).set_bounded(Offsets.latest()).build()
    assert sorted(Reading(source).until()) == [1, 3, 5, 7, 9]


def test_records_have_kafkas_timestamps(broker: Broker, topic: str) -> None:
    before = int(time.time() * 1000)
    broker.produce(topic, ["a"], 0)
    reading = Reading(of(broker).set_partitions({KafkaTopicPartition(topic, 0)}).build())
    deadline = time.monotonic() + 10
    while not len(batch := reading.readers[0].poll(10)):
        assert time.monotonic() < deadline
    assert before <= batch.timestamps[0] <= time.time() * 1000
    reading.close()


def test_a_partition_that_nobody_reads_is_paused(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.connectors.kafka import reading as module

    monkeypatch.setattr(module, "_HELD", 50)
    monkeypatch.setattr(module, "_FETCH", 20)
    for partition in range(2):
        broker.produce(topic, list(range(2000)), partition)
    source = of(broker).set_partitions({KafkaTopicPartition(topic, 0), KafkaTopicPartition(topic, 1)}).build()
    reading = Reading(source)
    eager, held = reading.readers
    found: list[Any] = []
    deadline = time.monotonic() + 20
    while len(found) < 2000:
        assert time.monotonic() < deadline
        found += list(getattr(polled := eager.poll(100), "values", polled))
        assert held.held < 200
    reading.readers = [held]
    assert sorted(reading.until(2000), key=int) == numbers(range(2000))
    reading.readers = [eager, held]
    reading.close()


def test_lost_offsets_are_an_error_unless_the_job_says_what_to_do(broker: Broker, name: str) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = broker.create_topic(name)
    broker.produce(topic, numbers(range(10)))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for answer in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        answer.result(10)
    stale = Offsets.offsets({KafkaTopicPartition(topic, 0): 2})
    build = of(broker, topic).set_starting_offsets(stale).set_bounded(Offsets.latest())
    reading = Reading(build.build())
    with pytest.raises(KafkaError, match=r"offset .* is not there any more .*auto\.offset\.reset"):
        reading.until()
    reading.close()
    assert Reading(build.set_property("auto.offset.reset", "earliest").build()).until() == numbers(range(5, 10))


def test_a_topic_that_is_deleted_under_the_job_is_an_error(broker: Broker, name: str) -> None:
    from confluent_kafka.admin import AdminClient

    topic = broker.create_topic(name)
    broker.produce(topic, ["a"])
    build = of(broker, topic).set_property("topic.metadata.refresh.interval.ms", "500")
    reading = Reading(build.set_property("topic.metadata.propagation.max.ms", "1000").build())
    assert reading.until(1) == ["a"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([topic])[topic].result(10)
    with pytest.raises(KafkaError, match=f"{topic} .*does not exist.*Was the topic deleted"):
        reading.until(2, seconds=30)
    reading.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.build(), "give one of set_topics"),
        (lambda b: b.set_topics("a").set_topic_pattern("b"), "give one of"),
        (lambda b: b.set_topic_pattern("("), "no regular expression"),
        (lambda b: b.set_topics(), "names of topics"),
        (lambda b: b.set_partitions({"a"}), "set of KafkaTopicPartition"),
        (
            lambda b: b.set_topics("a").set_starting_offsets(Offsets.committed_offsets()).build(),
            "set_group_id is missing",
        ),
        (lambda b: b.set_group_id(""), "name of a group"),
        (lambda b: b.set_property("a", object()), "'a' has to be text or a number"),
        (lambda b: KafkaTopicPartition("a", -1), "number of a partition"),
        (lambda b: Offsets.timestamp(-5), "milliseconds"),
        (lambda b: KafkaSource.builder().set_topics("a").build(), "set_bootstrap_servers is missing"),
    ],
)
def test_bad_settings(broker: Broker, change: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        change(of(broker))


def test_an_unknown_property_and_an_unreachable_broker_are_refused_when_the_job_is_submitted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"KafkaSource: .*no\.such\.thing"):
        of(broker, "any").set_property("no.such.thing", "1").build().create_splits(1)
    monkeypatch.setattr(admin, "_SECONDS", 1.0)
    away = of(broker, "any").set_bootstrap_servers("127.0.0.1:1").set_property("sasl.password", "hunter2")
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1: asking for the topics: no broker answers") as caught:
        away.build().create_splits(1)
    assert "hunter2" not in str(caught.value)


def test_an_unknown_topic_is_refused_when_the_job_is_submitted(broker: Broker, name: str) -> None:
    with pytest.raises(KafkaError, match=f"KafkaSource: no topic '{name}'"):
        of(broker, name).build().create_splits(1)


def test_micro_batches_wait_for_the_connection_and_read_everything_once(broker: Broker, topic: str) -> None:
    """Each batch has a consumer of its own, which has to find its broker first. How many a batch gets is not said: one
    that was slow to come is read in a later batch."""
    broker.produce(topic, list(range(300)))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = of(broker, topic).set_starting_offsets(Offsets.earliest()).build()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").map(int)
    engine = Engine.collecting(stream, max_records=100)
    while len(engine.results) < 300:
        assert engine.run_batch().records_read <= 100
        assert engine.batch < 60, f"{len(engine.results)} records in {engine.batch} batches"
    assert sorted(engine.results) == list(range(300))
    assert engine.run_batch().records_read == 0
