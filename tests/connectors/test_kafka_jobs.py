"""What a job makes of Kafka's partitions, groups and topics: real jobs on processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import builder
from tests.connectors.on_processes import environment, start_job
from tests.connectors.test_kafka_source import of
from tests.spark.recovery_kit import completed, until, with_checkpoints
from tidegate.common import Duration, Types, WatermarkStrategy
from tidegate.connectors.kafka.admin import ClusterAdmin
from tidegate.contracts.connectors import DeliveryGuarantee
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.connectors.base import Sink, SinkContext, SinkWriter

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("on_processes")]


class FailsUntil(SinkWriter[Any, Any]):
    """Every barrier fails until there is a file; `seen` is one as soon as records have come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        (self._folder / "seen").touch()

    def flush(self, end_of_input: bool) -> None:
        if (self._folder / "seen").exists() and not (self._folder / "allowed").exists():
            raise RuntimeError("not yet")


class FailingSink(Sink[Any, Any]):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create_writer(self, context: SinkContext) -> FailsUntil:
        return FailsUntil(self._folder)


def test_only_a_complete_checkpoint_commits_offsets_to_the_group(broker: Broker, name: str, tmp_path: Path) -> None:
    topic = broker.create_topic(name)
    broker.produce(topic, list(range(100)))
    admin = ClusterAdmin("test", {"bootstrap.servers": broker.bootstrap_servers})

    def offset() -> int | None:
        return admin.group_offsets(f"{name}-group", [(topic, 0)]).get((topic, 0))

    env = with_checkpoints(environment(1), tmp_path / "checkpoints", interval_ms=200, restarts=10_000)
    source = of(broker, topic).set_group_id(f"{name}-group").build()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "in").sink_to(FailingSink(tmp_path))
    client = start_job(env)
    seen = tmp_path / "seen"
    until(lambda: seen.exists() and len(client.failures()) >= 3, "failed checkpoints of records that were read", 120)
    assert not offset()  # checkpoints before the first record are allowed to be complete
    (tmp_path / "allowed").touch()
    until(lambda: offset() == 100, "the group's offset", 120)
    until(lambda: completed(client), "the history, which is published a moment later", 60)
    client.cancel().result()


class TellAt(KeyedProcessFunction):
    """Tells each record that it sees, and when event time has come to 500,000."""

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        ctx.timer_service().register_event_time_timer(500_000)
        yield value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[str]:
        yield "fired"


@pytest.mark.parametrize("idleness", [False, True])
def test_event_time_is_that_of_the_slowest_partition_unless_it_is_idle(
    broker: Broker, name: str, tmp_path: Path, idleness: bool
) -> None:
    for_ever = {"retention.ms": "-1"}  # the records are from 1970
    topic, out = broker.create_topic(name, 2, for_ever), broker.create_topic(f"{name}-out", 1, for_ever)
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps()
    if idleness:
        strategy = strategy.with_idleness(Duration.of_millis(300))
    env = with_checkpoints(environment(1), tmp_path, interval_ms=200)
    keyed = env.from_source(of(broker, topic).build(), strategy, "in").key_by(lambda value: 0, Types.INT())
    sink = builder(broker, out, DeliveryGuarantee.AT_LEAST_ONCE).build()
    keyed.process(TellAt(), Types.STRING()).sink_to(sink)
    client = start_job(env)

    def write(value: str, partition: int, timestamp: int) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(topic, value, partition=partition, timestamp=timestamp)
        assert producer.flush(20) == 0
        until(lambda: value in broker.values(out), value, 60)

    write("slow", 0, 1_000)
    write("far ahead", 1, 1_000_000)
    if idleness:
        until(lambda: "fired" in broker.values(out), "event time without the idle partition", 60)
    else:
        for n in range(3):
            write(f"ahead {n}", 1, 1_000_001 + n)
            write(f"slow {n}", 0, 1_001 + n)
        assert "fired" not in broker.values(out)
        write("caught up", 0, 900_000)
        until(lambda: "fired" in broker.values(out), "event time of both", 60)
    client.cancel().result()


@pytest.mark.parametrize("whose", ["source", "sink"])
def test_a_topic_that_is_deleted_under_a_job_fails_it_by_name(
    broker: Broker, name: str, tmp_path: Path, whose: str
) -> None:
    """The library believes it after half a minute, unless it is told to believe sooner."""
    from confluent_kafka.admin import AdminClient

    topic, out = broker.create_topic(f"{name}-in"), broker.create_topic(f"{name}-out")
    sooner = {"topic.metadata.refresh.interval.ms": "500", "topic.metadata.propagation.max.ms": "1000"}
    env = with_checkpoints(environment(1), tmp_path, interval_ms=200, restarts=0)
    sink = builder(broker, out).set_transactional_id_prefix(name)
    for key, value in sooner.items():
        sink.set_property(key, value)
    source = of(broker, topic).set_properties(sooner).build()
    env.from_source(source, WatermarkStrategy.no_watermarks(), "in").sink_to(sink.build())
    client = start_job(env)
    broker.produce(topic, ["a"])
    until(lambda: broker.values(out) == ["a"], "the first record", 60)
    gone = topic if whose == "source" else out
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([gone])[gone].result(10)
    if whose == "sink":
        broker.produce(topic, ["b"])
    error = client.get_job_execution_result().exception(120)
    said = f"{error}\n{client.failures()[0].failure.summary}"
    assert gone in said
    assert "None" not in said
