"""`KafkaSink`: the builder that users call, the checks before a job starts, and the committer."""

from __future__ import annotations

import logging
import time
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.common.job_client import JobClient
from tidegate.connectors.kafka.admin import ClusterAdmin
from tidegate.connectors.kafka.ages import warn_of_interval
from tidegate.connectors.kafka.lease import PrefixLease, take_prefix
from tidegate.connectors.kafka.outage import OUTAGE, OUTAGE_MS
from tidegate.connectors.kafka.producers import OF_A_SUBTASK, CommittedTransactions
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.settings import (
    KafkaError,
    check_installed,
    checked_property,
    checked_servers,
    librdkafka_settings,
    python_settings,
    refused,
    shown,
)
from tidegate.connectors.kafka.transactions import EndResult, Fate, KafkaTransaction, TransactionClient
from tidegate.connectors.kafka.writers import PlainKafkaWriter, RecordProduction, TransactionalKafkaWriter
from tidegate.contracts.connectors import (
    CommittableLostError,
    Committer,
    DeliveryGuarantee,
    Sink,
    SinkContext,
    SinkWriter,
    StreamTransformer,
    SupportsPreprocessing,
)
from tidegate.contracts.driver_side import DriverSide

_COORDINATOR_SECONDS = 15.0
_TIMEOUT_MS = 900_000  # the broker's own maximum unless it was changed; Flink's hour is refused by most brokers
_LOST = "tidegate.lost.transactions"
_OF_AN_ATTEMPT = f"[0-9a-f]{{32}}-[0-9]+-{OF_A_SUBTASK}"  # BATCH: the operator's id and the attempt's come before
_log = logging.getLogger(__name__)


