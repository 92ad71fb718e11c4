"""Whose is a prefix? Two jobs with one prefix would abort each other's transactions, so the second is refused.

The broker keeps the answer: while a job runs, its driver is the only member of a consumer group named after the prefix.
Membership ends by itself a few seconds after the process is gone, and anybody can ask who the members are. Nothing is
read: librdkafka joins only for a topic that exists, so the member subscribes to one, but never takes its partitions.

A driver looks, joins, and looks again: of two that begin at the same time the one that joined later sees the other, so
never both go on. (If both see each other both step back, and begin again after a pause of random length.) The prefix is
held from before the start of the job to its end, over all restarts of its workers. Each writer looks too before it
touches anything: a driver that was frozen for longer than its membership lasts may have lost the prefix.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from tidegate.common.errors import ConfigurationError
from tidegate.connectors.kafka.producers import OF_A_SUBTASK
from tidegate.connectors.kafka.settings import BrokerUnavailableError, KafkaError, librdkafka_settings, refused
from tidegate.connectors.kafka.transactions import OF_PRODUCERS, TransactionClient, group_refused

_SESSION_MS = 6000  # the least that brokers allow unless they are told otherwise
_DEAD_SECONDS = _SESSION_MS / 1000 + 4  # by then a membership has ended whose driver has died
_SECONDS = 15.0
_JOIN_SECONDS = 30.0
_LEAVE_SECONDS = 5.0  # a broker that is away is not waited for: the membership ends by itself
_POLL_SECONDS = 0.2
_ID = re.compile(f"(?P<prefix>.+)-{OF_A_SUBTASK}", re.DOTALL)
_OF_AN_ATTEMPT = re.compile(r"(?P<prefix>.+)-[0-9a-f]{32}-[0-9]+", re.DOTALL)  # BATCH: operator and attempt


def _group(prefix: str) -> str:
    return f"{prefix}-tidegate-owner"


def _taken(prefix: str, owner: str) -> ConfigurationError:
    return ConfigurationError(
        f"KafkaSink: the transactional id prefix '{prefix}' is in use by another job, which is running (its driver: "
        f"{owner}). Two jobs with one prefix would abort each other's transactions: give each its own "
        "(set_transactional_id_prefix), or end the other one"
    )


def owners_of(client: TransactionClient, transactional_id: str, asked: dict[str, list[str]]) -> list[str]:
    """The drivers of running jobs that hold the prefix of this id; nobody holds one that a job has made itself, without
    `set_transactional_id_prefix`. `asked`: the answers so far, by prefix. Raises when the broker does not say."""
    found = _ID.fullmatch(transactional_id)
    if found is None:
        return []  # no id of a KafkaSink
    prefixes = [found["prefix"]]
    if of_an_attempt := _OF_AN_ATTEMPT.fullmatch(prefixes[0]):
        prefixes.append(of_an_attempt["prefix"])
    for prefix in prefixes:
        if prefix not in asked:
            asked[prefix] = client.members(_group(prefix))
    return [owner for prefix in prefixes for owner in asked[prefix]]


def check_held(prefix: str, owner: str | None, client: TransactionClient, seconds: float) -> None:
    """By a writer: raises when another job has the prefix. `owner` is that of its own job's lease, which is waited for:
    a driver whose membership ran out while the broker was away joins again by itself. None: no driver has taken one."""
    deadline = time.monotonic() + seconds
    while True:
        members = client.members(_group(prefix))
        others = [member for member in members if member != owner]
        if others:
            raise _taken(prefix, others[0])
        if owner is None or owner in members:
            return
        if time.monotonic() > deadline or client.pause(_POLL_SECONDS):
            raise BrokerUnavailableError(
                f"KafkaSink: the driver of this job does not hold the transactional id prefix '{prefix}' any more, and "
                f"did not take it again within {seconds:.0f} s. Does it run, and does it reach the broker?"
            )


def take_prefix(prefix: str, topic: str | None, properties: Mapping[str, str]) -> PrefixLease:
    """On the driver, before a job starts. A job that has just died holds its prefix for some seconds: that is waited
    for. Raises when another job has it."""
    owner = f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:12]}"
    deadline = time.monotonic() + _DEAD_SECONDS
    client = TransactionClient("KafkaSink", properties)
    try:
        while True:
            others = client.members(_group(prefix))
            if not others:
                lease = PrefixLease(prefix, owner, topic, properties)
                try:
                    others = _others_after_joining(prefix, owner, client, lease)
                except BaseException:
                    lease.close()
                    raise
                if not others:
                    return lease
                lease.close()
            if time.monotonic() > deadline:
                raise _taken(prefix, others[0])
            time.sleep(random.uniform(0.2, 1.0))
    finally:
        client.close()


def _others_after_joining(prefix: str, owner: str, client: TransactionClient, lease: PrefixLease) -> list[str]:
    deadline = time.monotonic() + _JOIN_SECONDS
    while owner not in (members := client.members(_group(prefix))):
        if time.monotonic() > deadline:
            raise KafkaError(
                f"KafkaSink: the group '{_group(prefix)}', which holds the transactional id prefix for this job, could "
                f"not be joined within {_JOIN_SECONDS:.0f} s"
            )
        lease.check_allowed()
        time.sleep(0.05)
    return [member for member in members if member != owner]


class PrefixLease:
    """A membership, from the construction to `close`. Made by `take_prefix`."""

    def __init__(self, prefix: str, owner: str, topic: str | None, properties: Mapping[str, str]) -> None:
        from confluent_kafka import Consumer, KafkaException

        self.owner = owner
        self._group = _group(prefix)
        self._servers = properties["bootstrap.servers"]
        self._refused = False  # by the broker, for want of a right to the group
        settings = {k: v for k, v in librdkafka_settings(properties).items() if k not in OF_PRODUCERS}
        settings |= {
            "group.id": _group(prefix),
            "client.id": owner,
            "session.timeout.ms": _SESSION_MS,
            "heartbeat.interval.ms": 1000,
            "enable.auto.commit": False,
            "allow.auto.create.topics": False,
        }
        try:
            self._member: Any = Consumer(settings)
            if topic is None:
                topic = next(iter(self._member.list_topics(timeout=_SECONDS).topics))
            self._member.subscribe([topic], on_assign=_take_nothing)
        except KafkaException as error:
            raise refused("KafkaSink", "taking the prefix", properties["bootstrap.servers"], error) from None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="tidegate-kafka-prefix", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _hold(self) -> None:
        """A member that does not poll is taken for dead after a while, and holds up the others who join."""
        from confluent_kafka import KafkaError as Code
        from confluent_kafka import KafkaException

        while not self._closed.is_set():
            with contextlib.suppress(KafkaException):
                told = self._member.poll(_POLL_SECONDS)
                error = None if told is None else told.error()
                self._refused = error is not None and error.code() == Code.GROUP_AUTHORIZATION_FAILED
        self._member.close()
        atexit.unregister(self.close)

    def check_allowed(self) -> None:
        """Raises when the broker has refused to let this user join."""
        if self._refused:
            raise group_refused(f"KafkaSink, bootstrap servers {self._servers}", self._group)

    def end(self) -> None:
        """Have the prefix given back, soon. A program that ends meanwhile waits for that, within bounds."""
        self._closed.set()

    def close(self) -> None:
        """Give the prefix back. May be called twice."""
        self.end()
        self._thread.join(_LEAVE_SECONDS)


def _take_nothing(member: Any, partitions: Any) -> None:
    member.unassign()
