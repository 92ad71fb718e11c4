"""The writers of `KafkaSink`: one for each guarantee's way, and what they share: records into a producer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import TidegateError
from tidegate.connectors.kafka.ages import TransactionAges
from tidegate.connectors.kafka.lease import check_held
from tidegate.connectors.kafka.outage import BrokerWait
from tidegate.connectors.kafka.producers import (
    OF_A_SUBTASK,
    CommittedTransactions,
    Fencing,
    PreparedProducer,
    ProducerFactory,
    TransactionalIds,
)
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.settings import BrokerUnavailableError, KafkaError, is_about_availability, refused
from tidegate.connectors.kafka.transactions import EndResult, KafkaTransaction, TransactionClient
from tidegate.contracts.connectors import SinkContext, SinkWriter

_QUEUE = 100_000  # records that may wait in a producer before the task waits
_ABORT_SECONDS = 30.0
_ROOM_SECONDS = 0.1
_LEFT_OUT_SECONDS = 10.0  # between two messages about records that are left out
_HELD_SECONDS = 30.0
_SILENCE_SECONDS = 5.0  # without an acknowledgement, before the log says so
_log = logging.getLogger(__name__)


class RecordProduction:
    """Puts records into a producer; blocks only when the broker takes none."""

    def __init__(
        self, schema: KafkaRecordSerializationSchema, servers: str, full_seconds: float, writes_timestamps: bool
    ) -> None:
        schema.open()
        self._writes_timestamps = writes_timestamps  # the event time of records that have one
        self._schema = schema
        self.topic = schema.topic
        self._servers = servers
        self._full_seconds = full_seconds

    def produce(self, producer: Any, values: list[Any], timestamps: list[int] | None) -> None:
        from confluent_kafka import KafkaException

        if not self._writes_timestamps:
            timestamps = None
        rest = iter(values)
        try:
            if self._schema.plain and timestamps is None:
                self._produce_plain(producer, rest)
            else:
                self._produce_all(producer, rest, timestamps)
        except KafkaException as error:
            raise self._told(error, values, rest) from None
        producer.poll(0)

    def _produce_plain(self, producer: Any, rest: Any) -> None:
        # The hot path: one call for the schema and one for the producer per record.
        produce, serialize, topic = producer.produce, self._schema.value_schema.serialize, self._schema.topic
        for value in rest:
            message = serialize(value)
            try:
                produce(topic, message)
            except BufferError:
                self._when_there_is_room(producer, topic, message, {})

    def _produce_all(self, producer: Any, rest: Any, timestamps: list[int] | None) -> None:
        schema = self._schema
        select, key_schema = schema.select_topic, schema.key_schema
        for i, value in enumerate(rest):
            more: dict[str, Any] = {}
            if key_schema is not None:
                more["key"] = key_schema.serialize(value)
            if schema.headers is not None:
                more["headers"] = schema.headers(value)
            if schema.partition is not None:
                more["partition"] = schema.partition(value)
            stamp = schema.timestamp(value) if schema.timestamp is not None else None
            if stamp is None and timestamps is not None:
                stamp = timestamps[i]
            if stamp is not None and stamp >= 0:  # Kafka knows no time before 1970
                more["timestamp"] = stamp
            topic = select(value) if select is not None else schema.topic
            message = schema.value_schema.serialize(value)
            try:
                producer.produce(topic, message, **more)
            except BufferError:
                self._when_there_is_room(producer, topic, message, more)

    def _when_there_is_room(self, producer: Any, topic: Any, message: Any, more: dict[str, Any]) -> None:
        deadline = time.monotonic() + self._full_seconds
        while True:
            producer.poll(0.1)
            try:
                producer.produce(topic, message, **more)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise BrokerUnavailableError(
                        f"KafkaSink, bootstrap servers {self._servers}: the broker has taken no records for "
                        f"{self._full_seconds:.0f} s (message.timeout.ms)"
                    ) from None

    def _told(self, error: Any, values: list[Any], rest: Any) -> TidegateError:
        from confluent_kafka import KafkaError as Code

        at = len(values) - len(list(rest)) - 1
        if error.args[0].code() == Code.MSG_SIZE_TOO_LARGE:
            return KafkaError(
                f"KafkaSink: record {at} of this batch is larger than message.max.bytes allows; raise it here, and "
                "max.message.bytes of the topic"
            )
        return refused("KafkaSink", f"writing record {at} of a batch", self._servers, error)

    def flush(self, producer: Any, errors: list[Any]) -> None:
        """All that was produced is with the broker, or an error."""
        wait = BrokerWait("KafkaSink", self._servers, self._full_seconds, threading.Event(), "message.timeout.ms")
        due = len(producer)
        while (left := producer.flush(_SILENCE_SECONDS)) and not errors:
            if left < due:
                due = left  # slow, but there
            elif not wait.goes_on("waiting for records to be acknowledged", f"{left} are due", pause=0.0):
                break
        if not left:
            wait.over()
        if errors:
            error, topic, partition = errors[0]
            if is_about_availability(error):
                raise BrokerUnavailableError(
                    f"KafkaSink, bootstrap servers {self._servers}: no broker has taken a record for "
                    f"{_place(topic, partition)} within {self._full_seconds:.0f} s (message.timeout.ms): {error.str()}"
                    ". What was written since the last checkpoint is written again after the restart"
                )
            raise KafkaError(
                f"KafkaSink: the broker refuses a record for {_place(topic, partition)}: {error.str()}. "
                "Nothing of this checkpoint was committed; the records are written again after the restart"
            )
        if left:
            raise BrokerUnavailableError(
                f"KafkaSink, bootstrap servers {self._servers}: {left} records were not acknowledged within "
                f"{self._full_seconds:.0f} s (message.timeout.ms); they are written again after the restart"
            )


def _place(topic: str, partition: int | None) -> str:
    """A record of a topic that is gone has no partition."""
    return f"topic {topic}" if partition is None else f"topic {topic}, partition {partition}"


class PlainKafkaWriter(SinkWriter[Any, KafkaTransaction]):
    """AT_LEAST_ONCE: acknowledged before every barrier. NONE: at the end of input only."""

    def __init__(
        self,
        settings: dict[str, Any],
        production: RecordProduction,
        servers: str,
        at_barriers: bool,
        wake: Callable[[], None] | None = None,
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self._production = production
        self._at_barriers = at_barriers
        self._errors: list[Any] = []
        self._left_out = _LeftOut()
        self._room = _Room(wake)
        try:
            self._producer: Any = Producer({**settings, "on_delivery": self._delivered})
        except KafkaException as error:
            raise refused("KafkaSink", "opening a producer", servers, error) from None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            return
        if not self._at_barriers:
            self._left_out.add(error.str(), message.topic(), message.partition())
        elif len(self._errors) < 10:
            self._errors.append((error, message.topic(), message.partition()))

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._production.produce(self._producer, values, timestamps)

    def flush(self, end_of_input: bool) -> None:
        if self._at_barriers or end_of_input:
            self._production.flush(self._producer, self._errors)

    @property
    def available(self) -> bool:
        return self._room.is_in(self._producer)

    def close(self) -> None:
        self._producer = None
        self._left_out.tell()


class _Room:
    """Whether a producer takes more records. While it does not, a thread looks out for the moment when it does."""

    def __init__(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        self._watched = False

    def is_in(self, producer: Any) -> bool:
        if len(producer) < _QUEUE // 2:
            return True
        producer.poll(0)
        if self._wake is not None and not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, args=(producer, self._wake), daemon=True).start()
        return False

    def _watch(self, producer: Any, wake: Callable[[], None]) -> None:
        # Not for ever: reports of refused records stay in the queue until the task polls for them.
        deadline = time.monotonic() + _ROOM_SECONDS
        while len(producer) >= _QUEUE // 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        del producer
        self._watched = False
        wake()


class _LeftOut:
    """Records that the broker has refused and that no guarantee covers: the log says so, now and then."""

    def __init__(self) -> None:
        self._count = self._told = 0
        self._quiet_until = 0.0
        self._latest = ""

    def add(self, error: str, topic: str, partition: int | None) -> None:
        self._count += 1
        self._latest = f"{_place(topic, partition)}: {error}"
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _LEFT_OUT_SECONDS
            self.tell()

    def tell(self) -> None:
        """What has not been told yet."""
        if self._count > self._told:
            self._told = self._count
            _log.warning(
                "KafkaSink: records that the broker refuses are left out (DeliveryGuarantee.NONE), %d so far; the "
                "latest for %s",
                self._count,
                self._latest,
            )


class TransactionalKafkaWriter(SinkWriter[Any, KafkaTransaction]):
    """EXACTLY_ONCE: a transaction from barrier to barrier. What has to be done before the first one is done on a
    thread, where a broker that is away can be waited for; until then the writer takes no records.

    `of_a_job`: the prefix is made from the job's id. Nobody else has it and nobody holds it, so there is nothing to
    ask, and no right to ask is needed."""

    def __init__(
        self,
        settings: dict[str, Any],
        properties: dict[str, str],
        production: RecordProduction,
        prefix: str,
        owner: str | None,
        of_a_job: bool,
        context: SinkContext,
        committed: CommittedTransactions,
        wait_seconds: float,
    ) -> None:
        self._production = production
        self._committed = committed
        self._timeout_ms = int(settings["transaction.timeout.ms"])
        self._client = TransactionClient("KafkaSink", properties, wait_seconds)
        needed = [*context.restored_committables, *context.committables_of_all]
        self._ids = TransactionalIds(prefix, context.subtask, {t.transactional_id for t in needed}, context.memo)
        self._one_only = context.memo is not None  # a micro-batch has one transaction
        self._fencing = Fencing()

        def start() -> None:
            if context.of_one_attempt:
                return
            if not of_a_job:
                check_held(prefix, owner, self._client, max(wait_seconds, _HELD_SECONDS))
            self._abort_leftovers(prefix, needed, context)

        servers = properties["bootstrap.servers"]
        self._producers = ProducerFactory(
            settings, servers, self._ids, start, wait_seconds, context.wake, self._fencing
        )
        self._room = _Room(context.wake)
        self._producers.prepare()
        self._open: PreparedProducer | None = None
        self._opened_at = 0.0
        self._written = 0
        self._waiting: set[str] = set()  # ids of transactions that wait for their commit
        self._clock = context.clock
        self._ages = TransactionAges(self._timeout_ms, context.clock, committed)

    def _abort_leftovers(self, prefix: str, needed: list[KafkaTransaction], context: SinkContext) -> None:
        """Transactions under this prefix that no checkpoint will commit: of an attempt that died, of subtasks that no
        longer exist, of a job that never completed a checkpoint. Readers of committed records wait behind them.

        An id alone says nothing: the one of a transaction that is needed may have served again since, and of another
        job whose prefix is longer every id begins with this prefix too."""
        kept = {(t.transactional_id, t.producer_id, t.epoch) for t in needed}
        for found in self._client.open_transactions(f"{prefix}-", OF_A_SUBTASK):
            written_by = int(found.transactional_id[len(prefix) + 1 :].split("-", 1)[0])
            mine = written_by % context.parallelism == context.subtask
            if not mine or (found.transactional_id, found.producer_id, found.epoch) in kept:
                continue
            with self._fencing.step():
                result = self._client.ended(
                    found.transactional_id, found.producer_id, found.epoch, False, _ABORT_SECONDS
                )
            if result is EndResult.BUSY:
                raise BrokerUnavailableError(
                    f"KafkaSink: transaction {found.transactional_id}, left over from an earlier attempt, could not be "
                    f"aborted in {_ABORT_SECONDS:.0f} s. See: tidegate kafka transactions list"
                )
            _log.info("aborted transaction %s, left over from an earlier attempt", found.transactional_id)

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not values:
            return
        if self._open is None:
            self._open = self._producers.take()
            self._opened_at = self._clock.now_ms()
            self._ages.opened(self._open.transactional_id, self._opened_at)
            if not self._one_only:
                self._producers.prepare()  # the one after it
        self._production.produce(self._open.producer, values, timestamps)
        self._written += len(values)

    @property
    def available(self) -> bool:
        for name in self._committed.take(self._waiting):
            self._waiting.discard(name)
            self._ages.ended(name)
            self._ids.give_back(name)
        if self._open is None:
            self._producers.prepare()
            return self._producers.ready
        return self._room.is_in(self._open.producer)

    def flush(self, end_of_input: bool) -> None:
        self._producers.check_started(wait=end_of_input)
        if self._open is not None:
            self._production.flush(self._open.producer, self._open.errors)

    def prepare_commit(self) -> list[KafkaTransaction]:
        ended, self._open = self._open, None
        if ended is None:
            return []  # Kafka would refuse to commit a transaction without records
        found = self._client.describe(ended.transactional_id)
        witness = self._client.witness(found) if found is not None and found.state == "Ongoing" else None
        if found is None or witness is None:
            raise self._aborted(ended.transactional_id)
        committable = KafkaTransaction(
            ended.transactional_id,
            found.producer_id,
            found.epoch,
            witness,
            self._timeout_ms,
            self._opened_at,
        )
        self._waiting.add(ended.transactional_id)
        self._producers.drop(ended.producer)
        return [committable]

    def _aborted(self, transactional_id: str) -> KafkaError:
        open_ms = self._clock.now_ms() - self._opened_at
        if open_ms >= self._timeout_ms:
            why = f"has been aborted by the broker (transaction.timeout.ms = {self._timeout_ms})"
            then = "Let checkpoints be closer together, or raise transaction.timeout.ms"
        else:
            why = (
                f"was aborted by somebody else (transaction.timeout.ms = {self._timeout_ms} was not over): another "
                "program with this transactional id, an operator, or a worker of an earlier attempt that was cut off"
            )
            then = "See: tidegate kafka transactions list"
        return KafkaError(
            f"KafkaSink: transaction {transactional_id} was open for {open_ms / 1000:.0f} s and {why}. Nothing is "
            f"lost: the job goes back to its last checkpoint. {then}"
        )

    def memo(self) -> tuple[int, tuple[str, ...]]:
        return self._ids.memo(self._producers.unused_ids, sorted(self._waiting))

    def close(self) -> None:
        self._open = None
        self._ages.close()
        self._client.give_up()  # what the start still asks
        self._producers.close()
        self._client.close()
