"""`KafkaSource`: partitions as splits, offsets in the job's own checkpoints."""

from __future__ import annotations

import logging
import re
import weakref
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import DeserializationSchema
from tidegate.connectors.kafka.admin import ClusterAdmin
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer, KafkaTopicPartition, Place
from tidegate.connectors.kafka.reading import Deserializer, KafkaPartitionReader, KafkaSplit, PartitionClient
from tidegate.connectors.kafka.serialization import KafkaRecordDeserializationSchema, checked_deserializer
from tidegate.connectors.kafka.settings import (
    KafkaError,
    check_installed,
    checked_property,
    checked_servers,
    librdkafka_settings,
    refused,
    shown,
)
from tidegate.contracts.connectors import (
    Boundedness,
    Discovery,
    Source,
    SourceContext,
    SourceSplit,
    SplitEnumerator,
    SplitReader,
)

_COMMITS = "commit.offsets.on.checkpoint"
_DISCOVERY = "partition.discovery.interval.ms"
_DISCOVERY_MS = 300_000.0  # as Flink's
_log = logging.getLogger(__name__)


class KafkaSource(Source[Any]):
    """Reads topics of Kafka, replayable: after a recovery from the offsets of the checkpoint. Make one with
    `KafkaSource.builder()`. Needs `pip install tidegate[kafka]`.

    Records have Kafka's timestamps as their event time; watermarks are made per partition. Records of transactions are
    read when those are committed (`isolation.level`, if it is to be otherwise). Partitions and topics that appear later
    are looked for every `partition.discovery.interval.ms` (5 minutes; 0: never) and read from their beginning; not when
    the source was given its partitions or where to stop. Records whose value is empty (tombstones) are left out unless
    the schema sees the whole record."""

    def __init__(
        self,
        properties: dict[str, str],
        topics: Sequence[str],
        pattern: str | None,
        partitions: frozenset[Place],
        start: KafkaOffsetsInitializer,
        stop: KafkaOffsetsInitializer | None,
        bounded: bool,
        schema: Deserializer,
    ) -> None:
        check_installed("KafkaSource")
        self._properties = properties
        self._topics = list(topics)
        self._pattern = pattern
        self._partitions = partitions
        self._start = start
        self._stop = stop
        self._bounded = bounded
        self._schema = schema
        self._clients: weakref.WeakKeyDictionary[SourceContext, PartitionClient] = weakref.WeakKeyDictionary()

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        return KafkaSourceBuilder()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_clients": weakref.WeakKeyDictionary()}

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        self._check_properties()
        admin = self.connect_admin()
        places = self._places(admin)
        admin.check_allowed({topic for topic, _ in places}, "READ")
        if not places and (self.discovery_interval_ms is None or _DISCOVERY not in self._properties):
            raise KafkaError(
                f"KafkaSource: no topic matches the pattern '{self._pattern}'. Is one to appear later, set_property("
                f"'{_DISCOVERY}', '10000') makes the job wait for it"
            )
        return self._splits(admin, places, self._start)

    def _check_properties(self) -> None:
        """The library refuses what it does not know when a consumer is made; no broker is needed for that."""
        from confluent_kafka import Consumer, KafkaException

        try:
            Consumer(self._consumer_settings(0)).close()
        except KafkaException as error:
            raise refused("KafkaSource", "opening a consumer", self._properties["bootstrap.servers"], error) from None

    def _splits(self, admin: ClusterAdmin, places: list[Place], start: KafkaOffsetsInitializer) -> list[SourceSplit]:
        committed_only = self._properties.get("isolation.level", "read_committed") == "read_committed"
        group = self._properties.get("group.id")
        starts = start.resolve(admin, places, group, committed_only)
        stops = {} if self._stop is None else self._stop.resolve(admin, places, group, committed_only)
        return [
            KafkaSplit(_split_id((topic, number)), topic, number, starts[topic, number], stops.get((topic, number)))
            for topic, number in places
        ]

    @property
    def discovery_interval_ms(self) -> float | None:
        if self._bounded or self._partitions:
            return None
        given = self._properties.get(_DISCOVERY)
        if given is None:
            return _DISCOVERY_MS if self._stop is None else None
        return float(given) if float(given) > 0 else None

    def create_enumerator(self, parallelism: int) -> SplitEnumerator:
        return _PartitionEnumerator(self)

    def discover(self, admin: ClusterAdmin, known: AbstractSet[str]) -> list[SourceSplit]:
        """Partitions that are there and not known, from their beginning: whatever the job starts from, what is written
        to a partition before it is discovered belongs to the job."""
        new = [place for place in self._places(admin) if _split_id(place) not in known]
        return self._splits(admin, new, KafkaOffsetsInitializer.earliest())

    def connect_admin(self) -> ClusterAdmin:
        return ClusterAdmin("KafkaSource", self._properties)

    def _places(self, admin: ClusterAdmin) -> list[Place]:
        if self._partitions:
            counts = admin.partitions({topic for topic, _ in self._partitions})
            for topic, number in sorted(self._partitions):
                if number >= counts[topic]:
                    raise KafkaError(
                        f"KafkaSource: topic '{topic}' has {counts[topic]} partitions, there is no number {number}"
                    )
            return sorted(self._partitions)
        counts = admin.partitions(self._topics) if self._pattern is None else admin.matching(self._pattern)
        # Numbers first: the partitions of a topic are spread over the subtasks, whatever their count.
        return sorted(((t, n) for t, count in counts.items() for n in range(count)), key=lambda place: place[::-1])

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        if not isinstance(split, KafkaSplit):
            raise TypeError(f"KafkaSource cannot read {split!r}")
        client = self._clients.get(context)
        if client is None or client.closed:
            client = PartitionClient(
                self._consumer_settings(context.subtask),
                self._properties["bootstrap.servers"],
                context.clock,
                context.wake,
            )
            self._clients[context] = client
            self._schema.open()
        commits = "group.id" in self._properties and self._properties.get(_COMMITS, "true") == "true"
        return KafkaPartitionReader(split, offset, client, self._schema, commits)

    def _consumer_settings(self, subtask: int) -> dict[str, Any]:
        settings = librdkafka_settings(self._properties)
        if prefix := self._properties.get("client.id.prefix"):
            settings["client.id"] = f"{prefix}-{subtask}"  # as Flink's
        settings.setdefault("group.id", "tidegate")  # librdkafka wants one; it is neither joined nor committed to
        settings.setdefault("isolation.level", "read_committed")
        settings.setdefault("auto.offset.reset", "error")
        if settings["auto.offset.reset"] == "none":
            settings["auto.offset.reset"] = "error"
        settings.setdefault("fetch.queue.backoff.ms", 10)  # a second by default: a third of the rate
        settings |= {
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": self._stop is not None,
            "allow.auto.create.topics": False,
        }
        return settings

    def get_produced_type(self) -> Any:
        return self._schema.get_produced_type()

    def __repr__(self) -> str:
        what = self._pattern or ", ".join(self._topics or sorted({topic for topic, _ in self._partitions}))
        return f"KafkaSource({what}, {shown(self._properties)})"


