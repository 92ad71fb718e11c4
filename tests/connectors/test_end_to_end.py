"""Real jobs on Spark from Kafka to Kafka and PostgreSQL: read as committed, the output is exact whatever is killed."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker, running_broker
from tests.connectors.database import Database, running_database
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import Feeder, counted, restarted, under_fire
from tests.spark.recovery_kit import assert_exact, with_checkpoints
from tidegate.datastream.connectors.postgres import PostgresSink

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


KILLS = 4


# Together with the kills of `test_outages.py`, every way has been at several parallelisms, aligned and unaligned.
@pytest.mark.parametrize(("parallelism", "unaligned"), [(4, True)])
def test_kafka_to_state_to_kafka_is_exact_under_kills(
    make_env: Any, name: str, tmp_path: Path, parallelism: int, unaligned: bool
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with running_broker() as broker:
        broker.create_topic(f"{name}-in", 3)
        out = broker.create_topic(f"{name}-out", 2)
        feeder = Feeder(broker, f"{name}-in", 30_000, 3000, 3, held_back=2000).start()
        env = with_checkpoints(make_env(parallelism), tmp_path, interval_ms=200)
        if unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        sink = builder(broker, out).set_transactional_id_prefix(f"{name}-tx").build()
        counted(env, feeder).sink_to(sink).uid("out")
        client = env.execute_async(name)
        killed = under_fire(client, random.Random(seed), KILLS, {"broker": restarted(broker)}, feeder.release)
        print(dict(killed))
        assert {*killed} == {"broker", "worker"}
        assert sum(killed.values()) == KILLS
        assert_exact(Counter(broker.values(out)), feeder.records)


@pytest.mark.parametrize(("how", "parallelism", "unaligned"), [("append", 2, True), ("upsert", 1, False)])
def test_kafka_to_postgres_is_exact_under_kills(
    make_env: Any, broker: Broker, name: str, tmp_path: Path, how: str, parallelism: int, unaligned: bool
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with running_database() as database:
        key = "PRIMARY KEY (line)" if how == "upsert" else "n int8 GENERATED ALWAYS AS IDENTITY"
        database.execute(f"CREATE TABLE {name} (line text, {key})")
        broker.create_topic(name, 2)
        feeder = Feeder(broker, name, 24_000, 2000, 2, held_back=2000).start()
        env = with_checkpoints(make_env(parallelism), tmp_path, interval_ms=200)
        if unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        build = PostgresSink.builder().set_url(database.url).set_table(name).set_columns("line")
        counted(env, feeder).map(lambda line: (line,)).sink_to((build.upsert() if how == "upsert" else build).build())
        client, outside = env.execute_async(name), {"database": restarted(database)}
        killed = under_fire(client, random.Random(seed), KILLS, outside, feeder.release)
        print(dict(killed))
        assert {*killed} == {"database", "worker"}
        assert sum(killed.values()) == KILLS
        assert_exact(Counter(line for (line,) in database.execute(f"SELECT line FROM {name}")), feeder.records)
        assert database.execute("SELECT gid FROM pg_prepared_xacts") == []


def run_example(name: str, *arguments: str) -> None:
    """In a process of its own, as a user does."""
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_examples_run(broker: Broker, database: Database, name: str) -> None:
    broker.create_topic(f"{name}-lines", 2)
    broker.create_topic(f"{name}-counts", 2)
    broker.produce(f"{name}-lines", ["to be or", "not to be"])
    servers = ["--bootstrap-servers", broker.bootstrap_servers]
    run_example("kafka_word_count.py", *servers, "--from", f"{name}-lines", "--to", f"{name}-counts")
    assert sorted(broker.values(f"{name}-counts")) == ["be 1", "be 2", "not 1", "or 1", "to 1", "to 2"]
    broker.create_topic(f"{name}-changes")
    broker.produce(f"{name}-changes", ["a=1", "b=1", "a=2", "b=", "c=3"])
    database.execute(f"CREATE TABLE {name} (key text PRIMARY KEY, value text)")
    changes = ["--from", f"{name}-changes", "--url", database.url, "--to", name]
    run_example("kafka_to_postgres.py", *servers, *changes)
    assert database.psql(f"SELECT * FROM {name} ORDER BY key") == "a|2\nc|3\n"


def test_the_example_of_totals_runs(spark: Any, database: Database, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has a Spark already."""
    database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, customer text, amount int8)")
    database.execute(f"INSERT INTO {name} SELECT n, 'c' || mod(n, 3), n FROM generate_series(1, 100) n")
    database.execute(f"CREATE TABLE {name}_totals (customer text, total int8)")
    monkeypatch.setattr(sys, "argv", ["x", "--url", database.url, "--from", name, "--to", f"{name}_totals"])
    runpy.run_path(str(ROOT / "examples" / "postgres_totals.py"), run_name="__main__")
    assert database.psql(f"SELECT * FROM {name}_totals ORDER BY 1") == "c0|1683\nc1|1717\nc2|1650\n"


