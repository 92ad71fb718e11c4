"""Connections to a database that stops answering: how soon that is noticed, and what the log says meanwhile."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.database import Database, running_database
from tests.connectors.kafka_kit import WallClock, barrier
from tests.connectors.kills import Feeder, counted
from tests.connectors.on_processes import environment, start_job
from tests.connectors.test_postgres_sink import barrier_of, open_writer, to
from tests.spark.recovery_kit import assert_exact, completed, until, with_checkpoints
from tidegate.common.errors import ConfigurationError
from tidegate.connectors.postgres import connection as connection_module
from tidegate.connectors.postgres import replication as replication_module
from tidegate.connectors.postgres.connection import DatabaseUrl, PostgresError
from tidegate.connectors.postgres.jdbc import JdbcExecutionOptions, JdbcSink
from tidegate.connectors.postgres.replication import ReplicationStream, _connected
from tidegate.contracts.connectors import SourceContext
from tidegate.datastream.connectors.postgres import PostgresChangeSource, PostgresSink, PostgresSource
from tidegate.taskmanager.failure import may_pass


def options_of(descriptor: int) -> list[int]:
    """On, seconds without traffic, between probes, how many; and milliseconds without an acknowledgement."""
    with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as copy:
        tcp = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT]
        on = copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return [on, *(copy.getsockopt(socket.IPPROTO_TCP, option) for option in tcp)]


def test_a_network_that_drops_packets_is_noticed_unless_the_url_says_otherwise(database: Database) -> None:
    url = DatabaseUrl.checked("PostgresSink", database.url)
    with url.connect() as connection:
        assert options_of(connection.fileno()) == [1, 30, 10, 3, 60_000]
    replication = _connected(url)
    assert options_of(replication.socket) == [1, 30, 10, 3, 60_000]
    replication.finish()
    own = DatabaseUrl.checked("PostgresSink", f"{database.url}?keepalives_idle=7&tcp_user_timeout=1234")
    with own.connect() as connection:
        assert options_of(connection.fileno()) == [1, 7, 10, 3, 1234]
    none = DatabaseUrl.checked("PostgresSink", f"{database.url}?keepalives=0")
    with none.connect() as connection:
        assert options_of(connection.fileno())[0] == 0


@pytest.mark.parametrize("how", ["append", "upsert", "jdbc", "pages", "changes", "slot"])
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_connection_that_breaks_is_not_the_fault_of_the_program(
    name: str, how: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the connector was: the restart strategy alone decides."""
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY)")
        database.execute(f"INSERT INTO {name} VALUES (1)")
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        database.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}")
        ended: Callable[[], Any] = database.kill if end == "killed" else database.stop
        if how == "changes" and end == "stopped":  # which waits for this reader to confirm all
            ended = partial(database.execute, f"SELECT pg_terminate_backend(pid) {WALSENDERS}")
        monkeypatch.setattr(connection_module, "_WAIT_SECONDS", 0.1)
        fails = {"append": in_append, "upsert": in_upsert, "jdbc": in_jdbc, "pages": in_pages}
        fails |= {"changes": in_changes, "slot": in_slot}
        with pytest.raises(PostgresError) as told:
            fails[how](database, name, ended, monkeypatch)
        assert may_pass(told.value), told.value


WALSENDERS = "FROM pg_stat_activity WHERE backend_type = 'walsender'"


def in_append(database: Database, table: str, ended: Callable[[], Any], _: Any) -> None:
    writer = open_writer(to(database, table).set_outage_timeout(100).build())
    writer.write_batch([(2,)], None)
    ended()
    barrier(writer)


def in_upsert(database: Database, table: str, ended: Callable[[], Any], _: Any) -> None:
    writer = open_writer(to(database, table).upsert().set_outage_timeout(100).build())
    writer.write_batch([(2,)], None)
    ended()
    writer.committer.commit(barrier(writer))


def in_jdbc(database: Database, table: str, ended: Callable[[], Any], _: Any) -> None:
    url = DatabaseUrl.checked("JdbcSink", database.url).waiting(100)
    sink = JdbcSink(f"INSERT INTO {table} VALUES (?)", ["id"], url, JdbcExecutionOptions(max_retries=1))
    writer = open_writer(sink)
    writer.write_batch([(2,)], None)
    ended()
    writer.flush(False)


def in_pages(database: Database, table: str, ended: Callable[[], Any], _: Any) -> None:
    build = PostgresSource.builder().set_url(database.url).set_outage_timeout(100)
    source = build.set_table(table).set_key_column("id").build()
    (split,) = source.create_splits(1)
    ended()
    reader = source.create_reader(split, None, SourceContext("source", 0, 1, WallClock()))
    until(lambda: reader.poll(10), "a page", 30)


