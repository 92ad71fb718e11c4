"""The readers of `KafkaSource`: a split is a partition; all splits of a subtask share one client.

librdkafka fetches on its own threads; the mailbox only takes what is there, many records at a time and of any of its
partitions, and each reader gets its own. A partition whose reader does not come for its records (it waits for other
sources, say) is paused, so that what is held in memory stays bounded. When there is nothing, a thread waits in the
client for the next record and wakes the mailbox.

A bounded partition ends when its position has reached the stop: at a record behind it, or at "end of partition". The
offset of the last record says nothing, since the marks of transactions take offsets too.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import Any

from tidegate.common.errors import TidegateError
from tidegate.common.serialization import ByteArraySchema, DeserializationSchema
from tidegate.connectors.idle_watch import LOOK_SECONDS, IdleWatch
from tidegate.connectors.kafka.serialization import KafkaRecord, KafkaRecordDeserializationSchema
from tidegate.connectors.kafka.settings import KafkaError, refused
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.connectors import SourceSplit, SplitReader

_FETCH = 10_000  # records taken from the client at once
_HELD = 20_000  # records of one partition that wait for their reader before it is paused
_BELIEVED_SECONDS = 2.0
_WOKEN_BEFORE_MS = 1000.0  # a reader is woken when something is there: this is only for the worst case
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KafkaSplit(SourceSplit):
    """A partition from `start` to `stop` (None: for ever)."""

    topic: str
    partition: int
    start: int
    stop: int | None


class PartitionClient:
    """One consumer for the partitions of a subtask. Made by the first reader, closed with the last one."""

    def __init__(
        self, settings: dict[str, Any], servers: str, clock: Any = None, wake: Callable[[], None] | None = None
    ) -> None:
        from confluent_kafka import Consumer, KafkaException, Message
        from confluent_kafka import KafkaError as Code

        self._partition: Callable[[Any], int] = Message.partition
        try:
            self._consumer: Any = Consumer({**settings, "error_cb": self._on_client_error})
        except KafkaException as error:
            raise refused("KafkaSource", "opening a consumer", servers, error) from None
        self.closed = False
        self._clock = clock
        self._watch = None
        if wake is not None:
            poll = self._consumer.poll
            self._watch = IdleWatch(lambda: poll(LOOK_SECONDS), wake, "tidegate-kafka-watch")
        self._trouble: tuple[float, str] | None = None  # since when, and what, of what the client cannot mend
        self._away = Code._ALL_BROKERS_DOWN
        self._said_away = False  # since the last record
        self._servers = servers
        self._eof = Code._PARTITION_EOF
        self._lost = (Code._AUTO_OFFSET_RESET, Code.OFFSET_OUT_OF_RANGE)
        self._final = (
            Code.UNKNOWN_TOPIC_OR_PART,
            Code.UNKNOWN_TOPIC_ID,
            Code._UNKNOWN_TOPIC,
            Code._UNKNOWN_PARTITION,
            Code.TOPIC_AUTHORIZATION_FAILED,
            Code.GROUP_AUTHORIZATION_FAILED,
            Code._AUTHENTICATION,
            Code.SASL_AUTHENTICATION_FAILED,
        )
        self._readers: dict[tuple[str, int], KafkaPartitionReader] = {}
        self._one_topic: str | None = None  # of all readers, when it is one
        self._paused: set[tuple[str, int]] = set()
        self._committed: dict[str, int] = {}  # split -> offset that the group was told last

    def add(self, reader: KafkaPartitionReader, offset: int | None) -> None:
        """None: there is nothing to read for it."""
        from confluent_kafka import TopicPartition

        split = reader.split
        self._readers[split.topic, split.partition] = reader
        topics = {topic for topic, _ in self._readers}
        self._one_topic = split.topic if len(topics) == 1 else None
        if offset is not None:
            with self._apart():
                self._consumer.incremental_assign([TopicPartition(split.topic, split.partition, offset)])

    def _apart(self) -> contextlib.AbstractContextManager[None]:
        """Around everything that is asked of the consumer besides its records: some of its methods hold Python's lock
        while they wait for a lock that `poll` has, and both would wait for ever."""
        return contextlib.nullcontext() if self._watch is None else self._watch.apart()

    def fetch(self) -> None:
        """Give what has arrived to the readers."""
        first: list[Any] = []
        if self._watch is not None and self._watch.begun:
            first = self._watch.take()
            if not first:
                return
        messages = self._consumer.consume(_FETCH, 0)
        if first:
            messages = first + messages
        if not messages:
            if self._watch is not None:
                self._watch.begin()
            return
        self._trouble, self._said_away = None, False
        # Hot: for a record that is no error, two calls of the client, a look-up and an append. One topic is the rule.
        arrived: defaultdict[Any, list[Any]] = defaultdict(list)
        place = self._partition if self._one_topic is not None else _topic_and_partition
        for message in messages:
            if message.error() is None:
                arrived[place(message)].append(message)
            else:
                self._hand_out(arrived)  # what came before it
                arrived.clear()
                self._on_error(message)
        self._hand_out(arrived)

    def wake_at_ms(self) -> float | None:
        """As of a reader: not before the watch wakes it, if there is one."""
        if self._watch is None or not self._watch.begun:
            return None
        now: float = self._clock.now_ms()
        return now + _WOKEN_BEFORE_MS

    def _on_client_error(self, error: Any) -> None:
        """Called inside of `consume`. A topic that is not there may be so for a moment, while a broker starts: it is
        believed when it is said again. A broker that is away is waited for, for as long as it takes."""
        if error.code() == self._away and not self._said_away:
            self._said_away = True
            _log.warning("KafkaSource, bootstrap servers %s: no broker answers; it is waited for", self._servers)
        if error.code() not in self._final:
            return
        now = time.monotonic()
        if self._trouble is None or self._trouble[1] != error.str():
            self._trouble = (now, error.str())
        elif now - self._trouble[0] >= _BELIEVED_SECONDS:
            raise KafkaError(
                f"KafkaSource, bootstrap servers {self._servers}: {error.str()}. Was the topic deleted, or are rights "
                "missing?"
            )

    def _hand_out(self, arrived: dict[Any, list[Any]]) -> None:
        for place, messages in arrived.items():
            at = place if self._one_topic is None else (self._one_topic, place)
            reader = self._readers.get(at)
            if reader is None:
                continue  # of a partition that was read to its end
            reader.add(messages)
            if reader.held > _HELD and at not in self._paused:
                self._pause(at)

    def _on_error(self, message: Any) -> None:
        error = message.error()
        where = f"topic {message.topic()}, partition {message.partition()}"
        if error.code() == self._eof:
            reader = self._readers.get((message.topic(), message.partition()))
            if reader is not None:
                reader.add_end(message.offset())
        elif error.code() in self._lost:
            raise KafkaError(
                f"KafkaSource: {where}: offset {message.offset()} is not there any more ({error.str()}): retention has "
                "deleted records that this job has not read, or the topic was made anew. To go on with the oldest that "
                "is there, set_property('auto.offset.reset', 'earliest'); with the newest, 'latest'"
            )
        elif error.fatal() or error.code() in self._final:
            raise KafkaError(
                f"KafkaSource, bootstrap servers {self._servers}: {where}: {error.str()}. Was the topic deleted, or "
                "are rights missing?"
            )
        else:
            _log.warning("KafkaSource: %s; librdkafka tries again", error.str())

    def _pause(self, place: tuple[str, int]) -> None:
        from confluent_kafka import TopicPartition

        self._paused.add(place)
        with self._apart():
            self._consumer.pause([TopicPartition(*place)])

    def drained(self, place: tuple[str, int]) -> None:
        """The reader has taken all that was held for it."""
        from confluent_kafka import TopicPartition

        if place in self._paused:
            self._paused.discard(place)
            with self._apart():
                self._consumer.resume([TopicPartition(*place)])

    def commit(self, split: KafkaSplit, offset: int) -> None:
        """To the group, for show: a job starts from its own checkpoints."""
        from confluent_kafka import KafkaException, TopicPartition

        if self._committed.get(split.split_id) == offset:
            return
        self._committed[split.split_id] = offset
        try:
            with self._apart():
                self._consumer.commit(offsets=[TopicPartition(split.topic, split.partition, offset)], asynchronous=True)
        except KafkaException as error:
            _log.warning("KafkaSource: the group's offset was not committed: %s", error)

    def end_of(self, split: KafkaSplit) -> int | None:
        """The end of the partition as of the latest fetch: nobody is asked for it. None: nothing was fetched yet, or
        nothing is there to fetch right now."""
        from confluent_kafka import TopicPartition

        if self._watch is not None and self._watch.begun:
            return None
        place = TopicPartition(split.topic, split.partition)
        found = None if self.closed else self._consumer.get_watermark_offsets(place, cached=True)
        return None if found is None or found[1] < 0 else int(found[1])

    def remove(self, split: KafkaSplit) -> None:
        from confluent_kafka import TopicPartition

        if self._readers.pop((split.topic, split.partition), None) is None:
            return
        self._paused.discard((split.topic, split.partition))
        if self._readers:
            place = TopicPartition(split.topic, split.partition)
            with self._apart():
                if place in self._consumer.assignment():
                    self._consumer.incremental_unassign([place])
        else:
            self.closed = True
            if self._watch is not None:
                self._watch.end()
            self._consumer.close()


Deserializer = DeserializationSchema | KafkaRecordDeserializationSchema


class KafkaPartitionReader(SplitReader[Any]):
    """The offset is that of the next record to read: when a schema has ended the stream (`is_end_of_stream`), that of
    the record which did."""

    def __init__(
        self, split: KafkaSplit, offset: int | None, client: PartitionClient, schema: Deserializer, commits: bool
    ) -> None:
        self.split = split
        self._waiting: deque[list[Any] | int] = deque()  # portions of messages; a number: the end was there
        self._taken = 0  # messages of the first portion that were given on
        self.held = 0  # messages that wait
        self._client = client
        self._commits = commits
        self._next = split.start if offset is None else offset
        self._ended = split.stop is not None and self._next >= split.stop
        self._schema = schema
        self._is_end: Callable[[Any], bool] | None = None
        plain = DeserializationSchema.is_end_of_stream
        if isinstance(schema, DeserializationSchema) and type(schema).is_end_of_stream is not plain:
            self._is_end = schema.is_end_of_stream
        client.add(self, None if self._ended else self._next)

    def add(self, messages: list[Any]) -> None:
        self._waiting.append(messages)
        self.held += len(messages)

    def add_end(self, offset: int) -> None:
        """The partition has nothing more, up to this offset, right now."""
        self._waiting.append(offset)

    def poll(self, max_records: int) -> RecordBatch | list[Any] | None:
        if self._ended:
            return None
        if not self._waiting:
            self._client.drained((self.split.topic, self.split.partition))
            self._client.fetch()
            if not self._waiting:
                return []
        messages = self._take(max_records)
        if not messages:
            return None if self._ended else []
        values = self._values(messages)
        if len(values) < len(messages):  # the stream has ended
            messages = messages[: len(values)]
            if not messages:
                return None
        stamps = [message.timestamp()[1] for message in messages]
        if any(map(is_, values, repeat(None))):
            kept = [i for i, value in enumerate(values) if value is not None]
            values, stamps = [values[i] for i in kept], [stamps[i] for i in kept]
        return RecordBatch(values, stamps)

    def _take(self, limit: int) -> list[Any]:
        """The next records of one portion, up to the stop. Moves the position."""
        portion = self._waiting.popleft()
        stop = self.split.stop
        if isinstance(portion, int):
            if stop is not None:
                self._next = max(self._next, min(portion, stop))
                self._ended = portion >= stop
            return []
        if len(portion) - self._taken > limit:
            self._waiting.appendleft(portion)
            portion = portion[self._taken : self._taken + limit]
            self._taken += limit
        elif self._taken:
            portion, self._taken = portion[self._taken :], 0
        self.held -= len(portion)
        last: int = portion[-1].offset()
        if stop is None or last < stop - 1:
            self._next = last + 1
            return portion
        # The stop is in this portion, or right behind it; the marks of transactions take offsets too.
        self._next, self._ended = stop, True
        self._waiting.clear()
        return [message for message in portion if message.offset() < stop]

    def _values(self, messages: list[Any]) -> list[Any]:
        """One for each message up to the record that ends the stream, if there is one."""
        rest = iter(messages)
        try:
            if isinstance(self._schema, KafkaRecordDeserializationSchema):
                whole = self._schema.deserialize
                return [whole(_record(message)) for message in rest]
            if type(self._schema) is ByteArraySchema:  # bytes as they are: 150 ns less per record than by a call
                return [message.value() for message in rest]
            convert = self._schema.deserialize
            if self._is_end is not None:
                return self._values_to_end(rest, convert, self._is_end)
            return [None if (value := message.value()) is None else convert(value) for message in rest]
        except Exception as error:
            culprit = messages[len(messages) - len(list(rest)) - 1]
            raise TidegateError(
                f"KafkaSource: the record at topic {culprit.topic()}, partition {culprit.partition()}, offset "
                f"{culprit.offset()} cannot be deserialized: {type(error).__name__}: {error}"
            ) from error

    def _values_to_end(
        self, messages: Iterator[Any], convert: Callable[[Any], Any], is_end: Callable[[Any], bool]
    ) -> list[Any]:
        """One by one: what lies behind the end is not looked at. The position stays before the record that is the end:
        a reader that goes on from a checkpoint of this moment comes to it first, and ends as this one does."""
        values: list[Any] = []
        for message in messages:
            content = message.value()
            value = None if content is None else convert(content)
            if value is not None and is_end(value):
                self._next, self._ended = message.offset(), True
                self._waiting.clear()
                break
            values.append(value)
        return values

    def offset(self) -> int:
        return self._next

    @property
    def settling(self) -> bool:
        return not self._ended and not self._waiting and self._client.end_of(self.split) is None

    def progress(self) -> float | None:
        start, stop = self.split.start, self.split.stop
        return None if stop is None else (self._next - start) / max(1, stop - start)

    def pending_records(self) -> int | None:
        stop = self.split.stop
        end = self._client.end_of(self.split) if stop is None else stop
        return None if end is None else max(0, end - self._next)

    def wake_at_ms(self) -> float | None:
        return self._client.wake_at_ms()

    def notify_checkpoint_complete(self, checkpoint_id: int, offset: Any) -> None:
        if self._commits and not self._client.closed:
            self._client.commit(self.split, offset)

    def close(self) -> None:
        self._waiting.clear()
        self._client.remove(self.split)


def _topic_and_partition(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()


def _record(message: Any) -> KafkaRecord:
    return KafkaRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or [],
    )
