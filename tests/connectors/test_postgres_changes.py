"""PostgresChangeSource against a real database: rows, then changes, each once, wherever the reader dies."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.connectors.database import Database
from tests.connectors.kafka_kit import WallClock
from tests.spark.recovery_kit import until
from tidegate.common.errors import ConfigurationError
from tidegate.connectors.postgres import changes
from tidegate.connectors.postgres.changes import (
    ChangeSplit,
    PostgresChangeSource,
    PostgresChangeSourceBuilder,
    TableState,
)
from tidegate.connectors.postgres.connection import PostgresError
from tidegate.connectors.postgres.replication import ServerPosition, lsn_number
from tidegate.contracts.connectors import SourceContext


@pytest.fixture
def table(database: Database, name: str) -> Iterator[str]:
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, text text)")
    yield name
    deadline = time.monotonic() + 10
    while database.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", name):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", name)
    database.execute(f"DROP PUBLICATION IF EXISTS {name}")


def of(database: Database, table: str) -> PostgresChangeSourceBuilder:
    return PostgresChangeSource.builder().set_url(database.url).set_table(table).set_slot(table)


def reader_of(source: PostgresChangeSource, split: Any, offset: Any = None, wake: Any = None) -> Any:
    shipped = pickle.loads(pickle.dumps(source))
    context = SourceContext("source", 0, 1, WallClock())
    context.wake = wake
    return shipped.create_reader(split, pickle.loads(pickle.dumps(offset)), context)


def take(reader: Any, count: int, most: int = 3) -> list[str]:
    """At least so many, as "+I 1 text"."""
    found: list[str] = []
    deadline = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline, found
        found += [" ".join(map(str, [row.get_row_kind(), *row])) for row in reader.poll(most)]
    return found


def test_rows_come_first_and_then_every_change(database: Database, table: str) -> None:
    database.execute(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, 5) n")
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    # After the slot and before the rows are read: these are among the rows, and must not come as changes too.
    database.execute(f"UPDATE {table} SET text = 'seen' WHERE id = 1")
    database.execute(f"INSERT INTO {table} VALUES (6, 'seen')")
    reader = reader_of(source, split)
    assert take(reader, 6) == ["+I 1 seen", *(f"+I {n} old" for n in range(2, 6)), "+I 6 seen"]
    database.execute(f"INSERT INTO {table} VALUES (7, 'x')")
    database.execute(f"UPDATE {table} SET text = 'y' WHERE id = 2")
    database.execute(f"UPDATE {table} SET id = 70 WHERE id = 7")
    database.execute(f"DELETE FROM {table} WHERE id = 3")
    expected = ["+I 7 x", "+U 2 y", "-U 7 None", "+U 70 x", "-D 3 None"]
    assert take(reader, 5) == expected
    database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    database.execute(f"UPDATE {table} SET text = 'z' WHERE id = 4")
    assert take(reader, 2) == ["-U 4 old", "+U 4 z"]
    reader.close()


def test_a_reader_wakes_its_task_instead_of_being_asked(database: Database, table: str) -> None:
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    woken = threading.Event()
    reader = reader_of(source, split, wake=woken.set)

    def rows_when_woken() -> list[Any]:
        while True:  # a message that is no change wakes it too
            assert woken.wait(20)
            woken.clear()
            while not (found := reader.poll(10)) and reader.wake_at_ms() is None:
                pass
            if found:
                return [tuple(row) for row in found]

    while reader.wake_at_ms() is None:  # the rows, and the beginning of the stream
        assert reader.poll(10) == []
    for n in range(3):
        assert reader.wake_at_ms() is None or reader.wake_at_ms() > WallClock().now_ms() + 500
        database.execute(f"INSERT INTO {table} VALUES ({n}, 'x')")
        assert rows_when_woken() == [(n, "x")]
        while reader.wake_at_ms() is None:
            assert reader.poll(10) == []
    reader.close()


def test_the_slot_forgets_only_what_a_complete_checkpoint_holds(database: Database, table: str) -> None:
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    reader.poll(10)
    database.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    assert take(reader, 1) == ["+I 1 a"]
    while not (offset := reader.offset()).lsn > split.start.lsn:
        reader.poll(10)

    before = confirmed(database, table)
    reader.notify_checkpoint_complete(1, offset)
    until(lambda: confirmed(database, table) > before, "the confirmation", 20)
    reader.close()


def read_behind(reader: Any, above: int) -> Any:
    """The offset of a reader that has read everything, behind the transaction that ends above."""
    deadline = time.monotonic() + 20
    while reader.offset().lsn <= above:
        assert time.monotonic() < deadline
        reader.poll(10)
        time.sleep(0.005)
    return reader.offset()


def confirmed(database: Database, slot: str) -> int:
    question = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    ((text,),) = database.execute(question, slot)
    return lsn_number(text)


def close_and_free(database: Database, reader: Any, slot: str) -> None:
    reader.close()
    question = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active"
    until(lambda: not database.execute(question, slot), "the slot to be free")


def test_a_task_that_is_held_up_tells_the_server_so(database: Database, table: str) -> None:
    """Nobody polls, since what comes behind the source is slow: the server would take the silence for the end."""
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    reader.poll(10)
    database.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    assert take(reader, 1) == ["+I 1 a"]
    offset = read_behind(reader, split.start.lsn)
    reader.notify_checkpoint_complete(1, offset)
    until(lambda: confirmed(database, table) >= offset.lsn, "the confirmation", 20)

    def replies() -> Any:
        question = "SELECT reply_time FROM pg_stat_replication JOIN pg_replication_slots ON active_pid = pid"
        return database.execute(f"{question} WHERE slot_name = %s", table)

    first = replies()
    until(lambda: replies() > first, "a sign of life", 20)
    reader.close()


def test_the_slot_of_a_quiet_table_moves_on_with_a_database_that_is_busy(
    database: Database, table: str, name: str
) -> None:
    """It would keep the log of all tables for ever otherwise. Nothing is lost by it, over recoveries either."""
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    database.execute(f"CREATE TABLE {name}_other (text text)")
    for n in range(3):
        assert reader.poll(10) == []
        database.execute(f"INSERT INTO {name}_other SELECT repeat('x', 100) FROM generate_series(1, 100)")
        ((busy,),) = database.execute("SELECT pg_current_wal_lsn()::text")
        offset = read_behind(reader, lsn_number(busy) - 1)
        reader.notify_checkpoint_complete(n, offset)
        until(lambda lsn=offset.lsn: confirmed(database, table) >= lsn, "the confirmation", 20)
        close_and_free(database, reader, table)
        reader = reader_of(source, split, offset)
        database.execute(f"INSERT INTO {table} VALUES ({n}, 'x')")
        assert take(reader, 1) == [f"+I {n} x"]
    reader.close()


def test_a_position_of_the_server_says_nothing_within_a_transaction(database: Database, table: str) -> None:
    source = of(database, table).set_rows_first(False).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    database.execute(f"INSERT INTO {table} SELECT n, 'x' FROM generate_series(1, 5) n")
    until(lambda: reader.poll(2), "a change", 20)
    half = reader.offset()
    assert half.changes in (1, 2)
    reader._waiting.appendleft(ServerPosition(1 << 60))
    take(reader, 1, most=1)
    assert reader.offset().lsn == half.lsn
    close_and_free(database, reader, table)
    again = reader_of(source, split, half)
    again._waiting.appendleft(ServerPosition(1 << 60))
    assert take(again, 5 - half.changes) == [f"+I {n} x" for n in range(half.changes + 1, 6)]
    again.close()


@pytest.mark.parametrize("dropped", [False, True], ids=["confirmed further", "dropped"])
def test_changes_that_the_slot_no_longer_has_are_an_error(database: Database, table: str, dropped: bool) -> None:
    """The server goes on behind them without a word: from a savepoint that is older than the last checkpoint, say."""
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    reader.poll(10)
    database.execute(f"INSERT INTO {table} VALUES (1, 'a')")
    assert take(reader, 1) == ["+I 1 a"]
    savepoint = read_behind(reader, split.start.lsn)
    database.execute(f"INSERT INTO {table} VALUES (2, 'b')")
    assert take(reader, 1) == ["+I 2 b"]
    later = read_behind(reader, savepoint.lsn)
    if not dropped:
        reader.notify_checkpoint_complete(2, later)
        until(lambda: confirmed(database, table) >= later.lsn, "the confirmation", 20)
    close_and_free(database, reader, table)
    if dropped:
        database.execute("SELECT pg_drop_replication_slot(%s)", table)
        gone = reader_of(source, split, savepoint)
        with pytest.raises(PostgresError, match=f"the replication slot {table} was dropped"):
            take(gone, 1)
        gone.close()
    source.create_splits(1)  # as every job does that is started, also from a savepoint
    reader = reader_of(source, split, savepoint)
    with pytest.raises(PostgresError, match=f"slot {table} begins at .*newer checkpoint or savepoint"):
        take(reader, 1)
    reader.close()


def test_a_reader_that_dies_anywhere_gives_every_change_once(database: Database, table: str) -> None:
    """Readers are thrown away at random moments, while the table is being changed, and go on from an offset."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    database.execute(f"INSERT INTO {table} SELECT n, '0' FROM generate_series(1, 60) n")
    database.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    stop = threading.Event()

    def change() -> None:
        dice = random.Random(seed + 1)
        for n in range(1, 150):
            number = dice.randrange(1, 90)
            statements = [
                f"INSERT INTO {table} VALUES ({number}, '{n}') ON CONFLICT (id) DO UPDATE SET text = excluded.text",
                f"DELETE FROM {table} WHERE id = {number}",
                f"UPDATE {table} SET text = '{n}' WHERE id BETWEEN {number} AND {number + 20}",
            ]
            database.execute(dice.choice(statements))
        stop.set()

    writer = threading.Thread(target=change)
    writer.start()
    state: dict[str, str]

    def apply(rows: list[Any]) -> None:
        for row in rows:
            kind, key, text = str(row.get_row_kind()), row.id, row.text
            if kind == "+I":
                assert key not in state, f"{key} is inserted twice"
            else:
                assert key in state, f"{kind} of {key}, which is not there"
            if kind in ("-U", "-D"):
                assert state[key] == text, f"{kind} {key}: was {state[key]}, not {text}"
            if kind == "-D":
                del state[key]
            elif kind != "-U":
                state[key] = text

    checkpoint: tuple[Any, dict[str, str]] = (None, {})
    settled, row_readers = 0, 0
    deadline = time.monotonic() + 60
    while settled < 2:
        assert time.monotonic() < deadline
        offset, state = checkpoint[0], dict(checkpoint[1])
        reader = reader_of(source, split, offset)
        row_readers += offset is None or offset.reading_rows
        polls = rng.randrange(1, 4) if offset is None or offset.reading_rows else rng.randrange(1, 60)
        last_look = stop.is_set() and rng.random() < 0.3
        polls = 500 if last_look else polls  # long enough for all that is left to arrive
        got = 0
        for _ in range(polls):
            rows = reader.poll(rng.randrange(1, 12))
            got += len(rows)
            apply(rows)
            if rng.random() < 0.5:
                checkpoint = (reader.offset(), dict(state))
                if rng.random() < 0.2:
                    reader.notify_checkpoint_complete(1, checkpoint[0])
            time.sleep(0.001)
        quiet = not got and not reader.offset().reading_rows
        reader.close()
        settled += last_look and quiet
    writer.join()
    assert row_readers > 3
    assert state == dict(database.execute(f"SELECT id, text FROM {table}"))