def test_a_bounded_job_in_batch_mode_reads_and_writes_kafka(make_env: Any, broker: Broker, name: str) -> None:
    from tests.connectors.test_kafka_source import of
    from tidegate.common import WatermarkStrategy
    from tidegate.datastream import RuntimeExecutionMode
    from tidegate.datastream.connectors.kafka import KafkaOffsetsInitializer

    broker.create_topic(f"{name}-in", 2)
    out = broker.create_topic(f"{name}-out", 2)
    broker.produce(f"{name}-in", list(range(1000)))
    env = make_env(2).set_runtime_mode(RuntimeExecutionMode.BATCH)
    source = of(broker, f"{name}-in").set_bounded(KafkaOffsetsInitializer.latest()).build()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "in")
    stream.map(lambda text: f"<{text}>").sink_to(builder(broker, out).set_transactional_id_prefix(name).build())
    env.execute(name)
    assert Counter(broker.values(out)) == Counter(f"<{n}>" for n in range(1000))


def test_a_batch_job_is_refused_before_it_starts_when_a_sink_cannot_be_written(
    make_env: Any, broker: Broker, database: Database, name: str
) -> None:
    from tidegate.common.errors import ConfigurationError, JobGraphError, TidegateError
    from tidegate.datastream import RuntimeExecutionMode

    broker.create_topic(name)
    database.execute(f"CREATE TABLE {name} (line text)")
    rows = PostgresSink.builder().set_url(database.url)
    prefixed = builder(broker, name).set_transactional_id_prefix(name).build()
    for sinks, error, text in [
        ([builder(broker, f"{name}-none").build()], TidegateError, f"no topic '{name}-none'"),
        ([rows.set_table(name).set_columns("other").build()], TidegateError, "other"),
        ([rows.set_table(name).set_columns("line").upsert().build()], ConfigurationError, "has no primary key"),
        ([prefixed, prefixed], JobGraphError, f"transactional id prefix '{name}'"),
    ]:
        env = make_env(1).set_runtime_mode(RuntimeExecutionMode.BATCH)
        for sink in sinks:
            env.from_collection(["a"]).sink_to(sink)
        with pytest.raises(error, match=text):
            env.execute(name)


def test_two_sinks_with_one_prefix_are_refused(make_env: Any, broker: Broker, name: str) -> None:
    from tidegate.common.errors import JobGraphError

    broker.create_topic(name)
    env = make_env(1)
    stream = env.from_collection(["a"])
    for _ in range(2):
        stream.sink_to(builder(broker, name).set_transactional_id_prefix(name).build())
    with pytest.raises(JobGraphError, match=f"transactional id prefix '{name}'"):
        env.execute(name)


def test_the_old_names_read_and_write(make_env: Any, broker: Broker, name: str, tmp_path: Path) -> None:
    from tidegate.common.serialization import SimpleStringSchema
    from tidegate.datastream.connectors.kafka import FlinkKafkaConsumer, FlinkKafkaProducer, Semantic

    broker.create_topic(f"{name}-in", 2)
    out = broker.create_topic(f"{name}-out")
    broker.produce(f"{name}-in", list(range(100)))
    properties = {"bootstrap.servers": broker.bootstrap_servers, "group.id": name}
    env = with_checkpoints(make_env(1), tmp_path, interval_ms=200)
    consumer = FlinkKafkaConsumer(f"{name}-in", SimpleStringSchema(), properties).set_start_from_earliest()
    producer = FlinkKafkaProducer(
        out, SimpleStringSchema(), {"bootstrap.servers": broker.bootstrap_servers}, semantic=Semantic.EXACTLY_ONCE
    )
    env.add_source(consumer).add_sink(producer)
    client = env.execute_async(name)
    from tests.spark.recovery_kit import until

    until(lambda: len(broker.values(out)) >= 100, "the records")
    client.cancel().result()
    assert sorted(broker.values(out), key=int) == [str(n) for n in range(100)]
