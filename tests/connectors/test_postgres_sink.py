"""PostgresSink and JdbcSink against a real database: what is visible when, commits by others, what is refused."""

from __future__ import annotations

import dataclasses
import datetime
import pickle
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from tests.connectors.database import Database, running_database
from tests.connectors.kafka_kit import WallClock, barrier
from tests.spark.recovery_kit import until
from tidegate.common import Row, Types
from tidegate.common.errors import ConfigurationError
from tidegate.common.types import RowKind
from tidegate.connectors.postgres import append
from tidegate.connectors.postgres import prefix as prefix_module
from tidegate.connectors.postgres.connection import PostgresError
from tidegate.connectors.postgres.sink import PostgresSink, PostgresSinkBuilder
from tidegate.connectors.postgres.source import PostgresSource
from tidegate.contracts.connectors import SinkContext
from tidegate.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from tidegate.taskmanager.failure import may_pass


@pytest.fixture
def table(database: Database, name: str) -> Iterator[str]:
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, text text, amount numeric(10, 2))")
    yield name
    for (prepared,) in database.execute("SELECT gid FROM pg_prepared_xacts"):  # others would wait for their end
        database.execute("ROLLBACK PREPARED '" + prepared.replace("'", "''") + "'")


def to(database: Any, table: str) -> PostgresSinkBuilder:
    return PostgresSink.builder().set_url(database.url).set_table(table)


def open_writer(
    sink: Any,
    subtask: int = 0,
    parallelism: int = 1,
    restored: Sequence[Any] = (),
    of_all: Sequence[Any] | None = None,
    job_id: str = "job",
    checked: bool = True,
    memo: Any = None,
) -> Any:
    """`checked` is False for one of a job that runs. `memo`: of the writer in the micro-batch before."""
    if checked:
        sink.check_start(1)
    shipped = pickle.loads(pickle.dumps(sink))
    context = SinkContext(
        job_id,
        "sink",
        subtask,
        parallelism,
        0,
        WallClock(),
        operator_id=f"op-{getattr(sink, '_table', 'jdbc')}",
        restored_committables=restored,
        committables_of_all=[sink.shown_to_all(c) for c in (restored if of_all is None else of_all)],
    )
    context.memo = memo
    writer = shipped.create_writer(context)
    writer.committer = shipped.create_committer()
    return writer


def barrier_of(writer: Any, values: list[Any]) -> list[Any]:
    writer.write_batch(values, None)
    return barrier(writer)


def rows(*numbers: int) -> list[tuple[Any, ...]]:
    return [(n, f"row {n}", Decimal(n) / 4) for n in numbers]


def ids(database: Database, table: str) -> list[int]:
    return [n for (n,) in database.execute(f"SELECT id FROM {table} ORDER BY id")]


# ---------------------------------------------------------------- append


def test_rows_are_seen_after_the_commit_and_a_commit_may_be_repeated(database: Database, table: str) -> None:
    writer = open_writer(to(database, table).build())
    writer.write_batch(rows(1, 2), None)
    writer.write_batch([Row(id=3, text=None, amount=None), {"id": 4, "text": "x", "amount": Decimal("1.25")}], None)
    first = barrier(writer)
    writer.write_batch(rows(5), None)
    assert ids(database, table) == []
    for _ in range(2):
        assert writer.committer.commit(first) == []
        assert ids(database, table) == [1, 2, 3, 4]
    second = barrier(writer)
    assert barrier(writer) == []
    writer.close()
    assert open_writer(to(database, table).build(), restored=second).committer.commit([*first, *second]) == []
    assert (
        database.psql(f"SELECT id, text, amount FROM {table} WHERE id IN (4, 5) ORDER BY id")
        == "4|x|1.25\n5|row 5|1.25\n"
    )


