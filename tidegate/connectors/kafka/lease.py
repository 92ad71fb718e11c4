"""Whose is a prefix? Two jobs with one prefix would abort each other's transactions, so the second is refused.

The broker keeps the answer: while a job runs, its sink is the only member of a consumer group named after the prefix.
Membership ends by itself a few seconds after the process is gone, and anybody can ask who the members are. Nothing is
read: librdkafka joins only for a topic that exists, so the member subscribes to one, but never takes its partitions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.connectors.kafka.settings import librdkafka_settings, refused
from tidegate.connectors.kafka.transactions import OF_PRODUCERS, TransactionClient

_SESSION_MS = 6000  # the least that brokers allow unless they are told otherwise
_SECONDS = 15.0


def _group(prefix: str) -> str:
    return f"{prefix}-tidegate-owner"


def owners(connector: str, prefix: str, properties: Mapping[str, str]) -> list[str]:
    """The ids of the jobs that hold the prefix now."""
    client = TransactionClient(connector, properties)
    try:
        return client.members(_group(prefix))
    finally:
        client.close()


def check_free(prefix: str, properties: Mapping[str, str]) -> None:
    """Before a job starts. A job that has just died holds its prefix for some seconds: that is waited for."""
    deadline = time.monotonic() + _SESSION_MS / 1000 + 4
    while found := owners("KafkaSink", prefix, properties):
        if time.monotonic() > deadline:
            raise _taken(prefix, found[0])
        time.sleep(0.5)


def _taken(prefix: str, job: str) -> ConfigurationError:
    return ConfigurationError(
        f"KafkaSink: the transactional id prefix '{prefix}' is in use by job {job}, which is running. Two jobs with "
        "one prefix would abort each other's transactions: give each its own (set_transactional_id_prefix), or end the "
        "other one"
    )


def _take_nothing(member: Any, partitions: Any) -> None:
    member.unassign()


class PrefixLease:
    """Held by subtask 0 from its start to its end; raises when another job has it."""

    def __init__(
        self, prefix: str, job_id: str, topic: str | None, properties: Mapping[str, str], client: TransactionClient
    ) -> None:
        from confluent_kafka import Consumer, KafkaException

        others = [job for job in client.members(_group(prefix)) if job != job_id]
        if others:
            raise _taken(prefix, others[0])
        settings = {k: v for k, v in librdkafka_settings(properties).items() if k not in OF_PRODUCERS}
        settings |= {
            "group.id": _group(prefix),
            "client.id": job_id,
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": 1000,
            "max.poll.interval.ms": 86_400_000,  # nobody polls: there is nothing to read
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
        }
        try:
            self._member: Any = Consumer(settings)
            if topic is None:
                topic = next(iter(self._member.list_topics(timeout=_SECONDS).topics))
            # The callback is never served, since nobody polls: the partitions stay unassigned, and nothing is fetched.
            self._member.subscribe([topic], on_assign=_take_nothing)
        except KafkaException as error:
            raise refused("KafkaSink", "taking the prefix", properties["bootstrap.servers"], error) from None

    def close(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.close()