def test_what_was_given_on_before_a_recovery_is_left_out_without_a_pause_for_each_change(
    database: Database, table: str
) -> None:
    """A task asks a reader that had nothing again after a pause, and at first for one row only."""
    source = of(database, table).set_rows_first(False).build()
    (split,) = source.create_splits(1)
    first = reader_of(source, split)
    database.execute(f"INSERT INTO {table} SELECT n, 'x' FROM generate_series(1, 1000) n")  # one transaction
    given = len(take(first, 900, most=10))
    assert given < 1000
    offset = first.offset()
    first.close()
    second, empty = reader_of(source, split, offset), 0
    while not (rows := second.poll(1)):
        empty += 1
        assert empty < 200
        if second._stream is not None:
            second._stream.has_more(0.1)
    assert [row.id for row in rows] == [given + 1]
    second.close()


def test_which_transactions_a_state_contains() -> None:
    state = TableState.parse("100:110:103,105")
    seen = [xid for xid in range(95, 115) if state.contains(xid)]
    assert seen == [*range(95, 103), 104, *range(106, 110)]
    wrapped = TableState.parse(f"{(1 << 32) + 2}:{(1 << 32) + 5}:")
    assert wrapped.contains(0xFFFFFFF0)
    assert wrapped.contains(4)
    assert not wrapped.contains(5)
    assert not TableState.parse(f"{(1 << 32) - 5}:{(1 << 32) - 2}:").contains(3)