@pytest.mark.parametrize("given", [None, "200ms"], ids=["ours", "of the url"])
def test_a_unique_key_that_repeats_between_barriers_is_an_error_and_no_hang(
    database: Database, table: str, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """The prepared transaction that has the key cannot be committed before the checkpoint that the COPY holds up."""
    monkeypatch.setattr(append, "_LOCK_SECONDS", 0.2 if given is None else 600.0)
    url = database.url + (f"?options=-c%20lock_timeout%3D{given}" if given else "")
    writer = open_writer(PostgresSink.builder().set_url(url).set_table(table).build())
    first = barrier_of(writer, rows(1, 2))
    with pytest.raises(PostgresError, match=rf'writing to "{table}": .*lock timeout.*"{table}_pkey".*upsert\(\)'):
        barrier_of(writer, rows(3, 2))
    assert writer.committer.commit(first) == []
    again = open_writer(to(database, table).build())
    with pytest.raises(PostgresError, match=rf'"{table}_pkey".*upsert\(\)'):
        barrier_of(again, rows(3, 2))
    assert ids(database, table) == [1, 2]


def test_another_process_commits_what_a_killed_one_prepared_also_after_the_database_was_killed(name: str) -> None:
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (id int8)")
        program = f"""
            import os, pickle, sys
            from tests.connectors.test_postgres_sink import *
            database = type("Database", (), {{"url": "{database.url}"}})()
            writer = open_writer(to(database, "{name}").build())
            writer.write_batch([(n,) for n in range(100)], None)
            sys.stdout.buffer.write(pickle.dumps(barrier(writer)))
            sys.stdout.flush()
            writer.write_batch([(n,) for n in range(100, 200)], None)
            barrier(writer)
            os.kill(os.getpid(), 9)
        """
        ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, timeout=60)
        assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
        committables = pickle.loads(ran.stdout)
        database.kill()
        database.start()
        assert len(database.execute("SELECT gid FROM pg_prepared_xacts")) == 2
        writer = open_writer(to(database, name).build(), restored=committables)
        assert len(database.execute("SELECT gid FROM pg_prepared_xacts")) == 1  # the other one was in no checkpoint
        assert writer.committer.commit(committables) == []
        assert ids(database, name) == list(range(100))
        writer.close()


def test_what_no_checkpoint_holds_is_rolled_back_also_after_scaling_down(database: Database, table: str) -> None:
    sink = to(database, table).set_transaction_prefix(table).build()
    writers = [open_writer(sink, subtask, 3, checked=not subtask) for subtask in range(3)]
    kept = []
    for n, writer in enumerate(writers):
        writer.write_batch(rows(n), None)
        kept += barrier(writer)
        writer.write_batch(rows(n + 10), None)
        barrier(writer)
        writer.close()
    after = [open_writer(sink, s, 2, restored=kept[s : s + 1], of_all=kept, checked=False) for s in range(2)]
    assert len(database.execute("SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, %s)", f"{table}:")) == 3
    assert after[0].committer.commit(kept) == []
    assert ids(database, table) == [0, 1, 2]
    for writer in after:
        writer.close()


def test_what_another_prefix_has_prepared_is_left_alone(database: Database, table: str) -> None:
    """Also one that begins with this one, by a writer and at the end of a job in BATCH mode."""
    prefix = f"{table}'"  # quotes are part of it
    others = [f"{prefix}:0", f"{prefix}:b", f"{prefix}-0", f"{prefix}.*"]
    for number, other in enumerate(others):
        writer = open_writer(to(database, table).set_transaction_prefix(other).build(), job_id=other)
        barrier_of(writer, rows(number))
        writer.close()
    sink = to(database, table).set_transaction_prefix(prefix).build()
    for _ in range(2):  # the second finds what the first has left
        writer = open_writer(sink)
        barrier_of(writer, rows(10))
        writer.close()

    def prepared() -> int:
        return len(database.execute("SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, %s)", table))

    assert prepared() == len(others) + 1
    sink.discard_leftovers("job")
    assert prepared() == len(others)


