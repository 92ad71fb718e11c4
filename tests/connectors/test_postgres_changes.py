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
from tidegate.common.errors import ConfigurationError
from tidegate.connectors.postgres.changes import (
    ChangeSplit,
    PostgresChangeSource,
    PostgresChangeSourceBuilder,
    TableState,
)
from tidegate.connectors.postgres.connection import PostgresError
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
    for n in range(3):
        woken.clear()
        while (wake_at := reader.wake_at_ms()) is None:  # the rows, and the beginning of the stream
            assert reader.poll(10) == []
        assert wake_at > WallClock().now_ms() + 500
        database.execute(f"INSERT INTO {table} VALUES ({n}, 'x')")
        assert woken.wait(20)
        assert take(reader, 1) == [f"+I {n} x"]
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

    def confirmed() -> Any:
        return database.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", table)

    before = confirmed()
    reader.notify_checkpoint_complete(1, offset)
    deadline = time.monotonic() + 10
    while confirmed() == before:
        assert time.monotonic() < deadline
        reader.poll(10)
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
        changes = random.Random(seed + 1)
        for n in range(1, 150):
            number = changes.randrange(1, 90)
            statements = [
                f"INSERT INTO {table} VALUES ({number}, '{n}') ON CONFLICT (id) DO UPDATE SET text = excluded.text",
                f"DELETE FROM {table} WHERE id = {number}",
                f"UPDATE {table} SET text = '{n}' WHERE id BETWEEN {number} AND {number + 20}",
            ]
            database.execute(changes.choice(statements))
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


def test_which_transactions_a_state_contains() -> None:
    state = TableState.parse("100:110:103,105")
    seen = [xid for xid in range(95, 115) if state.contains(xid)]
    assert seen == [*range(95, 103), 104, *range(106, 110)]
    wrapped = TableState.parse(f"{(1 << 32) + 2}:{(1 << 32) + 5}:")
    assert wrapped.contains(0xFFFFFFF0)
    assert wrapped.contains(4)
    assert not wrapped.contains(5)
    assert not TableState.parse(f"{(1 << 32) - 5}:{(1 << 32) - 2}:").contains(3)


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