def test_changes_of_other_tables_in_the_publication_are_left_out(database: Database, table: str, name: str) -> None:
    """They look the same, and are counted in offsets within a transaction."""
    for other in (f"{name}_other", f"{name}_later"):
        database.execute(f"CREATE TABLE {other} (id int8 PRIMARY KEY, text text)")
    database.execute(f"CREATE PUBLICATION {table} FOR ALL TABLES")
    source = of(database, table).set_rows_first(False).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    both = f"INSERT INTO {name}_other VALUES (1, 'no'); INSERT INTO {table} VALUES (1, 'x')"
    database.execute(f"BEGIN; {both}; INSERT INTO {name}_later VALUES (1); UPDATE {table} SET text = 'y'; COMMIT")
    assert take(reader, 1, most=1) == ["+I 1 x"]
    half = reader.offset()
    assert half.changes == 2
    close_and_free(database, reader, table)
    again = reader_of(source, split, half)
    assert take(again, 1) == ["+U 1 y"]
    database.execute(f"UPDATE {name}_other SET text = 'no'")
    database.execute(f"TRUNCATE {name}_other")
    database.execute(f"ALTER TABLE {table} RENAME TO {name}_renamed")
    database.execute(f"DELETE FROM {name}_renamed")
    assert take(again, 1) == ["-D 1 None"]
    again.close()
    database.execute(f"ALTER TABLE {name}_renamed RENAME TO {table}")