def test_two_jobs_with_one_prefix(database: Database, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is refused, before it starts and, when that was too early to tell, by its writers; an attempt of
    the same job is not, while a worker of the last one still holds on."""
    monkeypatch.setattr(prefix_module, "_DYING_SECONDS", 0.5)
    sink = to(database, table).set_transaction_prefix(table).build()
    first = open_writer(sink, 0, 2)
    prepared = barrier_of(first, rows(1))
    with pytest.raises(ConfigurationError, match=f"prefix '{table}' is in use by another job.*set_transaction_prefix"):
        sink.check_start(1)
    for subtask in range(2):
        with pytest.raises(ConfigurationError, match="is in use by another job"):
            open_writer(sink, subtask, 2, job_id="other", checked=False)
    again = open_writer(sink, 0, 1, restored=prepared, checked=False)
    assert again.committer.commit(prepared) == []
    assert ids(database, table) == [1]
    first.close()
    again.close()
    monkeypatch.setattr(prefix_module, "_DYING_SECONDS", 20.0)
    open_writer(sink, job_id="other").close()


def test_a_writer_takes_records_again_when_its_transactions_are_committed(database: Database, table: str) -> None:
    writer = open_writer(to(database, table).build())
    waiting: list[Any] = []
    while writer.available:
        waiting += barrier_of(writer, rows(len(waiting)))
    assert len(waiting) == 8
    assert writer.committer.commit(waiting[:1]) == []
    assert writer.available
    assert writer.committer.commit(waiting[1:]) == []
    assert writer.available
    assert not writer._open.names, "what is committed is forgotten"
    writer.close()


def test_a_prepared_transaction_that_somebody_rolled_back_is_an_error(database: Database, table: str) -> None:
    writer = open_writer(to(database, table).build())
    writer.write_batch(rows(1), None)
    (prepared,) = barrier(writer)
    database.execute(f"ROLLBACK PREPARED '{prepared.name}'")
    with pytest.raises(PostgresError, match="rolled back by somebody"):
        writer.committer.commit([prepared])
    writer.close()


def test_a_prepared_transaction_that_the_database_has_never_had_is_an_error(database: Database, table: str) -> None:
    """After it was set back to an older backup."""
    writer = open_writer(to(database, table).build())
    (prepared,) = barrier_of(writer, rows(1))
    with pytest.raises(append.PreparedTransactionLostError, match="set back to an older backup"):
        writer.committer.commit([dataclasses.replace(prepared, name="gone", number=prepared.number + 10**9)])
    writer.committer.commit([prepared])
    writer.close()


@pytest.mark.parametrize("end", ["committed", "rolled back"])
def test_a_prepared_transaction_whose_end_the_database_has_forgotten(
    name: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that is as it wrote it tells that it was committed. Without one nobody can tell."""
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY)")
        writer = open_writer(to(database, name).build())
        prepared = barrier_of(writer, [(1,), (2,)])
        writer.close()
        database.execute(f"{'COMMIT' if end == 'committed' else 'ROLLBACK'} PREPARED '{prepared[0].name}'")
        forget_transactions(database)
        number = str(prepared[0].number)
        assert database.execute("SELECT pg_xact_status(%s::xid8)", number) == [(None,)]
        again = open_writer(to(database, name).build(), restored=prepared)
        if end == "committed":
            assert again.committer.commit(prepared) == []
            database.execute(f"UPDATE {name} SET id = id + 10")
        with pytest.raises(
            append.PreparedTransactionLostError, match=r"nobody can tell.*accept_forgotten_transactions"
        ):
            again.committer.commit(prepared)
        again.close()
        accepting = open_writer(to(database, name).accept_forgotten_transactions().build(), restored=prepared)
        caplog.clear()
        assert accepting.committer.commit(prepared) == []
        assert "is taken for committed, as accept_forgotten_transactions allows" in caplog.text
        accepting.close()


def forget_transactions(database: Database) -> None:
    """As it does by itself, when very many have passed."""
    import psycopg

    database.execute("ALTER DATABASE template0 ALLOW_CONNECTIONS true")
    for (other,) in database.execute("SELECT datname FROM pg_database"):
        with psycopg.connect(database.url.rpartition("/")[0] + f"/{other}", autocommit=True) as connection:
            connection.execute("VACUUM (FREEZE)")
    # Files of a million ends are removed as a whole; a server that starts looks at the oldest number that is in use.
    database.execute("CHECKPOINT")
    database.stop()
    database.start()


def test_without_prepared_transactions_the_job_is_refused(name: str) -> None:
    with running_database({"max_prepared_transactions": 0}) as database:
        database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY)")
        with pytest.raises(ConfigurationError, match="max_prepared_transactions of the database is 0"):
            to(database, name).build().check_start(1)
        to(database, name).upsert().build().check_start(1)


def test_types_of_columns(database: Database, name: str) -> None:
    database.execute(
        f"CREATE TABLE {name} (a int2, b int4, c float4, d float8, e bool, f bytea, g date, h timestamptz, "
        "i varchar(5), j int4[], k text)"
    )
    moment = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
    row = (1, 2, 0.5, 0.25, True, b"x", moment.date(), moment, "abc", [1, 2], None)
    writer = open_writer(to(database, name).build())
    writer.write_batch([row], None)
    assert writer.committer.commit(barrier(writer)) == []
    assert database.execute(f"SELECT * FROM {name}") == [row]
    with pytest.raises(PostgresError, match="does not fit the columns' types"):
        writer.write_batch([("text", *row[1:])], None)
    writer.close()


@pytest.mark.parametrize("upsert", [False, True], ids=["append", "upsert"])
def test_a_worker_of_a_leader_that_was_replaced_commits_late(database: Database, table: str, upsert: bool) -> None:
    """High availability: what it was told to commit is in the record, so its successor has committed it as well."""
    sink = (to(database, table).upsert() if upsert else to(database, table)).build()
    old = open_writer(sink)
    recorded = barrier_of(old, rows(1))
    never_recorded = barrier_of(old, rows(2))
    new = open_writer(sink, restored=recorded)
    assert new.committer.commit(recorded) == []
    changed = [(1, "changed", None)] if upsert else rows(3)
    assert new.committer.commit(barrier_of(new, changed)) == []
    assert old.committer.commit(recorded) == []
    expected = "1|changed\n" if upsert else "1|row 1\n3|row 3\n"
    assert database.psql(f"SELECT id, text FROM {table} ORDER BY id") == expected
    assert never_recorded, "nobody is ever told to commit it"
    for writer in (old, new):
        writer.close()


