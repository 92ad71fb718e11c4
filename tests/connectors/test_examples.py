"""Examples of PostgreSQL that need no Spark to be seen working; the others are in test_end_to_end."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.database import Database
from tests.connectors.on_processes import environment, run_job, start_job
from tests.spark.recovery_kit import until, with_checkpoints

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("on_processes")]


def example(name: str) -> Any:
    return importlib.import_module(f"examples.{name}")


def test_totals_follow_the_changes_of_a_table(database: Database, name: str, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, customer text, amount int8)")
    database.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    database.execute(f"CREATE TABLE {name}_totals (customer text PRIMARY KEY, total int8)")
    database.execute(f"INSERT INTO {name} VALUES (1, 'a', 10), (2, 'b', 5), (3, 'a', 1)")
    env = with_checkpoints(environment(2), tmp_path, interval_ms=200)
    example("postgres_changes").build(env, database.url, name, f"{name}_totals", name)
    client = start_job(env)

    def totals() -> str:
        return database.psql(f"SELECT * FROM {name}_totals ORDER BY 1")

    until(lambda: totals() == "a|11\nb|5\n", "the rows that were there", 60)
    database.execute(f"UPDATE {name} SET amount = 20, customer = 'b' WHERE id = 1")
    database.execute(f"DELETE FROM {name} WHERE id = 3")
    database.execute(f"INSERT INTO {name} VALUES (4, 'c', 7)")
    until(lambda: totals() == "b|25\nc|7\n", "the changes", 60)
    client.cancel().result()
    database.execute("SELECT pg_drop_replication_slot(%s)", name)


def test_words_are_counted_through_jdbc(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (word text PRIMARY KEY, count int8)")
    env = environment(2)
    example("jdbc_word_count").build(env, f"jdbc:{database.url.replace('postgres@', '')}", "postgres", name)
    run_job(env)
    expected = "be|2\nis|1\nnot|1\nor|1\nquestion|1\nthat|1\nthe|1\nto|2\n"
    assert database.psql(f'SELECT * FROM {name} ORDER BY word COLLATE "C"') == expected
