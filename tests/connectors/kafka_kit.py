"""A sink's writers and committers without a job, in the order in which a job calls them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from tests.connectors.broker import Broker
from tidegate.common.serialization import SimpleStringSchema
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.sink import KafkaSink, KafkaSinkBuilder
from tidegate.contracts.connectors import DeliveryGuarantee, SinkContext


class WallClock:
    def now_ms(self) -> float:
        return time.time() * 1000


def builder(
    broker: Broker, topic: str, guarantee: DeliveryGuarantee = DeliveryGuarantee.EXACTLY_ONCE
) -> KafkaSinkBuilder:
    schema = KafkaRecordSerializationSchema.builder()
    schema.set_topic(topic).set_value_serialization_schema(SimpleStringSchema())
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(broker.bootstrap_servers)
        .set_delivery_guarantee(guarantee)
        .set_record_serializer(schema.build())
    )


def open_writer(
    sink: KafkaSink,
    subtask: int = 0,
    parallelism: int = 1,
    restored: Sequence[Any] = (),
    of_all: Sequence[Any] | None = None,
    job_id: str = "job",
    attempt: str = "",
    wake: Callable[[], None] | None = None,
    memo: Any = None,
) -> Any:
    """`attempt`: the name of one in BATCH mode, where several may run side by side. `memo`: of the writer in the
    micro-batch before."""
    shipped: KafkaSink = cloudpickle.loads(cloudpickle.dumps(sink))
    context = SinkContext(
        job_id,
        "sink",
        subtask,
        parallelism,
        0,
        WallClock(),
        operator_id=attempt or "op",
        restored_committables=restored,
        committables_of_all=restored if of_all is None else of_all,
        of_one_attempt=bool(attempt),
    )
    context.wake = wake
    context.memo = memo
    writer = shipped.create_writer(context)
    writer.committer = shipped.create_committer()
    _wait_for(writer)
    writer.flush(False)  # raises what its start has raised
    return writer


def _wait_for(writer: Any) -> None:
    deadline = time.monotonic() + 30
    while not writer.available:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def write(writer: Any, values: list[Any]) -> None:
    _wait_for(writer)
    writer.write_batch(values, None)


def barrier(writer: Any) -> list[Any]:
    writer.flush(False)
    prepared: list[Any] = writer.prepare_commit()
    writer.snapshot_state(1)
    return prepared


def commit(committer: Any, transactions: Sequence[Any]) -> None:
    """Commits as a job does: what the broker is still at work on ("try again") is handed in once more."""
    deadline = time.monotonic() + 60
    left = list(transactions)
    while left := committer.commit(left):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def numbers(*parts: range) -> list[str]:
    return [str(n) for part in parts for n in part]