# ---------------------------------------------------------------- upsert


def test_the_last_row_of_a_key_wins_and_a_commit_may_be_repeated(database: Database, table: str) -> None:
    writer = open_writer(to(database, table).upsert().build())
    writer.write_batch([(1, "a", None), (2, "b", None), (1, "c", None)], None)
    first = barrier(writer)
    writer.write_batch([(2, "d", None), Row.of_kind(RowKind.DELETE, id=1, text=None, amount=None)], None)
    second = barrier(writer)
    assert database.execute(f"SELECT id FROM {table}") == []
    assert writer.committer.commit(first) == []
    assert database.psql(f"SELECT id, text FROM {table} ORDER BY id") == "1|c\n2|b\n"
    assert writer.committer.commit(second) == []
    for _ in range(2):  # as after a crash: what was applied is not applied again over what came later
        assert writer.committer.commit([*first, *second]) == []
        assert database.psql(f"SELECT id, text FROM {table} ORDER BY id") == "2|d\n"


def test_all_micro_batches_of_an_attempt_have_one_row_in_the_ledger(database: Database, table: str) -> None:
    sink = to(database, table).upsert().build()
    memo = None
    for batch in range(5):
        writer = open_writer(sink, memo=memo)
        lost = open_writer(sink, memo=memo)  # another try of the same task, which does not count
        lots = barrier_of(writer, rows(batch, batch + 1) if batch != 2 else [])
        barrier_of(lost, rows(99))
        memo = pickle.loads(pickle.dumps(writer.memo()))
        for _ in range(2):  # the driver does not know that it has done so
            assert writer.committer.commit(lots) == []
        for one in (writer, lost):
            one.close()
    assert ids(database, table) == [0, 1, 2, 3, 4, 5]
    restarted = open_writer(sink)
    assert restarted.committer.commit(barrier_of(restarted, rows(7))) == []
    ledger = database.execute(f"SELECT lot FROM tidegate_ledger WHERE sink LIKE '%op-{table}' ORDER BY lot")
    assert ledger == [(1,), (4,)]


def test_lots_that_a_rescaling_has_dealt_out_are_applied_in_their_order(database: Database, table: str) -> None:
    sink = to(database, table).upsert().build()
    writer = open_writer(sink)
    lots = [lot for text in ("old", "new") for lot in barrier_of(writer, [(1, text, None)])]
    first, second = (open_writer(sink, n, 2, restored=[lots[n]], of_all=lots) for n in range(2))
    with pytest.raises(PostgresError, match=r"lot 2 of writer .* waits for lot 1") as waits:
        second.committer.commit(lots[1:])
    assert may_pass(waits.value), "the other subtask is late, for whatever reason"
    assert first.committer.commit(lots[:1]) == []
    assert second.committer.commit(lots[1:]) == []
    assert database.psql(f"SELECT text FROM {table}") == "new\n"


def test_what_waited_is_applied_before_what_the_next_owner_of_its_key_writes(database: Database, table: str) -> None:
    """After a rescaling: the lot of the old owner waits in one subtask, and is slow, while the key is now
    another's. And again after the next one, before either was applied."""
    sink = to(database, table).upsert().build()
    (old,) = barrier_of(open_writer(sink), [(1, "old", None), (2, "kept", None)])
    slow = open_writer(sink, 0, 2, restored=[old], of_all=[old])
    owner = open_writer(sink, 1, 2, restored=[], of_all=[old])
    (newer,) = barrier_of(owner, [(1, "newer", None)])
    with pytest.raises(PostgresError, match="waits for lot 1"):
        owner.committer.commit([newer])
    third = open_writer(sink, 2, 3, restored=[newer], of_all=[old, newer])
    (newest,) = barrier_of(third, [(1, "newest", None)])
    with pytest.raises(PostgresError, match="waits for lot 1"):
        third.committer.commit([newer, newest])
    assert slow.committer.commit([old]) == []
    for _ in range(2):
        assert third.committer.commit([newer, newest]) == []
        assert owner.committer.commit([newer]) == []
        assert database.psql(f"SELECT id, text FROM {table} ORDER BY id") == "1|newest\n2|kept\n"


