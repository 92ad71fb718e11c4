"""Records that a table cannot take, in whole jobs: how such a job ends, and what is in the table after the mend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.database import Database
from tests.connectors.kills import Feeder, counted, feed
from tests.connectors.on_processes import environment, run_job, start_job
from tests.spark.recovery_kit import assert_exact, completed, latest_checkpoint, until, with_checkpoints
from tidegate.common.errors import JobGraphError
from tidegate.datastream.connectors.postgres import PostgresSink

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("on_processes")]

POISON = "k7 30"


def poisoned(row: tuple[Any, ...]) -> Callable[[str], tuple[Any, ...]]:
    return lambda line: row if line == POISON else (line, 1)


@pytest.mark.parametrize(
    ("how", "row", "message"),
    [
        ("append", ("x", "one"), r"the row \('x', 'one'\) does not fit the columns' types"),
        ("append", ("x", 2**40), "small is out of range of integer"),
        ("upsert", (None, 1), "a record has no value for the key column 'line'"),
        ("upsert", ("x", "one"), r"the row \('x', 'one'\) does not fit the columns' types"),
        ("upsert", ("x", None), "small is NOT NULL"),
    ],
)
def test_a_record_that_the_table_cannot_take_ends_the_job_and_nothing_is_lost(
    broker: Broker, database: Database, name: str, tmp_path: Path, how: str, row: tuple[Any, ...], message: str
) -> None:
    """The mended program goes on from the last checkpoint, which does not hold the record."""
    topic = broker.create_topic(name, 2)
    key = "PRIMARY KEY (line)" if how == "upsert" else "n int8 GENERATED ALWAYS AS IDENTITY"
    database.execute(f"CREATE TABLE {name} (line text, small int4 NOT NULL, {key})")
    feeder = Feeder(broker, topic, 3000, 1, 2)  # which is not started: it only makes the source

    def job(folder: str, to_row: Callable[[str], tuple[Any, ...]], snapshot: str = "") -> Any:
        kept = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
        env = environment(2, kept | ({"execution.state-recovery.path": snapshot} if snapshot else {}))
        with_checkpoints(env, tmp_path / folder, interval_ms=200, restarts=1)
        build = PostgresSink.builder().set_url(database.url).set_table(name).set_columns("line", "small")
        sink = (build.upsert() if how == "upsert" else build.set_transaction_prefix(name)).build()
        counted(env, feeder).map(to_row).sink_to(sink).uid("out")
        return env

    places = [(topic, 0), (topic, 1)]
    feed(broker, places, range(1000))
    client = start_job(job("first", poisoned(row)))
    until(lambda: _rows(database, name) == 1000, "the first rows", 60)
    seen = len(completed(client))
    until(lambda: len(completed(client)) > seen, "a checkpoint after them", 60)
    feed(broker, places, range(1000, 3000))
    with pytest.raises(Exception, match=message):
        client.get_job_execution_result().result(60)
    assert _rows(database, name) < 3000
    run_job(job("mended", lambda line: (line, 1), str(latest_checkpoint(tmp_path / "first"))))
    assert_exact(Counter(line for (line,) in database.execute(f"SELECT line FROM {name}")), 3000)
    assert not database.execute("SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, %s)", name)


def _rows(database: Database, table: str) -> int:
    return int(database.execute(f"SELECT count(*) FROM {table}")[0][0])


def test_two_sinks_of_a_job_with_one_prefix_are_refused_before_the_start(database: Database, name: str) -> None:
    """Each would roll back what the other has prepared."""
    database.execute(f"CREATE TABLE {name} (line text)")
    database.execute(f"CREATE TABLE {name}_more (line text)")

    def job(prefixes: tuple[str, str]) -> Any:
        env = environment(1)
        stream = env.from_collection([("a",)])
        for table, prefix in zip((name, f"{name}_more"), prefixes, strict=True):
            build = PostgresSink.builder().set_url(database.url).set_table(table).set_transaction_prefix(prefix)
            stream.sink_to(build.build())
        return env

    with pytest.raises(JobGraphError, match=rf"transaction prefix '{name}' \(PostgresSink\)"):
        start_job(job((name, name)))
    assert not _rows(database, name)
    run_job(job((name, f"{name}:more")))
    assert _rows(database, name) == _rows(database, f"{name}_more") == 1
