"""Transactions seen from outside: found, looked at, committed and aborted by a process that did not begin them.

A transaction is (transactional id, producer id, epoch). Kafka commits it for whoever names all three (EndTxn), so a
committable survives the process, and the broker, that wrote it. Three traps, found by trying:

- With one producer for several transactions the epoch stays the same, and a late commit of the first would commit the
  third, half written. So each transaction has a new producer: that moves the epoch, and what is late is fenced.
- Requests of a newer version than librdkafka's own must not be mixed in: at most version 3.
- "Fenced" is the answer both to a transaction that the broker has aborted at its timeout and to one that was committed
  long ago and whose id has served again since. The difference is between lost and done, so it is looked up: a
  committable carries a *witness*, the place of one of its records. A reader of committed records sees the witness, or
  what comes after it.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tidegate.connectors.kafka.outage import BrokerWait
from tidegate.connectors.kafka.settings import BrokerUnavailableError, KafkaError, librdkafka_settings, python_settings

_END_TXN_VERSION = 3
_SECONDS = 15.0
_COORDINATORS_ASKED = 8  # each id has one of them, so these are likely to be on all brokers
_LOOK_SECONDS = 10.0  # for the first record of a transaction
_LOOK_PAUSE_SECONDS = 0.1
_SHOWN_PARTITIONS = 5
_BELIEVED_SECONDS = 5.0  # a topic that is unknown for so long was deleted: a broker that starts may not know it yet
_DONE, _BUSY = 0, frozenset({14, 15, 16, 51, 7, 13})
_UNKNOWN_ID = 105  # TRANSACTIONAL_ID_NOT_FOUND: of an id that was not used for transactional.id.expiration.ms too
_NO_RIGHT_TO_ID = 53  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_NO_RIGHT_TO_GROUP, _NO_SUCH_GROUP = 30, 69  # GROUP_AUTHORIZATION_FAILED, GROUP_ID_NOT_FOUND
_NO_RIGHT_TO_TOPIC = 29  # TOPIC_AUTHORIZATION_FAILED
_GONE = frozenset({47, 48, 49, 90, _UNKNOWN_ID})
_NO_LEADER = frozenset({5, 6})  # of a partition, while a broker starts
_OF_A_PARTITION = frozenset({3, 9, 29, 72, 100, 103}) | _NO_LEADER  # unknown, no replica, not allowed, deleted
T = TypeVar("T")


@dataclass(frozen=True)
class Witness:
    """The place of a record of a transaction."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class KafkaTransaction:
    """A committable: all records between two barriers of one writer, flushed."""

    transactional_id: str
    producer_id: int
    epoch: int
    witness: Witness
    timeout_ms: int
    opened_ms: float = 0.0  # by the writer's clock; 0: of a snapshot of a version that did not say


class EndResult(enum.Enum):
    DONE = "The transaction has this end now, or had it before."
    BUSY = "The broker cannot say yet: ask again."
    GONE = "The broker knows no open transaction with this id, producer and epoch."


class Fate(enum.Enum):
    COMMITTED = "A reader of committed records sees the witness."
    ABORTED = "A reader of committed records sees what comes after the witness, but not the witness."
    OPEN = "Readers of committed records still wait in front of the witness."
    DELETED = "The topic no longer reaches back to the witness: retention has removed it."


@dataclass(frozen=True)
class OpenTransaction:
    """What a broker says of a transaction that has not ended."""

    transactional_id: str
    producer_id: int
    epoch: int
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[tuple[str, int], ...]


class GroupRefusedError(KafkaError):
    """This user has no right to the group that holds a prefix."""


def group_refused(where: str, group: str) -> GroupRefusedError:
    return GroupRefusedError(
        f"{where}: this user may not use the consumer group '{group}', by which a transactional id prefix that was "
        "set (set_transactional_id_prefix) is held for one job. Ask for an ACL for it: operation Read (which "
        "includes Describe), resource type Group. Without a prefix of your own no such right is needed"
    )


class ClientClosedError(KafkaError):
    """Of a thread that goes on after the end of what it works for."""