def test_a_quiet_writer_goes_on_after_its_row_of_the_ledger_was_deleted(database: Database, table: str) -> None:
    sink = to(database, table).upsert().build()
    writer = open_writer(sink)
    savepoint = barrier_of(writer, [(1, "a", None)])
    assert writer.committer.commit(savepoint) == []
    database.execute("UPDATE tidegate_ledger SET applied_at = now() - interval '31 days'")
    sink.check_start(1)  # of another job, which deletes what is old
    (late,) = barrier_of(writer, [(1, "b", None)])
    month = 31 * 86_400_000
    assert writer.committer.commit([dataclasses.replace(late, after_ms=late.after_ms - month)]) == []
    assert database.psql(f"SELECT text FROM {table}") == "b\n"
    again = open_writer(sink, restored=savepoint)  # from an old savepoint
    assert again.committer.commit(savepoint) == []


@pytest.mark.parametrize("emptied", [False, True], ids=["set back", "emptied"])
def test_a_database_that_was_set_back_is_told_so(database: Database, table: str, emptied: bool) -> None:
    """What was applied since its backup is gone, and no checkpoint holds it."""
    writer = open_writer(to(database, table).upsert().build())
    for n in range(3):
        assert writer.committer.commit(barrier_of(writer, [(n, "x", None)])) == []
    (next_one,) = barrier_of(writer, [(3, "x", None)])
    where = f"WHERE writer = '{next_one.writer}'"
    database.execute(
        f"DELETE FROM tidegate_ledger {where}" if emptied else f"UPDATE tidegate_ledger SET lot = 2 {where}"
    )
    with pytest.raises(
        PostgresError, match=f"knows of {'none' if emptied else 2} only.*restored from a backup"
    ) as told:
        writer.committer.commit([next_one])
    assert ids(database, table) == [0, 1, 2]
    database.execute(str(told.value).split("nothing is missing: ")[1])
    assert writer.committer.commit([next_one]) == []
    assert ids(database, table) == [0, 1, 2, 3]


def test_a_job_that_starts_again_from_an_older_savepoint_applies_its_new_lots(database: Database, table: str) -> None:
    sink = to(database, table).upsert().build()
    first = open_writer(sink)
    first.write_batch([(1, "a", None)], None)
    savepoint = barrier(first)
    assert first.committer.commit(savepoint) == []
    first.write_batch([(1, "later", None)], None)
    assert first.committer.commit(barrier(first)) == []
    again = open_writer(sink, restored=savepoint)
    assert again.committer.commit(savepoint) == []
    again.write_batch([(1, "again", None)], None)
    assert again.committer.commit(barrier(again)) == []
    assert database.psql(f"SELECT text FROM {table}") == "again\n"