def _split_id(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


class _PartitionEnumerator(SplitEnumerator):
    """A broker that does not answer is asked again: the readers notice by themselves what the job cannot live with."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._admin: ClusterAdmin | None = None

    def discover(self, known: AbstractSet[str]) -> Discovery:
        try:
            self._admin = self._admin or self._source.connect_admin()
            return Discovery(self._source.discover(self._admin, known))
        except KafkaError as error:
            _log.warning("%s (while looking for new partitions; it is tried again after the interval)", error)
            return Discovery()

    def close(self) -> None:
        self._admin = None


class KafkaSourceBuilder:
    """Bootstrap servers, one of topics, pattern and partitions, and a deserializer are needed. From the earliest offset
    unless `set_starting_offsets` says otherwise; unbounded unless `set_bounded` is called."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._topics: list[str] = []
        self._pattern: str | None = None
        self._partitions: frozenset[Place] = frozenset()
        self._start = KafkaOffsetsInitializer.earliest()
        self._stop: KafkaOffsetsInitializer | None = None
        self._bounded = False
        self._schema: Deserializer | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        self._properties["bootstrap.servers"] = checked_servers("set_bootstrap_servers", bootstrap_servers)
        return self

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """The group whose committed offsets can be started from, and that gets this job's offsets, for show, after each
        complete checkpoint. Nothing is rebalanced: the job hands out its partitions itself."""
        if not isinstance(group_id, str) or not group_id.strip():
            raise ConfigurationError(f"set_group_id: takes the name of a group, got {group_id!r}")
        self._properties["group.id"] = group_id
        return self

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        self._start = _initializer("set_starting_offsets", starting_offsets_initializer)
        return self

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        if not topics or not all(isinstance(topic, str) and topic.strip() for topic in topics):
            raise ConfigurationError(f"set_topics: takes names of topics, got {topics!r}")
        self._choose("set_topics")
        self._topics = list(dict.fromkeys(topics))
        return self

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """All topics whose whole name matches this regular expression."""
        try:
            re.compile(topic_pattern)
        except (re.error, TypeError) as error:
            raise ConfigurationError(f"set_topic_pattern: no regular expression: {topic_pattern!r}: {error}") from None
        self._choose("set_topic_pattern")
        self._pattern = topic_pattern
        return self

    def set_partitions(self, partitions: AbstractSet[KafkaTopicPartition]) -> KafkaSourceBuilder:
        if not partitions or not all(isinstance(partition, KafkaTopicPartition) for partition in partitions):
            raise ConfigurationError(f"set_partitions: takes a set of KafkaTopicPartition, got {partitions!r}")
        self._choose("set_partitions")
        self._partitions = frozenset((partition.topic, partition.partition) for partition in partitions)
        return self

    def _choose(self, where: str) -> None:
        if self._topics or self._pattern or self._partitions:
            raise ConfigurationError(f"{where}: give one of set_topics, set_topic_pattern and set_partitions, once")

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Stops there too, but counts as unbounded: it runs in STREAMING mode."""
        self._stop = _initializer("set_unbounded", stopping_offsets_initializer)
        self._bounded = False
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Read up to these offsets, not including them, and end. They are looked up when the job is submitted."""
        self._stop = _initializer("set_bounded", stopping_offsets_initializer)
        self._bounded = True
        return self

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> KafkaSourceBuilder:
        self._schema = checked_deserializer("set_value_only_deserializer", deserialization_schema)
        return self

    def set_deserializer(
        self, kafka_record_deserialization_schema: KafkaRecordDeserializationSchema
    ) -> KafkaSourceBuilder:
        """A schema that sees key, headers, topic, partition, offset and timestamp too."""
        given = kafka_record_deserialization_schema
        if not isinstance(given, KafkaRecordDeserializationSchema):
            raise TypeError(f"set_deserializer: takes a KafkaRecordDeserializationSchema, got {given!r}")
        self._schema = given
        return self

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        return self.set_property("client.id.prefix", prefix)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """A property of librdkafka's consumer."""
        name, text = checked_property("KafkaSource.set_property", key, value)
        self._properties[name] = text
        return self

    def set_properties(self, props: Mapping[str, str]) -> KafkaSourceBuilder:
        for key, value in props.items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        if "bootstrap.servers" not in self._properties:
            raise ConfigurationError("KafkaSource: set_bootstrap_servers is missing")
        if not (self._topics or self._pattern or self._partitions):
            raise ConfigurationError("KafkaSource: give one of set_topics, set_topic_pattern and set_partitions")
        if self._schema is None:
            raise ConfigurationError("KafkaSource: set_value_only_deserializer (or set_deserializer) is missing")
        interval = self._properties.get(_DISCOVERY, "0")
        if not interval.strip().lstrip("+-").isdigit():
            raise ConfigurationError(f"KafkaSource: '{_DISCOVERY}' is a number of milliseconds, got {interval!r}")
        needs_group = self._start.needs_group or (self._stop is not None and self._stop.needs_group)
        if needs_group and "group.id" not in self._properties:
            raise ConfigurationError("KafkaSource: committed offsets are those of a group; set_group_id is missing")
        return KafkaSource(
            dict(self._properties),
            self._topics,
            self._pattern,
            self._partitions,
            self._start,
            self._stop,
            self._bounded,
            self._schema,
        )


def _initializer(where: str, initializer: object) -> KafkaOffsetsInitializer:
    if not isinstance(initializer, KafkaOffsetsInitializer):
        raise TypeError(f"{where}: takes a KafkaOffsetsInitializer such as .earliest(), got {initializer!r}")
    return initializer
