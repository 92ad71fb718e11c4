"""Whole micro-batch jobs into Kafka and PostgreSQL, on a stand-in for Spark's query: killed at any step, by exceptions
in the middle of a batch, and with drivers that die before and after a commit, what is committed is exact."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.database import Database
from tests.connectors.kafka_kit import builder
from tests.unit.micro_batch.query_stand_in import KilledError
from tests.unit.micro_batch.test_ending import NOWHERE, cancel_when_it_runs
from tests.unit.micro_batch.test_jobs import EXPECTED, RECORDS, Count, World, job_watermarks, world
from tidegate.common import JobStatus, Types
from tidegate.connectors.kafka.transactions import TransactionClient
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.connectors.postgres import PostgresSink
from tidegate.spark.micro_batch import job as job_module

__all__ = ["world"]

pytestmark = pytest.mark.timeout(240)
PER_BATCH = 50


class Falters(Count):
    """Raises at some records, each time once: the sink behind it has an open transaction then."""

    def __init__(self, folder: Path, at: tuple[int, ...]) -> None:
        self.folder, self.at = folder, at

    def process_element(self, value: Any, ctx: Any) -> Any:
        marker = self.folder / str(value)
        if value in self.at and not marker.exists():
            marker.touch()
            raise RuntimeError(f"falters at {value}")
        yield from super().process_element(value, ctx)


def start(world: World, sink: Any, to_row: Callable[[str], Any] | None = None, falters: tuple[int, ...] = ()) -> Any:
    """The client of the job, which comes to its end when `falters` is given."""
    folder = world.folder / "markers"
    os.makedirs(folder, exist_ok=True)
    env = world.environment(tidegate_micro__batch_max__records=PER_BATCH, **world.more)
    source = DataGeneratorSource(lambda i: i, count=RECORDS if falters else None)
    numbers = env.from_source(source, job_watermarks(), "Numbers").uid("numbers")
    counted = numbers.key_by(lambda n: n % 10).process(Falters(folder, falters), Types.STRING()).uid("count")
    lines = counted if to_row is None else counted.map(to_row).uid("rows")
    lines.sink_to(sink).uid("sink")
    return env.execute_async("counting")


def under_kills(world: World, monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any], seed: int) -> int:
    """Runs the job until it has come to its end: its query is killed at any step, and so are its drivers, before a
    commit and after it; the second failure ends each. How many drivers there were."""
    draw, commit_all = random.Random(seed), job_module.commit_all

    def dying(*args: Any) -> Any:
        if draw.random() < 0.15:
            raise OSError("the driver dies before the commit")
        done = commit_all(*args)
        if draw.random() < 0.15:
            raise OSError("the driver dies after the commit")
        return done

    def hook(step: str, batch: int) -> None:
        if draw.random() < 0.1:
            raise KilledError(f"a Python worker process exited unexpectedly at {step} of batch {batch}")

    world.hook = hook
    for driver in range(1, 100):
        monkeypatch.setattr(job_module, "commit_all", dying)
        world.more = {"restart-strategy.fixed-delay.attempts": 1}
        if run().get_job_execution_result().exception(120) is None:
            return driver
    raise AssertionError("it never came to its end")


def test_into_kafka_under_kills(world: World, broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.create_topic(name, 2)

    def run() -> Any:
        sink = builder(broker, topic).set_transactional_id_prefix(f"{name}-p").build()
        return start(world, sink, falters=(33, 120))

    assert under_kills(world, monkeypatch, run, seed=3) > 1
    assert sorted(broker.values(topic)) == EXPECTED
    assert open_in(broker, name) == []


def test_into_postgres_under_kills(
    world: World, database: Database, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(f"CREATE TABLE {name} (line text)")
    before = prepared_in(database)
    sink = PostgresSink.builder().set_url(database.url).set_table(name).build()
    drivers = under_kills(world, monkeypatch, lambda: start(world, sink, lambda line: (line,), (33, 120)), seed=3)
    assert drivers > 1
    assert sorted(line for (line,) in database.execute(f"SELECT line FROM {name}")) == EXPECTED
    assert prepared_in(database) <= before


# ---------------------------------------------------------------- what a cancelled job leaves

LOCATIONS = pytest.mark.parametrize("settings", [NOWHERE, {}], ids=["temporary", "lasting"])


@LOCATIONS
@pytest.mark.parametrize("given", [True, False], ids=["prefix", "no prefix"])
def test_a_cancelled_job_leaves_no_transaction_in_kafka(
    world: World, broker: Broker, name: str, settings: dict[str, Any], given: bool
) -> None:
    """Readers of committed records would wait behind it."""
    topic = broker.create_topic(name)
    build = builder(broker, topic)
    sink = (build.set_transactional_id_prefix(f"{name}-p") if given else build).build()
    before = set(open_in(broker, ""))
    world.master, world.more = "local[2]", settings
    client = cancel_when_it_runs(world, "report", 1, lambda: start(world, sink))
    assert client.view().status is JobStatus.CANCELED
    assert set(open_in(broker, "")) <= before
    assert len(broker.values(topic)) == PER_BATCH


@LOCATIONS
def test_a_cancelled_job_leaves_nothing_prepared_in_postgres(
    world: World, database: Database, name: str, settings: dict[str, Any]
) -> None:
    """It would hold locks."""
    database.execute(f"CREATE TABLE {name} (line text)")
    sink = PostgresSink.builder().set_url(database.url).set_table(name).build()
    before = prepared_in(database)
    world.master, world.more = "local[2]", settings
    cancel_when_it_runs(world, "report", 1, lambda: start(world, sink, lambda line: (line,)))
    assert prepared_in(database) <= before
    assert database.execute(f"SELECT count(*) FROM {name}") == [(PER_BATCH,)]


def open_in(broker: Broker, prefix: str) -> list[str]:
    client = TransactionClient("test", {"bootstrap.servers": broker.bootstrap_servers})
    try:
        return [found.transactional_id for found in client.open_transactions(prefix)]
    finally:
        client.close()


def prepared_in(database: Database) -> set[str]:
    return {name for (name,) in database.execute("SELECT gid FROM pg_prepared_xacts")}