class TransactionClient:
    """A connection for all of this. It is opened at the first question, and anew after an error. A broker that is away
    is waited for, for so many seconds. Blocks: not for the mailbox, except `describe` and `witness`, which a barrier
    has to wait for."""

    def __init__(self, connector: str, properties: Mapping[str, str], wait_seconds: float = 0.0) -> None:
        # Its modules import each other in circles: two threads that do so at the same time get in each other's way.
        import kafka.admin
        import kafka.protocol.producer.transaction  # noqa: F401

        self._connector = connector
        self._properties = dict(properties)
        self._servers = self._properties["bootstrap.servers"]
        self._wait_seconds = wait_seconds
        self._client: Any = None
        self._closed = threading.Event()

    def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool) -> EndResult:
        from kafka.protocol.producer.transaction import EndTxnRequest

        def ask(client: Any) -> int:
            try:
                coordinator = client.describe_transactions([transactional_id])[transactional_id].coordinator_id
            except Exception as error:
                if getattr(error, "errno", None) == _UNKNOWN_ID:
                    return _UNKNOWN_ID
                raise
            request = EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
                max_version=_END_TXN_VERSION,
            )
            code: int = client._manager.run(client._manager.send, request, coordinator).error_code
            return code

        code = self._ask("ending a transaction", ask)
        if code == _DONE:
            return EndResult.DONE
        if code in _BUSY:
            self._disconnect()  # the coordinator may have moved
            return EndResult.BUSY
        if code in _GONE:
            return EndResult.GONE
        raise KafkaError(f"{self._connector}: the broker refuses to end transaction {transactional_id}: error {code}")

    def ended(self, transactional_id: str, producer_id: int, epoch: int, commit: bool, seconds: float) -> EndResult:
        """`end`, asked again while the broker is busy."""
        deadline = time.monotonic() + seconds
        while True:
            result = self.end(transactional_id, producer_id, epoch, commit)
            if result is not EndResult.BUSY or time.monotonic() > deadline:
                return result
            time.sleep(0.05)

    def describe(self, transactional_id: str) -> OpenTransaction | None:
        """None when the broker has never heard of the id, or has forgotten it."""

        def ask(client: Any) -> Any:
            try:
                return client.describe_transactions([transactional_id])[transactional_id]
            except Exception as error:
                if getattr(error, "errno", None) == _UNKNOWN_ID:
                    return None
                raise

        found = self._ask("looking at a transaction", ask)
        if found is None:
            return None
        return OpenTransaction(
            transactional_id,
            found.producer_id,
            found.producer_epoch,
            found.state.value,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms,
            tuple(sorted((p.topic, p.partition) for p in found.topic_partitions)),
        )

    def may_use(self, transactional_id: str) -> bool:
        """Whether this user has a right to the id, at least that of looking at it."""

        def ask(client: Any) -> bool:
            try:
                client.describe_transactions([transactional_id])
            except Exception as error:
                if getattr(error, "errno", None) == _NO_RIGHT_TO_ID:
                    return False
                if getattr(error, "errno", None) != _UNKNOWN_ID:
                    raise
            return True

        return self._ask("asking for the rights to transactional ids", ask)

    def open_transactions(self, prefix: str, rest: str = ".*") -> list[OpenTransaction]:
        """Those whose id is `prefix` and what the pattern `rest` matches, and that have not ended.

        A broker that has just started lists none, without an error, until its coordinators are elected, and only then
        says that they are loading. A question for single ids is refused until then, so it comes first."""
        for n in range(_COORDINATORS_ASKED):
            self.may_use(f"{prefix}{n}-0")
        listed = self._ask("listing transactions", lambda client: client.list_transactions(state_filters=["Ongoing"]))
        ids = sorted(t.transactional_id for found in listed.values() for t in found)
        wanted = re.compile(re.escape(prefix) + rest, re.DOTALL)
        described = [self.describe(name) for name in ids if wanted.fullmatch(name)]
        return [t for t in described if t is not None and t.state == "Ongoing"]

    def witness(self, transaction: OpenTransaction) -> Witness | None:
        """The first record of the transaction in one of its partitions. None: it has ended since it was described. The
        look is repeated for a while before it is an error that no partition shows a record."""
        began = time.monotonic()
        while True:
            codes: set[int | None] = set()
            seen: list[str] = []  # what each partition has shown instead
            for topic, number in transaction.partitions:
                offset, instead, code = self._first_offset(transaction, topic, number)
                if offset is not None:
                    return Witness(topic, number, offset)
                codes.add(code)
                seen.append(f"{topic}, partition {number}: {instead}")
            now = self.describe(transaction.transactional_id)
            same = now is not None and (now.producer_id, now.epoch) == (transaction.producer_id, transaction.epoch)
            if now is None or not same or now.state != "Ongoing":
                return None
            transaction = now
            refused, away = codes == {_NO_RIGHT_TO_TOPIC}, not codes.isdisjoint(_NO_LEADER)
            seconds = max(_LOOK_SECONDS, self._wait_seconds) if away else _LOOK_SECONDS
            if refused or time.monotonic() > began + seconds or self.pause(_LOOK_PAUSE_SECONDS):
                shown = "; ".join(seen[:_SHOWN_PARTITIONS]) or "no partitions"
                raise (BrokerUnavailableError if away else KafkaError)(
                    f"{self._connector}, bootstrap servers {self._servers}: transaction {transaction.transactional_id} "
                    f"(producer {transaction.producer_id}, epoch {transaction.epoch}) is open and all of its records "
                    f"were acknowledged, but none could be found within {seconds:.0f} s, by which it could be told "
                    f"later whether it was committed. Seen: {shown}"
                    + (". Ask for an ACL of the topic: operation Read" if refused else "")
                )

    def _first_offset(
        self, transaction: OpenTransaction, topic: str, number: int
    ) -> tuple[int | None, str, int | None]:
        """In this partition; or what there is instead, with the code of an error. One of this partition alone leaves
        the others to look at: a topic that was deleted, a leader that moves, a right that is missing."""
        from kafka.structs import TopicPartition

        place = TopicPartition(topic, number)

        def ask(client: Any) -> Any:
            try:
                return client.describe_producers([place])[place].active_producers
            except Exception as error:
                if getattr(error, "errno", None) in _OF_A_PARTITION:
                    return error
                raise

        found = self._ask("looking for a transaction's first record", ask)
        if isinstance(found, Exception):
            self._disconnect()  # the leader may have moved
            return None, f"{type(found).__name__}: {found}", getattr(found, "errno", None)
        for producer in found:
            if producer.producer_id == transaction.producer_id:
                offset: int = producer.current_transaction_start_offset
                if offset >= 0 and producer.producer_epoch == transaction.epoch:
                    return offset, "", None
                at = f"its epoch is {producer.producer_epoch} there, and its open transaction begins at {offset}"
                return None, at, None
        return None, f"none of its {len(found)} producers is this one", None

    def members(self, group: str) -> list[str]:
        """The client ids of the members of a consumer group. (librdkafka's own question does not return for a group
        that is not there.) Raises GroupRefusedError when this user may not know."""
        deadline = time.monotonic() + max(_SECONDS, self._wait_seconds)
        while True:
            found, problem = self._ask(
                f"asking for the members of group {group}", lambda client: _description(client, group)
            )
            if not problem or f"[Error {_NO_SUCH_GROUP}]" in problem:
                return sorted(member["client_id"] for member in (found["members"] if not problem else ()))
            if f"[Error {_NO_RIGHT_TO_GROUP}]" in problem:
                raise group_refused(f"{self._connector}, bootstrap servers {self._servers}", group)
            if not any(f"[Error {code}]" in problem for code in _BUSY):
                raise KafkaError(f"{self._connector}: asking for the members of group {group}: {problem}")
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(f"{self._connector}: asking for the members of group {group}: {problem}")
            self._disconnect()
            if self.pause(0.2):
                deadline = 0.0

    def fate(self, witness: Witness) -> Fate:
        from confluent_kafka import Consumer, TopicPartition
        from confluent_kafka import KafkaError as Code

        settings = librdkafka_settings(self._properties)
        for name in ("transactional.id", "transaction.timeout.ms"):
            settings.pop(name, None)
        settings |= {
            "group.id": f"tidegate-witness-{uuid.uuid4().hex}",  # never joined: nothing is subscribed or committed
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        consumer = Consumer({k: v for k, v in settings.items() if k not in OF_PRODUCERS})
        try:
            consumer.assign([TopicPartition(witness.topic, witness.partition, witness.offset)])
            began = time.monotonic()
            while time.monotonic() < began + _SECONDS:
                message = consumer.poll(0.2)
                if message is None:
                    # A reader is not told of a topic that is gone before half a minute has passed.
                    if not _known(consumer, witness.topic) and time.monotonic() > began + _BELIEVED_SECONDS:
                        return Fate.DELETED
                    continue
                error = message.error()
                if error is None:
                    return Fate.COMMITTED if message.offset() == witness.offset else Fate.ABORTED
                if error.code() == Code._PARTITION_EOF:
                    return Fate.ABORTED if (message.offset() or 0) > witness.offset else Fate.OPEN
                if error.code() in (Code._AUTO_OFFSET_RESET, Code.OFFSET_OUT_OF_RANGE):
                    return Fate.DELETED
                if error.code() in (Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_PARTITION, Code._UNKNOWN_TOPIC):
                    return Fate.DELETED
        finally:
            consumer.close()
        raise BrokerUnavailableError(
            f"{self._connector}, bootstrap servers {self._servers}: topic {witness.topic}, partition "
            f"{witness.partition}, which tells how a transaction ended, could not be read within {_SECONDS:.0f} s"
        )

    def _ask(self, doing: str, ask: Callable[[Any], T]) -> T:
        wait = BrokerWait(self._connector, self._servers, self._wait_seconds, self._closed)
        while True:
            try:
                if self._client is None:
                    self._client = self._connected()
                if self._closed.is_set():
                    raise ClientClosedError(f"{self._connector}: {doing} was given up: the client was closed")
                answer = ask(self._client)
            except ClientClosedError:
                self._disconnect()
                raise
            except Exception as error:
                self._disconnect()
                if _passes(error) and wait.goes_on(doing, f"{type(error).__name__}: {error}"):
                    continue
                kind = BrokerUnavailableError if _passes(error) else KafkaError
                raise kind(
                    f"{self._connector}, bootstrap servers {self._servers}: {doing} failed: {type(error).__name__}: "
                    f"{error}.{wait.waited}"
                ) from None
            wait.over()
            return answer

    def _connected(self) -> Any:
        from kafka.admin import KafkaAdminClient

        # It logs every try to reach a broker that is away, as an error; the errors that matter are raised. And when all
        # logs are on it shows what it sends, the password too.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        return KafkaAdminClient(
            **python_settings(self._properties),
            bootstrap_timeout_ms=int(_SECONDS * 1000),
            request_timeout_ms=int(_SECONDS * 1000),
            reconnect_backoff_max_ms=500,  # half a minute otherwise: a broker that is back would not be noticed
            client_id="tidegate",
        )

    def pause(self, seconds: float) -> bool:
        """Wait so long; True when the client was closed meanwhile."""
        return self._closed.wait(seconds)

    def give_up(self) -> None:
        """From any thread: no further question is asked, and none that waits for a broker goes on."""
        self._closed.set()

    def close(self) -> None:
        """For good: a question that waits on another thread gives up."""
        self.give_up()
        self._disconnect()

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):  # the connection is of no more use, whatever it says
                client.close()


