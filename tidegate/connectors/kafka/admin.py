"""Questions to a broker about topics, offsets and settings, asked on the driver before a job starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tidegate.connectors.kafka.settings import KafkaError, librdkafka_settings, refused

_SECONDS = 10.0  # a broker that does not answer in this time is away


class ClusterAdmin:
    """One admin client. Raises `KafkaError` with the connector's name and what to do."""

    def __init__(self, connector: str, properties: Mapping[str, str]) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        self._connector = connector
        self._servers = properties["bootstrap.servers"]
        settings = {k: v for k, v in librdkafka_settings(properties).items() if k.startswith(_OF_CONNECTIONS)}
        try:
            self._client = AdminClient(settings)
        except KafkaException as error:
            raise refused(connector, "connecting", self._servers, error) from None

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, int]:
        """How many partitions each topic has; all topics, internal ones left out, when none are named."""
        from confluent_kafka import KafkaException

        try:
            found = self._client.list_topics(timeout=_SECONDS).topics
        except KafkaException as error:
            raise refused(self._connector, "asking for the topics", self._servers, error) from None
        counts = {name: len(t.partitions) for name, t in found.items() if t.error is None and t.partitions}
        if topics is None:
            return {name: count for name, count in counts.items() if not name.startswith("__")}
        wanted = list(topics)
        missing = [name for name in wanted if name not in counts]
        if missing:
            raise KafkaError(
                f"{self._connector}: no topic {', '.join(map(repr, missing))} at {self._servers}, or no right to see "
                "it. Create it first (kafka-topics.sh --create), or check the name"
            )
        return {name: counts[name] for name in wanted}

    def matching(self, pattern: str) -> dict[str, int]:
        whole = re.compile(pattern)
        return {name: count for name, count in self.partitions().items() if whole.fullmatch(name)}

    def offsets(self, wanted: Mapping[tuple[str, int], Any], committed_only: bool) -> dict[tuple[str, int], int]:
        """The offset that each `OffsetSpec` means now. With `committed_only` the end is where open transactions begin.
        -1: there is none (no record at or after a timestamp)."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        request = {TopicPartition(topic, number): spec for (topic, number), spec in wanted.items()}
        found = {}
        try:
            answers = self._client.list_offsets(request, isolation_level=level, request_timeout=_SECONDS)
            for partition, answer in answers.items():
                found[partition.topic, partition.partition] = int(answer.result(_SECONDS).offset)
        except KafkaException as error:
            raise refused(self._connector, "asking for offsets", self._servers, error) from None
        return found

    def group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """What the group has committed; partitions without a commit are left out."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        wanted = [TopicPartition(topic, number) for topic, number in partitions]
        try:
            request = [ConsumerGroupTopicPartitions(group, wanted)]
            answer = self._client.list_consumer_group_offsets(request, request_timeout=_SECONDS)[group]
            found = answer.result(_SECONDS).topic_partitions
        except KafkaException as error:
            raise refused(self._connector, f"asking for the offsets of group {group}", self._servers, error) from None
        return {(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def broker_setting(self, name: str) -> str | None:
        """A setting of one of the brokers; None when this user may not see it."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        try:
            broker = next(iter(self._client.list_topics(timeout=_SECONDS).brokers))
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            entries = self._client.describe_configs([resource], request_timeout=_SECONDS)[resource].result(_SECONDS)
        except KafkaException as error:
            from confluent_kafka import KafkaError as Code

            if error.args[0].code() == Code.CLUSTER_AUTHORIZATION_FAILED:
                return None
            raise refused(self._connector, "asking for the broker's settings", self._servers, error) from None
        entry = entries.get(name)
        return None if entry is None else str(entry.value)


_OF_CONNECTIONS = ("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl", "enable.sasl", "socket.", "log_level")
