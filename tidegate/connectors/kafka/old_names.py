"""`FlinkKafkaConsumer` and `FlinkKafkaProducer`: the old names, on the source and the sink of today."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Self

from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import DeserializationSchema, SerializationSchema
from tidegate.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema, checked_deserializer
from tidegate.connectors.kafka.settings import checked_property, checked_servers
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.contracts.connectors import DeliveryGuarantee


class FlinkKafkaConsumerBase(KafkaSource):
    """An unbounded `KafkaSource` by its settings of old: `env.add_source` takes it. From the group's offsets unless
    told otherwise, and from the earliest where it has none."""

    def set_commit_offsets_on_checkpoints(self, commit_on_checkpoints: bool) -> Self:
        self._properties["commit.offsets.on.checkpoint"] = "true" if commit_on_checkpoints else "false"
        return self

    def set_start_from_earliest(self) -> Self:
        return self._from(KafkaOffsetsInitializer.earliest())

    def set_start_from_latest(self) -> Self:
        return self._from(KafkaOffsetsInitializer.latest())

    def set_start_from_timestamp(self, startup_offsets_timestamp: int) -> Self:
        return self._from(KafkaOffsetsInitializer.timestamp(startup_offsets_timestamp))

    def set_start_from_group_offsets(self) -> Self:
        """The default."""
        if "group.id" not in self._properties:
            raise ConfigurationError("FlinkKafkaConsumer: group offsets need the property 'group.id'")
        return self._from(KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST))

    def _from(self, start: KafkaOffsetsInitializer) -> Self:
        self._start = start
        return self

    def disable_filter_restored_partitions_with_subscribed_topics(self) -> Self:
        """Partitions of a checkpoint are never left out here, so there is nothing to disable."""
        return self


class FlinkKafkaConsumer(FlinkKafkaConsumerBase):
    def __init__(
        self,
        topics: str | Sequence[str],
        deserialization_schema: DeserializationSchema,
        properties: Mapping[str, str],
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names or not all(isinstance(name, str) and name.strip() for name in names):
            raise ConfigurationError(
                f"FlinkKafkaConsumer: takes the name of a topic, or a list of them, got {topics!r}"
            )
        checked = _properties("FlinkKafkaConsumer", properties)
        start = KafkaOffsetsInitializer.earliest()
        if "group.id" in checked:
            start = KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)
        schema = checked_deserializer("FlinkKafkaConsumer", deserialization_schema)
        super().__init__(checked, names, None, frozenset(), start, None, False, schema)


class Semantic(enum.Enum):
    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2


class FlinkKafkaProducerBase(KafkaSink):
    """A `KafkaSink` by its settings of old: `add_sink` takes it."""

    def set_log_failures_only(self, log_failures_only: bool) -> Self:
        """True: records that the broker refuses are left out instead of failing the job, so the guarantee becomes NONE.
        Not for EXACTLY_ONCE."""
        if log_failures_only and self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            raise ConfigurationError("FlinkKafkaProducer: set_log_failures_only and EXACTLY_ONCE contradict each other")
        if log_failures_only:
            self._guarantee = DeliveryGuarantee.NONE
        return self

    def set_flush_on_checkpoint(self, flush_on_checkpoint: bool) -> Self:
        """False: nothing is waited for at a checkpoint, so AT_LEAST_ONCE becomes NONE."""
        if not flush_on_checkpoint and self._guarantee is DeliveryGuarantee.AT_LEAST_ONCE:
            self._guarantee = DeliveryGuarantee.NONE
        return self

    def set_write_timestamp_to_kafka(self, write_timestamp_to_kafka: bool) -> Self:
        """Whether records get their event time as Kafka's timestamp; not unless this is called, as in Flink."""
        self._writes_timestamps = bool(write_timestamp_to_kafka)
        return self


class FlinkKafkaProducer(FlinkKafkaProducerBase):
    def __init__(
        self,
        topic: str,
        serialization_schema: SerializationSchema,
        producer_config: Mapping[str, str],
        kafka_producer_pool_size: int = 5,
        semantic: Semantic = Semantic.AT_LEAST_ONCE,
    ) -> None:
        """`kafka_producer_pool_size` has no effect: the pool grows with the transactions that wait for their commit."""
        if not isinstance(semantic, Semantic):
            raise TypeError(f"FlinkKafkaProducer: semantic has to be a Semantic, got {semantic!r}")
        schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
        built = schema.set_value_serialization_schema(serialization_schema).build()
        checked = _properties("FlinkKafkaProducer", producer_config)
        super().__init__(checked, built, DeliveryGuarantee[semantic.name], None)
        self._writes_timestamps = False

    def ignore_failures_after_transaction_timeout(self) -> FlinkKafkaProducer:
        """A transaction that the broker has timed out before a recovery could commit it is logged and lost, instead of
        failing the job."""
        self._properties["tidegate.lost.transactions"] = "drop"
        return self


def _properties(where: str, properties: Mapping[str, Any]) -> dict[str, str]:
    checked = dict(checked_property(where, key, value) for key, value in properties.items())
    checked_servers(f"{where}, property 'bootstrap.servers'", checked.get("bootstrap.servers"))
    return checked
