"""The broker aborts a transaction at its timeout: what is said before, at the start of a job and while it runs."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import pytest

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import barrier, builder, open_writer, write
from tests.connectors.on_processes import environment
from tests.spark.recovery_kit import until
from tidegate.connectors.kafka.ages import TransactionAges
from tidegate.connectors.kafka.producers import CommittedTransactions
from tidegate.graph.driver_sides import starting_job
from tidegate.testing.in_process_job import graph_of


@pytest.fixture
def topic(broker: Broker, name: str) -> str:
    return broker.create_topic(name)


def test_an_open_transaction_that_comes_near_its_timeout_is_warned_about_while_it_is_open(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No checkpoint comes, and the task does nothing: a thread looks. One that waits for its commit counts too."""
    writer = open_writer(builder(broker, topic).set_property("transaction.timeout.ms", "6000").build())
    with caplog.at_level(logging.WARNING, logger="tidegate.connectors.kafka.ages"):
        write(writer, ["x"])
        lots = barrier(writer)
        until(lambda: len(caplog.records) == 2, "two warnings", 60)
    assert all("after 6 s (transaction.timeout.ms)" in record.getMessage() for record in caplog.records)
    assert lots[0].transactional_id in caplog.text
    writer.close()


def test_a_transaction_that_was_committed_in_time_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    committed, now = CommittedTransactions(), [0.0]
    ages = TransactionAges(3_600_000, SimpleNamespace(now_ms=lambda: now[0]), committed)
    with caplog.at_level(logging.WARNING, logger="tidegate.connectors.kafka.ages"):
        ages.opened("a", 0.0)
        ages.opened("b", 1_000_000.0)
        now[0] = 1_199_000.0
        ages.look()
        committed.add("a")  # of which the writer, which has nothing to do, has not heard
        now[0] = 2_000_000.0
        ages.look()
        ages.ended("b")
        now[0] = 9_000_000.0
        ages.look()
        assert not caplog.records
        ages.opened("a", 7_500_000.0)  # again
        committed.take({"a"})
        for _ in range(2):
            ages.look()
        now[0] = 10_000_000.0
        for _ in range(2):
            ages.look()
    assert ["is open for" in record.getMessage() for record in caplog.records] == [True, True]
    ages.close()


@pytest.mark.parametrize(
    ("interval", "pause", "text"),
    [
        (1000, 0, None),
        (5000, 0, "5 s apart.*after 15 s.*little is left"),
        (1000, 6000, "6 s apart"),
        (15_000, 0, "no checkpoint but one by hand"),
        (0, 0, "no checkpoints.*enable_checkpointing"),
    ],
)
def test_checkpoints_that_are_far_apart_for_the_timeout_are_warned_about_at_the_start(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture, interval: int, pause: int, text: str | None
) -> None:
    env = environment(1)
    if interval:
        env.enable_checkpointing(interval)
        env.get_checkpoint_config().set_min_pause_between_checkpoints(pause)
    sink = builder(broker, topic).set_property("transaction.timeout.ms", "15000").build()
    env.from_collection(["a"]).sink_to(sink)
    with (
        caplog.at_level(logging.WARNING, logger="tidegate.connectors.kafka.ages"),
        starting_job(graph_of(env)) as starting,
    ):
        starting.check_checkpoints(env._configuration)
    assert [bool(re.search(text or "", record.getMessage())) for record in caplog.records] == [True] * bool(text)
