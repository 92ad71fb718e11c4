"""Questions to a broker about topics, offsets and settings, asked on the driver before a job starts."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tidegate.connectors.kafka.settings import KafkaError, librdkafka_settings, refused

_SECONDS = 10.0  # a broker that does not answer in this time is away
_NEW_TOPIC_SECONDS = 2.0  # how long a topic that was just created may be unknown to the broker that is asked
_PAUSE_SECONDS = 0.1
T = TypeVar("T")


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
        return self._partitions(topics, time.monotonic() + _NEW_TOPIC_SECONDS)

    def _partitions(self, topics: Iterable[str] | None, give_up: float) -> dict[str, int]:
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
        if missing and time.monotonic() < give_up:
            time.sleep(_PAUSE_SECONDS)
            return self._partitions(wanted, give_up)
        if missing:
            raise KafkaError(
                f"{self._connector}: no topic {', '.join(map(repr, missing))} at {self._servers}, or no right to see "
                "it. Create it first (kafka-topics.sh --create), or check the name"
            )
        return {name: counts[name] for name in wanted}

    def check_allowed(self, topics: Iterable[str], operation: str) -> None:
        """Raises when this user, who sees the topics, may not READ or WRITE one. Not every broker says."""
        from confluent_kafka import KafkaException, TopicCollection
        from confluent_kafka.admin import AclOperation

        wanted = sorted(set(topics))
        if not wanted:
            return

        def ask() -> dict[str, Any]:
            answers = self._client.describe_topics(
                TopicCollection(wanted), include_authorized_operations=True, request_timeout=_SECONDS
            )
            return {topic: answer.result(_SECONDS).authorized_operations for topic, answer in answers.items()}

        try:
            allowed = _patiently(ask)
        except KafkaException as error:
            raise refused(self._connector, "asking for the rights to topics", self._servers, error) from None
        for topic in wanted:
            if allowed[topic] and AclOperation[operation] not in allowed[topic]:
                raise KafkaError(
                    f"{self._connector}, bootstrap servers {self._servers}: this user sees topic '{topic}' but lacks "
                    f"the right to {operation} it. Ask for an ACL of the topic"
                )

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

        def ask() -> dict[tuple[str, int], int]:
            answers = self._client.list_offsets(request, isolation_level=level, request_timeout=_SECONDS)
            return {(p.topic, p.partition): int(answer.result(_SECONDS).offset) for p, answer in answers.items()}

        try:
            return _patiently(ask)
        except KafkaException as error:
            raise refused(self._connector, "asking for offsets", self._servers, error) from None

    def group_offsets(self, group: str, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """What the group has committed; partitions without a commit are left out."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        wanted = [TopicPartition(topic, number) for topic, number in partitions]

        def ask() -> list[TopicPartition]:
            request = [ConsumerGroupTopicPartitions(group, wanted)]
            answer = self._client.list_consumer_group_offsets(request, request_timeout=_SECONDS)[group]
            found: list[TopicPartition] = answer.result(_SECONDS).topic_partitions
            return found

        try:
            found = _patiently(ask)
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


def _patiently(ask: Callable[[], T]) -> T:
    """Ask again while the answer is one that passes by itself: partitions and groups that have no leader yet, as after
    the start of a broker or the creation of a topic."""
    from confluent_kafka import KafkaError as Code
    from confluent_kafka import KafkaException

    passing = (
        Code.NOT_LEADER_FOR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_OR_PART,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
    )
    give_up = time.monotonic() + _SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() >= give_up:
                raise
        time.sleep(_PAUSE_SECONDS)


_OF_CONNECTIONS = ("bootstrap.", "security.", "sasl.", "ssl.", "enable.ssl", "enable.sasl", "socket.", "log_level")