def _known(consumer: Any, topic: str) -> bool:
    """False: a broker has said that there is no such topic."""
    from confluent_kafka import KafkaError as Code
    from confluent_kafka import KafkaException

    try:
        error = consumer.list_topics(topic, timeout=1.0).topics[topic].error
    except KafkaException:
        return True  # none has answered
    return error is None or error.code() != Code.UNKNOWN_TOPIC_OR_PART


def _passes(error: Exception) -> bool:
    """It is about the connection, or about a broker that is not quite there yet. A topic that is not known is neither:
    it may have been deleted."""
    code = getattr(error, "errno", None)
    if isinstance(error, OSError):
        return True
    return bool(getattr(error, "retriable", False)) and (code is None or code in _BUSY or code in _NO_LEADER)


def _description(client: Any, group: str) -> tuple[Any, str]:
    """Of a group, and what is wrong with it, if anything."""
    try:
        found = client.describe_groups([group])[group]
    except Exception as error:
        if getattr(error, "errno", None) not in _BUSY | {_NO_RIGHT_TO_GROUP}:
            raise
        return None, f"[Error {getattr(error, 'errno', None)}]"
    return found, str(found.get("error") or "")


OF_PRODUCERS = frozenset(
    {
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "compression.type",
        "compression.codec",
        "linger.ms",
        "queue.buffering.max.ms",
        "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
        "batch.size",
        "batch.num.messages",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "retries",
        "message.send.max.retries",
        "partitioner",
        "delivery.report.only.error",
        "message.max.bytes",
    }
)