class KafkaSink(Sink[Any, KafkaTransaction], SupportsPreprocessing, DriverSide):
    """Writes records to Kafka. Make one with `KafkaSink.builder()`. Needs `pip install tidegate[kafka]`.

    EXACTLY_ONCE: readers with `isolation.level=read_committed` see a record when its checkpoint is complete, once.
    AT_LEAST_ONCE: all records are acknowledged before a checkpoint completes; a recovery writes some again. NONE: no
    waiting; what a dying worker still held is lost."""

    sees_all_committables = True

    def __init__(
        self,
        properties: dict[str, str],
        schema: KafkaRecordSerializationSchema,
        guarantee: DeliveryGuarantee,
        prefix: str | None,
    ) -> None:
        check_installed("KafkaSink", transactions=guarantee is DeliveryGuarantee.EXACTLY_ONCE)
        self._properties = properties
        self._schema = schema
        self._guarantee = guarantee
        self._prefix = prefix
        self._writes_timestamps = True
        self._committed = CommittedTransactions()
        self._lease: PrefixLease | None = None  # on the driver, between check_start and job_started
        self._owner: str | None = None  # the lease's, for the writers
        self._outage_ms()
        if guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            python_settings(self._connection())  # refuses what it cannot translate
            self._transaction_timeout_ms()

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        return KafkaSinkBuilder()

    def get_transformer(self) -> StreamTransformer | None:
        """None: records need nothing done to them before the sink."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_committed": None, "_lease": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_committed": CommittedTransactions()}

    # ------------------------------------------------------------ on the driver
    @property
    def exclusive_name(self) -> str | None:
        if self._prefix is None or self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return None  # a prefix that is made from the job's and the sink's id is its own
        return f"the transactional id prefix '{self._prefix}' (KafkaSink.set_transactional_id_prefix)"

    def check_start(self, num_slots: int) -> None:
        self._check_properties()
        admin = ClusterAdmin("KafkaSink", self._connection())
        if self._schema.topic is None:
            admin.partitions()
        else:
            admin.partitions([self._schema.topic])
            admin.check_allowed([self._schema.topic], "WRITE")
            if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
                admin.check_allowed([self._schema.topic], "READ")  # to tell a lost transaction from one that is done
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return
        timeout, limit = self._transaction_timeout_ms(), admin.broker_setting("transaction.max.timeout.ms")
        if limit is not None and timeout > int(limit):
            raise ConfigurationError(
                f"KafkaSink: transaction.timeout.ms = {timeout} is above the broker's maximum, "
                f"transaction.max.timeout.ms = {limit}. Lower the first (set_property) or raise the second; it has to "
                "cover a checkpoint interval and the longest outage that you want to survive"
            )
        self._check_ids_allowed()
        if self._prefix is not None:
            self._lease = take_prefix(self._prefix, self._schema.topic, self._connection())
            self._owner = self._lease.owner

    def check_checkpoints(self, interval_ms: float | None) -> None:
        if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            warn_of_interval(interval_ms, self._transaction_timeout_ms())

    def _check_properties(self) -> None:
        """The library refuses what it does not know when a producer is made; no broker is needed for that."""
        from confluent_kafka import KafkaException, Producer

        settings = self._producer_settings()
        if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            settings["transactional.id"] = "none, since it is never used"
        try:
            Producer(settings)
        except KafkaException as error:
            servers = self._properties["bootstrap.servers"]
            raise refused("KafkaSink", "opening a producer", servers, error) from None

    def _check_ids_allowed(self) -> None:
        # A broker that never had a transaction has no coordinator for them in the first seconds.
        client, base = TransactionClient("KafkaSink", self._connection(), _COORDINATOR_SECONDS), self._base("0" * 32)
        try:
            if client.may_use(f"{base}-0-0"):
                return
        finally:
            client.close()
        given, servers = self._prefix or "tidegate-", self._properties["bootstrap.servers"]
        raise KafkaError(
            f"KafkaSink, bootstrap servers {servers}: this user may not use transactional ids that begin with "
            f"'{given}'. Ask for an ACL for them: operations Write and Describe, resource type TransactionalId, "
            "pattern type prefixed"
        )

    def job_started(self, client: JobClient) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            client.get_job_execution_result().add_done_callback(lambda _: lease.end())

    def job_refused(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.close()

    def _transaction_timeout_ms(self) -> int:
        return self._milliseconds("transaction.timeout.ms", _TIMEOUT_MS)

    def _outage_ms(self) -> int:
        return self._milliseconds(OUTAGE, OUTAGE_MS)

    def _milliseconds(self, name: str, default: int) -> int:
        text = self._properties.get(name, str(default))
        if not text.isdigit() or int(text) < 1000:
            raise ConfigurationError(f"KafkaSink: {name} has to be milliseconds >= 1000, got {text!r}")
        return int(text)

    def _connection(self) -> dict[str, str]:
        return {k: v for k, v in self._properties.items() if not k.startswith("tidegate.")}

    # ------------------------------------------------------------ on the workers
    def create_writer(self, context: SinkContext) -> SinkWriter[Any, KafkaTransaction]:
        settings, properties = self._producer_settings(), self._connection()
        servers = properties["bootstrap.servers"]
        full_seconds = int(settings["message.timeout.ms"]) / 1000
        production = RecordProduction(self._schema, servers, full_seconds, self._writes_timestamps)
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            at_barriers = self._guarantee is DeliveryGuarantee.AT_LEAST_ONCE
            return PlainKafkaWriter(settings, production, servers, at_barriers, context.wake)
        prefix = self._prefix or f"tidegate-{context.job_id}-{context.operator_id}"
        if context.of_one_attempt:
            prefix = f"{self._base(context.job_id)}-{context.operator_id}"
        return TransactionalKafkaWriter(
            settings,
            properties,
            production,
            prefix,
            self._owner,
            self._prefix is None,
            context,
            self._committed,
            self._outage_ms() / 1000,
        )

    def _producer_settings(self) -> dict[str, Any]:
        settings = librdkafka_settings(self._connection())
        if self._guarantee is not DeliveryGuarantee.NONE:
            settings.setdefault("enable.idempotence", True)
        settings.setdefault("linger.ms", 20)
        settings.setdefault("queue.buffering.max.messages", 200_000)
        settings.setdefault("message.timeout.ms", self._outage_ms())
        settings["delivery.report.only.error"] = True
        if self._guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            timeout = settings["transaction.timeout.ms"] = self._transaction_timeout_ms()
            # librdkafka wants a record's timeout within the transaction's.
            settings["message.timeout.ms"] = min(int(settings["message.timeout.ms"]), timeout)
        return settings

    def create_committer(self) -> Committer[KafkaTransaction] | None:
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return None
        drop = self._properties.get(_LOST, "fail") == "drop"
        client = TransactionClient("KafkaSink", self._connection(), self._outage_ms() / 1000)
        return KafkaCommitter(client, self._committed, drop)

    def discard_leftovers(self, job_id: str) -> None:
        self._abort(f"{self._base(job_id)}-", _OF_AN_ATTEMPT)

    def discard_uncommitted(self, job_id: str) -> None:
        of_a_writer = OF_A_SUBTASK if self._prefix is not None else f"[0-9a-f]{{32}}-{OF_A_SUBTASK}"
        self._abort(f"{self._base(job_id)}-", of_a_writer)

    def _abort(self, prefix: str, rest: str) -> None:
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return
        client = TransactionClient("KafkaSink", self._connection())
        try:
            for found in client.open_transactions(prefix, rest):
                client.ended(found.transactional_id, found.producer_id, found.epoch, False, 10)
        finally:
            client.close()

    def _base(self, job_id: str) -> str:
        return self._prefix or f"tidegate-{job_id}"

    def __repr__(self) -> str:
        return (
            f"KafkaSink({self._schema.topic or 'topics by record'}, {self._guarantee.name}, {shown(self._properties)})"
        )


class TransactionLostError(KafkaError, CommittableLostError):
    """The broker has aborted a transaction that a complete checkpoint holds."""


class KafkaCommitter(Committer[KafkaTransaction]):
    """Ends transactions. One that was committed before a crash is done; one that the broker has aborted is an error."""

    def __init__(self, client: TransactionClient, committed: CommittedTransactions, drop_lost: bool) -> None:
        self._client = client
        self._committed = committed
        self._drop_lost = drop_lost
        self._warned = False

    def commit(self, committables: list[KafkaTransaction]) -> list[KafkaTransaction]:
        """In order. What follows one that has to wait waits too: readers see checkpoints in their order."""
        for place, transaction in enumerate(committables):
            self._warn_when_near(transaction)
            result = self._client.end(transaction.transactional_id, transaction.producer_id, transaction.epoch, True)
            if result is EndResult.GONE and not self._is_settled(transaction):
                result = EndResult.BUSY
            if result is EndResult.BUSY:
                return committables[place:]
            self._committed.add(transaction.transactional_id)
        return []

    def _warn_when_near(self, transaction: KafkaTransaction) -> None:
        """Once. From the first record to now: the interval between checkpoints, and how long the job was down."""
        age = time.time() * 1000 - transaction.opened_ms
        if self._warned or not transaction.opened_ms or age <= transaction.timeout_ms / 3:
            return
        self._warned = True
        _log.warning(
            "KafkaSink: transaction %s was open for %.0f s before it could be committed, and the broker aborts it "
            "after %.0f s (transaction.timeout.ms): a longer outage would lose what it holds. Let checkpoints be "
            "closer together, or raise the timeout (and the broker's transaction.max.timeout.ms)",
            transaction.transactional_id,
            age / 1000,
            transaction.timeout_ms / 1000,
        )

    def _is_settled(self, transaction: KafkaTransaction) -> bool:
        """False: ask again. Raises when the records of the transaction are lost."""
        witness = transaction.witness
        fate = self._client.fate(witness)
        if fate is Fate.OPEN:
            return False
        if fate is Fate.COMMITTED:
            return True
        what = (
            f"transaction {transaction.transactional_id} (producer {transaction.producer_id}, epoch "
            f"{transaction.epoch}, topic {witness.topic}, partition {witness.partition}, offset {witness.offset})"
        )
        if self._drop_lost:
            _log.warning("KafkaSink: %s is taken for lost, as %s allows. %s", what, _LOST, fate.value)
            return True
        if fate is Fate.DELETED:
            raise TransactionLostError(
                f"KafkaSink: nobody can tell any more whether {what}, which belongs to the checkpoint that this job "
                "started from, was committed or aborted by the broker: retention has removed that place of the topic, "
                "or the topic was deleted. Start from a later snapshot, or, if it was committed or may be lost, accept "
                f"that with set_property('{_LOST}', 'drop'). Savepoints should not get older than retention.ms of the "
                "topic"
            )
        raise TransactionLostError(
            f"KafkaSink: the broker has aborted {what}, which belongs to the checkpoint that this job started from: it "
            f"was not committed within transaction.timeout.ms = {transaction.timeout_ms}, or somebody aborted it. Its "
            "records are not in the topic. Start from an older or a later snapshot, or accept the loss with "
            f"set_property('{_LOST}', 'drop'); then raise transaction.timeout.ms (and the broker's "
            "transaction.max.timeout.ms) above the longest outage"
        )

    def close(self) -> None:
        self._client.close()


class KafkaSinkBuilder:
    """Bootstrap servers and a record serializer are needed."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._guarantee = DeliveryGuarantee.NONE
        self._prefix: str | None = None
        self._schema: KafkaRecordSerializationSchema | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder:
        self._properties["bootstrap.servers"] = checked_servers("set_bootstrap_servers", bootstrap_servers)
        return self

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder:
        """NONE unless it is set, as in Flink."""
        if not isinstance(delivery_guarantee, DeliveryGuarantee):
            raise TypeError(f"set_delivery_guarantee: takes a DeliveryGuarantee, got {delivery_guarantee!r}")
        self._guarantee = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder:
        """Otherwise it is made from the id of the job and the sink's uid; then only a job with the same id (one that
        recovers) finds what an earlier run has left open. Give one to a job that is started anew by hand."""
        prefix = transactional_id_prefix
        if not isinstance(prefix, str) or not prefix.strip() or len(prefix.encode()) > 64000:
            raise ConfigurationError(
                f"set_transactional_id_prefix: takes a short text that is not empty, got {prefix!r}"
            )
        self._prefix = prefix
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> KafkaSinkBuilder:
        if not isinstance(record_serializer, KafkaRecordSerializationSchema):
            raise TypeError(f"set_record_serializer: takes a KafkaRecordSerializationSchema, got {record_serializer!r}")
        self._schema = record_serializer
        return self

    def set_property(self, key: str, value: str) -> KafkaSinkBuilder:
        """A property of librdkafka's producer, or `tidegate.lost.transactions` ('fail' or 'drop'), or
        `tidegate.outage.timeout.ms` (how long a broker that is away is waited for)."""
        name, text = checked_property("KafkaSink.set_property", key, value)
        if name == "transactional.id":
            raise ConfigurationError("KafkaSink: transactional.id is made from the prefix; set_transactional_id_prefix")
        if name == _LOST and text not in ("fail", "drop"):
            raise ConfigurationError(f"KafkaSink: {_LOST} has to be 'fail' or 'drop', got {text!r}")
        self._properties[name] = text
        return self

    def build(self) -> KafkaSink:
        if "bootstrap.servers" not in self._properties:
            raise ConfigurationError("KafkaSink: set_bootstrap_servers is missing")
        if self._schema is None:
            raise ConfigurationError("KafkaSink: set_record_serializer is missing")
        return KafkaSink(dict(self._properties), self._schema, self._guarantee, self._prefix)
