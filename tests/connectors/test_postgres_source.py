"""PostgresSource against a real database: all rows once, from any offset, in ranges."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from tests.connectors.database import Database
from tests.connectors.kafka_kit import WallClock
from tidegate.common.errors import ConfigurationError
from tidegate.connectors.postgres.connection import PostgresError
from tidegate.connectors.postgres.source import PostgresSource, PostgresSourceBuilder
from tidegate.contracts.connectors import SourceContext


def of(database: Any, table: str | None = None) -> PostgresSourceBuilder:
    build = PostgresSource.builder().set_url(database.url).set_key_column("id").set_page_size(7)
    return build if table is None else build.set_table(table)


class Reading:
    def __init__(self, source: PostgresSource, splits: Any = None, offsets: dict[str, Any] | None = None) -> None:
        self.source = pickle.loads(pickle.dumps(source))
        self.splits = self.source.create_splits(2) if splits is None else splits
        context = SourceContext("source", 0, 1, WallClock())
        wanted = offsets or {}
        self.readers = [self.source.create_reader(s, wanted.get(s.split_id), context) for s in self.splits]

    def read(self, count: int | None = None) -> list[Any]:
        found: list[Any] = []
        left = list(self.readers)
        deadline = time.monotonic() + 20
        while left and (count is None or len(found) < count):
            assert time.monotonic() < deadline
            for reader in list(left):
                polled = reader.poll(3)
                if polled is None:
                    left.remove(reader)
                else:
                    found += polled
        return found

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


@pytest.mark.parametrize("key", ["int8", "text", "timestamptz"])
def test_all_rows_once_from_any_offset(database: Database, name: str, key: str) -> None:
    value = {"int8": "n * 3", "text": "md5(n::text)", "timestamptz": "to_timestamp(n)"}[key]
    database.execute(f"CREATE TABLE {name} AS SELECT ({value})::{key} AS id, n FROM generate_series(1, 100) n")
    database.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    source = of(database, name).build()
    whole = Reading(source)
    assert len(whole.splits) == 8
    assert sorted(row.n for row in whole.read()) == list(range(1, 101))
    whole.close()
    part = Reading(source)
    first = part.read(40)
    offsets = {s.split_id: r.offset() for s, r in zip(part.splits, part.readers, strict=True)}
    part.close()
    rest = Reading(source, part.splits, pickle.loads(pickle.dumps(offsets)))
    assert sorted(row.n for row in first + rest.read()) == list(range(1, 101))
    rest.close()


@pytest.mark.parametrize("size", [7, 1000])
def test_keys_are_divided_in_the_order_of_the_database(database: Database, name: str, size: int) -> None:
    """Which for an enum is that of its declaration; for text it is that of a locale, which Python does not know. Both
    the table and its columns have names with a `%`."""
    labels = [f"{(i * 37) % 100:02d}" for i in range(100)]
    listed = ", ".join(f"'{label}'" for label in labels)
    database.execute(f"CREATE TYPE {name} AS ENUM ({listed})")
    database.execute(f'CREATE TABLE "{name}%s" ("i%d" {name} PRIMARY KEY, also {name}, n int8)')
    database.execute(f'INSERT INTO "{name}%s" SELECT label, label, 1 FROM unnest(enum_range(NULL::{name})) label')
    source = of(database, f"{name}%s").set_key_column("i%d").set_page_size(size).build()
    reading = Reading(source)
    assert [split.high for split in reading.splits] == [
        *(labels[n * 100 // 8 - 1 + (n % 2)] for n in range(1, 8)),
        None,
    ]
    found = reading.read()
    assert sorted(row["i%d"] for row in found) == sorted(labels)
    assert [row.also for row in found] == [row["i%d"] for row in found]
    reading.close()


def test_text_is_divided_in_the_order_of_its_locale(database: Database, name: str) -> None:
    """A server that has a locale answers with keys in its order; this one stands for it."""

    class WithLocale:
        def execute(self, statement: str, arguments: Any = None) -> WithLocale:
            self._answer = ("a", "z") if "min(" in statement else (["a", "B", "b", "C", "C", "z"],)
            return self

        def fetchall(self) -> list[Any]:
            return [self._answer]

    assert of(database, name).build()._bounds(WithLocale(), 8) == ["a", "B", "b", "C"]


def test_a_query_and_an_empty_table(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY)")
    assert Reading(of(database, name).build()).read() == []
    query = "SELECT n AS id, 'x%' AS text FROM generate_series(1, 10) n WHERE n % 2 = 0;"
    found = Reading(of(database).set_query(query).build()).read()
    assert sorted((row.id, row.text) for row in found) == [(n, "x%") for n in range(2, 11, 2)]


def test_a_database_that_was_killed_is_asked_again(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} AS SELECT n AS id FROM generate_series(1, 200) n")
    database.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    reading = Reading(of(database, name).build())
    first = reading.read(20)
    database.kill()
    database.start()
    assert sorted(row.id for row in first + reading.read()) == list(range(1, 201))
    reading.close()


def test_what_is_refused(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (id int8, other int8)")
    with pytest.raises(ConfigurationError, match=f"column 'id' of .*{name}.* has no unique index"):
        of(database, name).build().create_splits(1)
    database.execute(f"ALTER TABLE {name} ADD UNIQUE (id)")
    database.execute(f"INSERT INTO {name} VALUES (NULL, 1)")
    with pytest.raises(PostgresError, match="'id' is null in some rows"):
        of(database, name).build().create_splits(1)
    with pytest.raises(PostgresError, match="looking at table"):
        of(database, "nothing_here").build().create_splits(1)
    with pytest.raises(PostgresError, match="dividing the rows"):
        of(database).set_query("SELECT 1 AS other").build().create_splits(1)
    away = type("Away", (), {"url": "postgresql://127.0.0.1:1/db"})()
    with pytest.raises(PostgresError, match=r"PostgresSource, 127\.0\.0\.1:1/db: connecting: .*Check host, port"):
        of(away, name).build().create_splits(1)
    with pytest.raises(ConfigurationError, match="set_url, set_key_column"):
        PostgresSource.builder().build()
    with pytest.raises(ConfigurationError, match="set_page_size"):
        of(database).set_page_size(0)