@pytest.mark.parametrize("altered", [False, True], ids=["its own", "one that was altered"])
def test_the_partitions_of_a_table_are_the_table(database: Database, table: str, name: str, altered: bool) -> None:
    """Also changes from before the publication named the table as a whole, which come under the partitions' names."""
    database.execute(f"DROP TABLE {table}")
    database.execute(f"CREATE TABLE {table} (id int8 PRIMARY KEY, text text) PARTITION BY RANGE (id)")
    database.execute(f"CREATE TABLE {name}_low PARTITION OF {table} FOR VALUES FROM (0) TO (10)")
    if altered:
        database.execute(f"CREATE PUBLICATION {table} FOR TABLE {table}")
        with pytest.raises(ConfigurationError, match=r"ALTER PUBLICATION .* SET \(publish_via_partition_root = true\)"):
            of(database, table).build().create_splits(1)
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", table)
        database.execute(f"INSERT INTO {table} VALUES (2, 'leaf')")
        database.execute(f"ALTER PUBLICATION {table} SET (publish_via_partition_root = true)")
    source = of(database, table).set_rows_first(False).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    database.execute(f"CREATE TABLE {name}_high (text text, id int8 NOT NULL)")
    database.execute(f"ALTER TABLE {table} ATTACH PARTITION {name}_high FOR VALUES FROM (10) TO (20)")
    database.execute(f"INSERT INTO {table} VALUES (1, 'x')")
    database.execute(f"INSERT INTO {table} VALUES (11, 'y')")
    assert take(reader, 2 + altered) == [*(["+I 2 leaf"] if altered else []), "+I 1 x", "+I 11 y"]
    reader.close()


@pytest.mark.parametrize(
    ("publication", "what"),
    [
        ("FOR TABLE {other}", r'"{table}" does not send the changes of public.{table}: it is of public.{other}'),
        ("FOR TABLE {table} WHERE (id > 10)", r"sends changes of public.{table} only WHERE \(id > 10\)"),
        ("FOR TABLE {table} (id)", r"leaves out columns of public.{table} \(text\)"),
        ("FOR TABLE {table} WITH (publish = 'insert, truncate')", "leaves out every update and every delete"),
        ("FOR TABLE {table} WITH (publish = 'insert, update, delete')", "every truncate.*ALTER PUBLICATION"),
    ],
)
def test_a_publication_that_leaves_something_out_is_refused(
    database: Database, table: str, name: str, publication: str, what: str
) -> None:
    names = {"table": table, "other": f"{name}_other"}
    database.execute(f"CREATE TABLE {name}_other (id int8 PRIMARY KEY, text text)")
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    database.execute(f"DROP PUBLICATION {table}")
    database.execute(f"CREATE PUBLICATION {table} {publication.format(**names)}")
    with pytest.raises(ConfigurationError, match=what.format(**names)):
        source.create_splits(1)
    reader = reader_of(source, split)  # altered while the job runs: every attempt looks
    with pytest.raises(ConfigurationError, match=what.format(**names)):
        take(reader, 1)
    reader.close()


