"""How records become Kafka's, and the other way round: key, value, headers, timestamp, topic, partition."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tidegate.common.errors import ConfigurationError
from tidegate.common.serialization import DeserializationSchema, SerializationSchema
from tidegate.common.typeinfo import PickledBytesTypeInfo, TypeInformation

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]


class KafkaRecord(NamedTuple):
    """A record as it lies in Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int  # ms; -1 when the topic keeps none
    key: bytes | None
    value: bytes | None  # None: a tombstone
    headers: list[tuple[str, bytes | None]]


class KafkaRecordDeserializationSchema(abc.ABC):
    """Turns a whole record of Kafka into one of the stream. Pickled to the workers."""

    def open(self) -> None:
        """Called once per subtask, before the first record."""

    @abc.abstractmethod
    def deserialize(self, record: KafkaRecord) -> Any:
        """The record, or None to leave it out."""

    def get_produced_type(self) -> TypeInformation:
        return PickledBytesTypeInfo()


class KafkaTopicSelector(abc.ABC):
    """Chooses the topic of each record. Pickled to the workers."""

    @abc.abstractmethod
    def apply(self, data: Any) -> str: ...


class KafkaRecordSerializationSchema:
    """How a sink turns a record into one of Kafka. Made by `builder()`."""

    def __init__(
        self,
        topic: str | None,
        topic_selector: KafkaTopicSelector | Callable[[Any], str] | None,
        key_schema: SerializationSchema | None,
        value_schema: SerializationSchema,
        headers: Callable[[Any], Headers | None] | None,
        timestamp: Callable[[Any], int | None] | None,
        partition: Callable[[Any], int] | None,
    ) -> None:
        self.topic = topic  # None: `select_topic` says
        self.topic_selector = topic_selector
        self.key_schema = key_schema
        self.value_schema = value_schema
        self.headers = headers
        self.timestamp = timestamp
        self.partition = partition

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        return KafkaRecordSerializationSchemaBuilder()

    def open(self) -> None:
        self.value_schema.open()
        if self.key_schema is not None:
            self.key_schema.open()

    @property
    def select_topic(self) -> Callable[[Any], str] | None:
        selector = self.topic_selector
        return selector.apply if isinstance(selector, KafkaTopicSelector) else selector

    @property
    def plain(self) -> bool:
        """Only a value, and the same topic for all: what the short way of the writer takes."""
        return self.topic is not None and not (self.key_schema or self.headers or self.timestamp or self.partition)


class KafkaRecordSerializationSchemaBuilder:
    """A topic (or a selector) and a schema of the value are needed; all else may be left out."""

    def __init__(self) -> None:
        self._topic: str | None = None
        self._selector: KafkaTopicSelector | Callable[[Any], str] | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None
        self._headers: Callable[[Any], Headers | None] | None = None
        self._timestamp: Callable[[Any], int | None] | None = None
        self._partition: Callable[[Any], int] | None = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder:
        if not isinstance(topic, str) or not topic.strip():
            raise ConfigurationError(f"set_topic: takes the name of a topic, got {topic!r}")
        self._topic = topic
        return self

    def set_topic_selector(
        self, topic_selector: KafkaTopicSelector | Callable[[Any], str]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """A `KafkaTopicSelector`, or a function from the record to the name of its topic."""
        if not isinstance(topic_selector, KafkaTopicSelector) and not callable(topic_selector):
            raise TypeError(f"set_topic_selector: takes a KafkaTopicSelector or a function, got {topic_selector!r}")
        self._selector = topic_selector
        return self

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
        self._value = _schema("set_value_serialization_schema", value_serialization_schema)
        return self

    def set_header_provider(
        self, header_provider: Callable[[Any], Headers | None]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """A function from the record to its headers: a dict or pairs of name and bytes."""
        self._headers = _function("set_header_provider", header_provider)
        return self

    def set_timestamp_provider(
        self, timestamp_provider: Callable[[Any], int | None]
    ) -> KafkaRecordSerializationSchemaBuilder:
        """A function from the record to its timestamp in ms. Otherwise it is the record's event time, if it has one."""
        self._timestamp = _function("set_timestamp_provider", timestamp_provider)
        return self

    def set_partitioner(self, partitioner: Callable[[Any], int]) -> KafkaRecordSerializationSchemaBuilder:
        """A function from the record to its partition. Otherwise Kafka's client chooses, by the key if there is one."""
        self._partition = _function("set_partitioner", partitioner)
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        if (self._topic is None) == (self._selector is None):
            raise ConfigurationError("KafkaRecordSerializationSchema: give either set_topic or set_topic_selector")
        if self._value is None:
            raise ConfigurationError("KafkaRecordSerializationSchema: set_value_serialization_schema is missing")
        return KafkaRecordSerializationSchema(
            self._topic, self._selector, self._key, self._value, self._headers, self._timestamp, self._partition
        )


def _schema(where: str, schema: object) -> SerializationSchema:
    if not isinstance(schema, SerializationSchema):
        raise TypeError(f"{where}: takes a SerializationSchema such as SimpleStringSchema(), got {schema!r}")
    return schema


def _function(where: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not callable(function):
        raise TypeError(f"{where}: takes a function of the record, got {function!r}")
    return function


def checked_deserializer(where: str, schema: object) -> DeserializationSchema:
    if not isinstance(schema, DeserializationSchema):
        raise TypeError(f"{where}: takes a DeserializationSchema such as SimpleStringSchema(), got {schema!r}")
    return schema