def test_changes_and_keys(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (a int4, b text, c text, UNIQUE (a, b))")
    writer = open_writer(to(database, name).upsert("a", "b").build())
    before = Row.of_kind(RowKind.UPDATE_BEFORE, a=1, b="x", c="old")
    after = Row.of_kind(RowKind.UPDATE_AFTER, a=1, b="x", c="new")
    writer.write_batch([Row(a=1, b="x", c="old"), before, after, Row(a=1, b="y", c="other")], None)
    assert writer.committer.commit(barrier(writer)) == []
    assert database.psql(f"SELECT * FROM {name} ORDER BY b") == "1|x|new\n1|y|other\n"
    with pytest.raises(PostgresError, match="no value for the key column 'b'"):
        writer.write_batch([Row(a=1, b=None, c="z")], None)


# ---------------------------------------------------------------- bad input


def test_what_is_refused_before_the_start(database: Database, table: str, name: str) -> None:
    with pytest.raises(PostgresError, match="looking at table nothing_here"):
        to(database, "nothing_here").build().check_start(1)
    with pytest.raises(ConfigurationError, match=f"table {table} has no column 'size'.*id, text, amount"):
        to(database, table).set_columns("id", "size").build().check_start(1)
    database.execute(f"CREATE TABLE {name}_plain (id int8)")
    with pytest.raises(ConfigurationError, match="no primary key to upsert by"):
        to(database, f"{name}_plain").upsert().build().check_start(1)
    with pytest.raises(ConfigurationError, match="key column 'id' is not among text"):
        to(database, table).set_columns("text").upsert().build().check_start(1)
    away = type("Away", (), {"url": "postgresql://me:hunter2@127.0.0.1:1/db"})()
    with pytest.raises(PostgresError, match=r"127\.0\.0\.1:1/db: connecting") as caught:
        to(away, table).build().check_start(1)
    assert "hunter2" not in str(caught.value) + repr(to(away, table).build())
    database.execute(f"CREATE ROLE {name}_guest LOGIN")
    guest = type("Guest", (), {"url": database.url.replace("postgres@", f"{name}_guest@")})()
    with pytest.raises(PostgresError, match=f"{name}_guest lacks the right INSERT on table .*{table}"):
        to(guest, table).build().check_start(1)
    database.execute(f"GRANT INSERT, SELECT ON {table} TO {name}_guest")
    with pytest.raises(PostgresError, match="lacks the right UPDATE"):
        to(guest, table).upsert().build().check_start(1)
    writer = open_writer(to(guest, table).build())
    database.execute(f"REVOKE INSERT ON {table} FROM {name}_guest")
    with pytest.raises(PostgresError, match="lacks the right: GRANT it"):
        barrier_of(writer, rows(1))


@pytest.fixture
def guest(database: Database, name: str) -> Iterator[Any]:
    """A user without rights but to look into a schema of its own, which is all of its search_path and has a table
    `items`."""
    user, schema = f"{name}_guest", f"{name}_room"
    database.execute(f"CREATE ROLE {user} LOGIN")
    database.execute(f"CREATE SCHEMA {schema}")
    database.execute(f"ALTER ROLE {user} SET search_path = {schema}")
    database.execute(f"GRANT USAGE ON SCHEMA {schema} TO {user}")
    database.execute(f"CREATE TABLE {schema}.items (id int8 PRIMARY KEY, text text, amount numeric(10, 2))")
    yield SimpleNamespace(url=database.url.replace("postgres@", f"{user}@"), user=user, schema=schema)
    database.execute(f"DROP SCHEMA {schema} CASCADE")
    database.execute(f"DROP OWNED BY {user}")
    database.execute(f"DROP ROLE {user}")


def test_who_may_not_make_the_ledger_upserts_with_one_that_is_there(database: Database, guest: Any) -> None:
    """Nor may it make anything else in the schema, as nobody but the owner may in `public` since PostgreSQL 15. What
    the refusal says to do is done."""
    database.execute(f"GRANT SELECT, INSERT, UPDATE ON {guest.schema}.items TO {guest.user}")
    sink = to(guest, "items").upsert().build()
    with pytest.raises(PostgresError, match=f"upserts need the table tidegate_ledger.*{guest.user}") as refusal:
        sink.check_start(1)
    for statement in str(refusal.value).partition("Have it made, once: ")[2].split("; "):
        database.execute(statement)
    database.execute(f"REVOKE UPDATE ON {guest.schema}.tidegate_ledger FROM {guest.user}")
    with pytest.raises(PostgresError, match="lacks the right UPDATE on the table tidegate_ledger"):
        sink.check_start(1)
    database.execute(f"GRANT UPDATE ON {guest.schema}.tidegate_ledger TO {guest.user}")
    writer = open_writer(sink)
    lots = barrier_of(writer, rows(1, 2))
    for _ in range(2):
        assert writer.committer.commit(lots) == []
    assert ids(database, f"{guest.schema}.items") == [1, 2]
    assert database.execute(f"SELECT lot FROM {guest.schema}.tidegate_ledger") == [(1,)]
    writer.committer.close()


def test_the_ledger_is_made_in_the_first_schema_of_the_search_path(database: Database, guest: Any) -> None:
    """Wherever the table is."""
    database.execute(f"CREATE SCHEMA {guest.schema}_own AUTHORIZATION {guest.user}")
    database.execute(f"ALTER ROLE {guest.user} SET search_path = {guest.schema}_own, {guest.schema}")
    database.execute(f"GRANT SELECT, INSERT, UPDATE ON {guest.schema}.items TO {guest.user}")
    try:
        for _ in range(2):
            to(guest, f"{guest.schema}.items").upsert().build().check_start(1)
        assert database.execute(f"SELECT count(*) FROM {guest.schema}_own.tidegate_ledger") == [(0,)]
    finally:
        database.execute(f"DROP SCHEMA {guest.schema}_own CASCADE")


def test_rights_are_looked_at_column_by_column(
    database: Database, guest: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that are asked for are enough, and one less is not."""
    items = f"{guest.schema}.items"

    def refused(sink: Any, text: str) -> None:
        with pytest.raises(PostgresError, match=re.escape(text)):
            sink.check_start(1)

    append, upsert = to(guest, "items").build(), to(guest, "items").upsert().build()
    refused(append, "lacks the right INSERT on table")
    database.execute(f"GRANT INSERT (id, text) ON {items} TO {guest.user}")
    refused(append, 'lacks the right INSERT ("amount") on table')
    to(guest, "items").set_columns("id", "text").build().check_start(1)
    database.execute(f"GRANT INSERT (amount), SELECT (id) ON {items} TO {guest.user}")
    append.check_start(1)
    refused(upsert, 'lacks the right SELECT ("text", "amount") on table')
    source = PostgresSource.builder().set_url(guest.url).set_table("items").set_key_column("id").build()
    with pytest.raises(PostgresError, match=re.escape('lacks the right SELECT ("text", "amount") on table')):
        source.create_splits(1)
    database.execute(f"GRANT SELECT (text, amount), UPDATE (text) ON {items} TO {guest.user}")
    assert source.create_splits(1)
    refused(upsert, 'lacks the right UPDATE ("amount") on table')
    database.execute(f"GRANT UPDATE (amount) ON {items} TO {guest.user}")
    database.execute(f"GRANT CREATE ON SCHEMA {guest.schema} TO {guest.user}")
    database.execute("REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC")
    try:
        refused(upsert, 'GRANT TEMPORARY ON DATABASE "postgres" TO')
    finally:
        database.execute("GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")
    caplog.clear()
    writer = open_writer(upsert)
    (record,) = caplog.records
    assert "a record of kind DELETE would fail the job (GRANT DELETE ON" in record.getMessage()
    assert writer.committer.commit(barrier_of(writer, rows(1, 2))) == []
    assert writer.committer.commit(barrier_of(writer, rows(2, 3))) == []
    assert ids(database, items) == [1, 2, 3]
    gone = Row(id=1, text=None, amount=None)
    gone.set_row_kind(RowKind.DELETE)
    lots = barrier_of(writer, [gone])
    with pytest.raises(PostgresError, match="lacks the right: GRANT it"):
        writer.committer.commit(lots)
    database.execute(f"GRANT DELETE ON {items} TO {guest.user}")
    assert writer.committer.commit(lots) == []
    assert ids(database, items) == [2, 3]
    writer.committer.close()
    caplog.clear()
    upsert.check_start(1)
    assert not caplog.records


def test_a_wrong_password_is_told_so_without_it(database: Database, table: str) -> None:
    database.execute(f"CREATE ROLE {table} LOGIN PASSWORD 'right-one'")
    rules = database.data / "pg_hba.conf"
    rules.write_text(f"host all {table} 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    database.execute("SELECT pg_reload_conf()")
    job = type("Job", (), {"url": database.url.replace("postgres@", f"{table}:hunter2@")})()

    def refused() -> str:
        try:
            to(job, table).build().check_start(1)
        except PostgresError as error:
            return str(error)
        return ""

    # The server reads its rules again in its own time; until then it lets anybody in.
    until(lambda: "password" in refused(), "the rules")
    assert "password authentication failed" in refused()
    assert "Check host, port, database, user and password" in refused()
    assert "hunter2" not in refused()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: PostgresSink.builder().set_url("jdbc:mysql://host/db"), "jdbc:mysql is not supported"),
        (lambda: PostgresSink.builder().set_url("nonsense"), "the url is none"),
        (lambda: PostgresSink.builder().set_table(""), "name of a table"),
        (lambda: PostgresSink.builder().set_table("t").build(), "set_url and set_table"),
        (lambda: PostgresSink.builder().set_columns("a", "a"), "each once"),
        (lambda: PostgresSink.builder().set_transaction_prefix("x" * 101), "at most 100 bytes"),
        (lambda: JdbcExecutionOptions.builder().with_batch_size(0), "with_batch_size takes a number >= 1"),
        (lambda: JdbcConnectionOptions.JdbcConnectionOptionsBuilder().build(), "with_url is missing"),
    ],
)
def test_bad_settings(change: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        change()


def test_columns_of_types_that_users_have_made(database: Database, name: str) -> None:
    database.execute(f"CREATE TYPE {name}_mood AS ENUM ('sad', 'glad')")
    database.execute(f"CREATE DOMAIN {name}_small AS int4 CHECK (VALUE < 100)")
    database.execute(f"CREATE DOMAIN {name}_tiny AS {name}_small CHECK (VALUE < 10)")
    columns = f"id {name}_tiny PRIMARY KEY, mood {name}_mood, more {name}_small"
    for kind in ("append", "upsert"):
        table = f"{name}_{kind}"
        database.execute(f"CREATE TABLE {table} ({columns})")
        build = to(database, table)
        writer = open_writer((build.upsert() if kind == "upsert" else build).build())
        assert writer.committer.commit(barrier_of(writer, [(1, "glad", 50), (2, None, None)])) == []
        assert database.psql(f"SELECT * FROM {table} ORDER BY id") == "1|glad|50\n2||\n"
        writer.close()
    database.execute(f"CREATE TYPE {name}_pair AS (a int4, b int4)")
    database.execute(f"CREATE TABLE {name} (id int8, pair {name}_pair)")
    with pytest.raises(
        ConfigurationError, match=f"column 'pair' of .* is of type {name}_pair, which cannot be written"
    ):
        to(database, name).build().check_start(1)
    to(database, name).set_columns("id").build().check_start(1)


# ---------------------------------------------------------------- JDBC's names


def jdbc(database: Any, sql: str, fields: int = 1, more: str = "") -> JdbcSink:
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
    place = database.url.replace("postgres@", "").removeprefix("postgresql:")
    options.with_url(f"jdbc:postgresql:{place}{more}").with_user_name(getattr(database, "user", "postgres"))
    return JdbcSink.sink(sql, Types.ROW([Types.LONG()] * fields), options.build())


def test_a_statement_that_cannot_work_is_refused_before_the_start(database: Database, table: str) -> None:
    for sql, text in [
        ("INSERT INTO nothing_here VALUES (?)", 'relation "nothing_here" does not exist.*Create the table'),
        (f"INSERT INTO {table} (id, size) VALUES (1, ?)", 'column "size"'),
        (f"INSERT INTO {table} VALUE (?)", "syntax error"),
        (f"INSERT INTO {table} (id) VALUES (?) ON CONFLICT (text) DO NOTHING", "no unique or exclusion constraint"),
    ]:
        with pytest.raises(PostgresError, match=f"JdbcSink, .*looking at the statement: .*{text}"):
            jdbc(database, sql).check_start(1)
    database.execute(f"CREATE ROLE {table}_guest LOGIN")
    guest = type("Guest", (), {"url": database.url, "user": f"{table}_guest"})()
    with pytest.raises(PostgresError, match="lacks the right: GRANT it"):
        jdbc(guest, f"INSERT INTO {table} (id) VALUES (?)").check_start(1)
    jdbc(database, f"INSERT INTO {table} (id, text) VALUES (?, '50%?')").check_start(1)
    assert ids(database, table) == []
    away = type("Away", (), {"url": "postgresql://127.0.0.1:1/db"})()
    with pytest.raises(PostgresError, match=r"JdbcSink, 127\.0\.0\.1:1/db: connecting: .*Check host, port"):
        jdbc(away, f"INSERT INTO {table} (id) VALUES (?)").check_start(1)


def test_a_jdbc_url_as_it_stands(database: Database, name: str) -> None:
    database.execute(f'CREATE SCHEMA "{name} x"')
    database.execute(
        f'CREATE TABLE "{name} x".numbers (id int8, who text DEFAULT current_setting($$application_name$$))'
    )
    more = f"?currentSchema=%22{name}%20x%22&ApplicationName=mine&reWriteBatchedInserts=true&targetServerType=primary"
    writer = open_writer(jdbc(database, "INSERT INTO numbers (id) VALUES (?)", 1, more))
    writer.write_batch([Row(7)], None)
    writer.flush(False)
    writer.close()
    assert database.psql(f'SELECT * FROM "{name} x".numbers') == "7|mine\n"


def test_jdbc_sink_writes_in_batches_and_before_a_checkpoint(database: Database, table: str) -> None:
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(f"jdbc:{database.url}")
    options.with_driver_name("org.postgresql.Driver").with_user_name("postgres")
    sink = JdbcSink.sink(
        f"INSERT INTO {table} (id, text) VALUES (?, ? || ' 100%?') ON CONFLICT (id) DO UPDATE SET text = excluded.text",
        Types.ROW([Types.LONG(), Types.STRING()]),
        options.build(),
        JdbcExecutionOptions.builder().with_batch_size(3).with_batch_interval_ms(60_000).with_max_retries(2).build(),
    )
    writer = open_writer(sink)
    writer.write_batch([Row(1, "a"), Row(2, "b")], None)
    assert ids(database, table) == []
    writer.write_batch([Row(3, "c"), Row(1, "d")], None)
    assert ids(database, table) == [1, 2, 3]
    writer.flush(False)
    assert database.psql(f"SELECT text FROM {table} WHERE id = 1") == "d 100%?\n"
    database.kill()
    database.start()
    writer.write_batch([Row(4, "e")], None)
    writer.flush(False)
    assert ids(database, table) == [1, 2, 3, 4]
    writer.close()
    with pytest.raises(ConfigurationError, match=r"the statement has 1 '.', the row type 2 fields"):
        JdbcSink.sink("INSERT INTO t VALUES (?)", Types.ROW([Types.LONG(), Types.STRING()]), options.build())
