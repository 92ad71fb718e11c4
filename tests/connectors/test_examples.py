"""Examples that need no Spark to be seen working; the others are in test_end_to_end."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.database import Database
from tests.connectors.kafka_kit import builder
from tests.connectors.on_processes import environment, run_job, start_job
from tests.spark.recovery_kit import until, with_checkpoints
from tidegate.datastream.connectors import CollectSink
from tidegate.testing.in_process_job import InProcessJob

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


def test_a_count_goes_on_from_files_into_a_topic(broker: Broker, name: str, tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    (history / "1.txt").write_text("ann 3\nbob 5\n")
    (history / "2.txt").write_text("ann 1\n")
    topic, out = broker.create_topic(name, 2), broker.create_topic(f"{name}-out")
    broker.produce(topic, ["bob 7"], 0)
    broker.produce(topic, ["ann 2", "cid 1"], 1)
    env = with_checkpoints(environment(2), tmp_path / "checkpoints", interval_ms=200)
    counts = example("history_then_topic").build(env, str(history), broker.bootstrap_servers, topic, False)
    counts.sink_to(builder(broker, out).build())
    run_job(env)
    assert sorted(broker.values(out)) == ["ann 1", "ann 2", "ann 3", "bob 1", "bob 2", "cid 1"]


def test_words_are_counted_through_jdbc(database: Database, name: str) -> None:
    database.execute(f"CREATE TABLE {name} (word text PRIMARY KEY, count int8)")
    env = environment(2)
    example("jdbc_word_count").build(env, f"jdbc:{database.url.replace('postgres@', '')}", "postgres", name)
    run_job(env)
    expected = "be|2\nis|1\nnot|1\nor|1\nquestion|1\nthat|1\nthe|1\nto|2\n"
    assert database.psql(f'SELECT * FROM {name} ORDER BY word COLLATE "C"') == expected


def test_averages_of_windows_and_what_was_too_late_for_them() -> None:
    env = environment(2)
    example("windowed_average").build(env).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run_to_end()
        lines = sorted(job.results)
    assert len([line for line in lines if " degrees, " in line]) == 2 * 8  # of a minute, each 20 s, over 2 minutes
    assert [line for line in lines if "too late" in line] == [
        "too late: Reading(sensor='garden', time=3000, degrees=99.9)"
    ]
    (full,) = [line for line in lines if line.startswith("   0 s to   60 s  kitchen")]
    assert full.endswith("degrees, 12 readings")


def test_orders_are_in_a_delta_table_once(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    orders, table = example("orders_to_delta"), str(tmp_path / "table")
    env = with_checkpoints(environment(2), tmp_path / "checkpoints", interval_ms=100)
    orders.build(env, table)
    run_job(env)
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    wanted: dict[tuple[str, Any], int] = {}
    for customer, time, amount in map(orders.order, range(orders.ORDERS)):
        place = customer, orders.day_of(time)
        wanted[place] = wanted.get(place, 0) + amount
    assert len(found) == len(wanted)
    assert {(row["customer"], row["day"]): row["amount"] for row in found} == wanted