def in_changes(database: Database, table: str, ended: Callable[[], Any], _: Any) -> None:
    stream = ReplicationStream(DatabaseUrl.checked("PostgresChangeSource", database.url), table, table, 0)
    try:
        stream.take(10)
        ended()
        until(lambda: stream.take(10) and False, "its end", 30)
    finally:
        stream.close()


def in_slot(database: Database, table: str, ended: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(url: DatabaseUrl) -> Any:
        connection = _connected(url)
        ended()
        return connection

    monkeypatch.setattr(replication_module, "_connected", connected)
    ReplicationStream(DatabaseUrl.checked("PostgresChangeSource", database.url), table, table, 0)


def test_a_full_disk_in_a_copy_is_not_the_fault_of_the_program(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY)")
    database.execute(
        f"CREATE FUNCTION {name}_full() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RAISE EXCEPTION ''could not extend file'' USING ERRCODE = ''disk_full''; END'"
    )
    database.execute(f"CREATE TRIGGER full_disk BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_full()")
    writer = open_writer(to(database, name).build())
    with pytest.raises(PostgresError, match="disk is full; the job goes on") as told:
        barrier_of(writer, [(1,)])
    assert may_pass(told.value)
    writer.close()


def test_a_database_that_is_away_is_waited_for_as_long_as_the_job_says(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (id int8)")
        patient, not_patient = (to(database, name).set_outage_timeout(time).build() for time in (600_000, 300))
        database.kill()
        with caplog.at_level(logging.WARNING, logger=connection_module.__name__):
            with pytest.raises(PostgresError, match="Check host") as refused:
                open_writer(not_patient, checked=False)
            assert may_pass(refused.value)  # the restart strategy alone decides
            caplog.clear()
            opened: list[Any] = []
            opening = threading.Thread(target=lambda: opened.append(open_writer(patient, checked=False)))
            opening.start()
            until(lambda: "for at most 600 s (set_outage_timeout)" in caplog.text, "a message", 30)
            database.start()
            opening.join(60)
        assert "answers again" in caplog.messages[-1]
        opened[0].close()
    with pytest.raises(ConfigurationError, match="set_outage_timeout"):
        PostgresChangeSource.builder().set_outage_timeout("soon")
    source = PostgresSource.builder().set_url(database.url).set_table(name).set_key_column("id")
    assert source.set_outage_timeout(7000).build()._url.wait_seconds == 7
    changes = PostgresChangeSource.builder().set_url(database.url).set_table(name).set_slot(name)
    assert changes.set_outage_timeout(8000).build()._url.wait_seconds == 8


@pytest.mark.parametrize("upsert", [False, True])
def test_a_commit_that_waits_is_in_the_log_while_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, upsert: bool
) -> None:
    monkeypatch.setattr(connection_module, "_SLOW_SECONDS", 0.2)
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY)")
        build = to(database, name)
        writer = open_writer((build.upsert() if upsert else build).build())
        writer.write_batch([(1,)], None)
        lots: list[Any] = barrier(writer)
        committing = threading.Thread(target=writer.committer.commit, args=[lots])
        with caplog.at_level(logging.WARNING, logger=connection_module.__name__):
            database.freeze()
            try:
                committing.start()
                until(lambda: "it is waited for" in caplog.text, "a message", 30)
                assert committing.is_alive()
            finally:
                database.thaw()
            committing.join(60)
        assert [" took " in record.getMessage() for record in caplog.records] == [False, True]
        assert database.execute(f"SELECT * FROM {name}") == [(1,)]
        writer.close()
        writer.committer.close()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("on_processes")
def test_a_job_whose_database_is_frozen_fails_over_and_is_exact(broker: Broker, name: str, tmp_path: Path) -> None:
    """Its connections look well: it is the checkpoint's timeout that notices. What the dead workers had asked for is
    done when the database goes on."""
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (line text)")
        broker.create_topic(name, 2)
        feeder = Feeder(broker, name, 12_000, 3000, 2, held_back=2000).start()
        env = with_checkpoints(environment(2), tmp_path, interval_ms=200)
        env.get_checkpoint_config().set_checkpoint_timeout(3000)
        sink = PostgresSink.builder().set_url(database.url).set_table(name).build()
        counted(env, feeder).map(lambda line: (line,)).sink_to(sink).uid("out")
        client = start_job(env)
        until(lambda: len(completed(client)) > 2, "checkpoints")
        database.freeze()
        try:
            feeder.release()  # all others may have been written: there is something to write for certain
            until(client.failures, "the failure of the attempt")
        finally:
            database.thaw()
        client.get_job_execution_result().result(120)
        print([record.failure.summary for record in client.failures()])
        assert_exact(Counter(line for (line,) in database.execute(f"SELECT line FROM {name}")), feeder.records)