def test_a_table_whose_changes_do_not_say_of_which_row_is_refused(database: Database, table: str, name: str) -> None:
    source = of(database, table).build()
    database.execute(f"ALTER TABLE {table} REPLICA IDENTITY NOTHING")
    with pytest.raises(ConfigurationError, match=r"REPLICA IDENTITY .* is not its primary key"):
        source.create_splits(1)
    database.execute(f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {table}_pkey")
    source.create_splits(1)
    database.execute(f"CREATE TABLE {name}_child () INHERITS ({table})")
    with pytest.raises(ConfigurationError, match="other tables inherit from"):
        source.create_splits(1)


def test_the_slot_of_another_database_is_refused(database: Database, table: str) -> None:
    database.execute(f"CREATE DATABASE {table}")
    elsewhere: Any = type("Elsewhere", (), {"url": database.url.rsplit("/", 1)[0] + f"/{table}"})()
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", table)
    import psycopg

    with psycopg.connect(elsewhere.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id int8 PRIMARY KEY)")
    with pytest.raises(ConfigurationError, match=f"slot {table} is one of database postgres"):
        of(elsewhere, table).build().create_splits(1)


def test_columns_of_types_that_users_have_made(database: Database, table: str) -> None:
    """Rows and changes have the same values."""
    database.execute(f"CREATE TYPE {table}_mood AS ENUM ('sad', 'glad')")
    database.execute(f"CREATE DOMAIN {table}_small AS int4")
    database.execute(f"ALTER TABLE {table} ADD mood {table}_mood, ADD small {table}_small")
    database.execute(f"INSERT INTO {table} VALUES (1, 'x', 'glad', 5)")
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    reader = reader_of(source, split)
    (row,) = until(lambda: reader.poll(1), "the row", 20)
    database.execute(f"INSERT INTO {table} VALUES (2, 'x', 'glad', 5)")
    (change,) = until(lambda: reader.poll(1), "the change", 20)
    assert tuple(row)[1:] == tuple(change)[1:] == ("x", "glad", 5)
    reader.close()


def test_a_slot_that_cannot_be_made_is_no_hang(database: Database, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute(f"BEGIN; INSERT INTO {table} VALUES (1); PREPARE TRANSACTION '{table}'")
    monkeypatch.setattr(changes, "_MAKING_SECONDS", 0.3)
    with pytest.raises(PostgresError, match=f"slot {table} could not be made within 0.3 s.*pg_prepared_xacts"):
        of(database, table).build().create_splits(1)
    database.execute(f"ROLLBACK PREPARED '{table}'")


def test_rights_are_looked_at_before_the_start(database: Database, table: str) -> None:
    """Also when slot and publication are there, so that nothing has to be made."""
    of(database, table).build().create_splits(1)
    role = f"{table}_guest"
    database.execute(f"CREATE ROLE {role} LOGIN")
    guest: Any = type("Guest", (), {"url": database.url.replace("postgres@", f"{role}@")})()
    with pytest.raises(PostgresError, match=f"user {role} lacks the right SELECT on table"):
        of(guest, table).build().create_splits(1)
    database.execute(f"GRANT SELECT ON {table} TO {role}")
    with pytest.raises(PostgresError, match="may not replicate: ALTER ROLE"):
        of(guest, table).build().create_splits(1)
    database.execute(f"ALTER ROLE {role} REPLICATION")
    assert of(guest, table).build().create_splits(1)
    away: Any = type("Away", (), {"url": "postgresql://127.0.0.1:1/db"})()
    with pytest.raises(PostgresError, match=r"PostgresChangeSource, 127\.0\.0\.1:1/db: connecting: .*Check host, port"):
        of(away, table).build().create_splits(1)


def test_what_is_refused(database: Database, table: str, name: str) -> None:
    database.execute(f"CREATE TABLE {name}_two (a int8, b int8, PRIMARY KEY (a, b))")
    with pytest.raises(ConfigurationError, match="a primary key of one column, it has 2"):
        of(database, f"{name}_two").build().create_splits(1)
    with pytest.raises(ConfigurationError, match="set_slot: takes lower-case"):
        PostgresChangeSource.builder().set_slot("No Good")
    with pytest.raises(ConfigurationError, match="set_url, set_table and set_slot"):
        PostgresChangeSource.builder().build()
    source = of(database, table).build()
    (split,) = source.create_splits(1)
    assert isinstance(split, ChangeSplit)
    reader = reader_of(source, split)
    reader.poll(10)
    reader.poll(10)
    database.execute(f"TRUNCATE {table}")
    with pytest.raises(PostgresError, match="was truncated"):
        take(reader, 1)
    reader.close()
