"""`python -m tests.connectors.soak [--kills N] [--seed S] [--first-job N] [--without-spark]`; `make soak-connectors`.

Jobs from Kafka to Kafka and to PostgreSQL, and from a table of PostgreSQL to another, one after the other, while
workers, drivers, broker and database are killed at random moments, until there were N kills. Every job ends by
comparing its output, read as committed, with that of a run without failures. Without Spark the workers are processes of
this program (`on_processes.py`): all else is the same."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from tests.connectors.broker import Broker, running_broker
from tests.connectors.database import Database, running_database
from tests.connectors.kafka_driver import run_with_killed_drivers
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import ChangedTable, Feeder, counted, restarted, strike, under_fire
from tests.connectors.on_processes import PATIENT, processes_for_spark, start_job
from tests.spark.recovery_kit import assert_exact, with_checkpoints
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.postgres import PostgresSink

SLOTS = 4
KILLS_PER_JOB = 8
HOWS = ("to kafka", "append", "upsert", "changes to a table")
WITH_DRIVERS = "drivers and all else"
DRIVER_JOBS = [
    ("to kafka", 2, False),
    ("append", 1, False),
    ("upsert", 4, True),
    ("changes to a table", 2, True),
    ("to kafka", 4, True),
    ("append", 2, True),
]
JOBS = [
    job
    for (parallelism, unaligned), (how, *way) in zip(
        itertools.product([1, 2, 4], [False, True]), DRIVER_JOBS, strict=True
    )
    for job in [*((how, parallelism, unaligned) for how in HOWS), (f"{WITH_DRIVERS}: {how}", *way)]
]
"""What a job does, its parallelism, and whether its checkpoints are unaligned. After each four of which workers, broker
and database are killed comes one of which drivers are killed as well."""


def one_job(
    spark: Any, broker: Broker, database: Database, rng: random.Random, number: int, kills: int
) -> Counter[str]:
    name = f"s{uuid.uuid4().hex[:10]}"
    how, parallelism, unaligned = JOBS[number % len(JOBS)]
    print(f"{name}: {how}, parallelism {parallelism}, {'unaligned' if unaligned else 'aligned'}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if how.startswith(WITH_DRIVERS):
            what = how.removeprefix(f"{WITH_DRIVERS}: ")
            outside = {} if what == "changes to a table" else {"broker": restarted(broker)}
            outside |= {} if what == "to kafka" else {"database": restarted(database)}
            drivers = kills // (2 + len(outside))  # each with a worker, and each of those
            with processes_for_spark() if spark is not None else contextlib.nullcontext():
                return run_with_killed_drivers(
                    broker, database, name, folder, drivers, rng, what, parallelism, unaligned, outside
                )
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(PATIENT), spark=spark)
        with_checkpoints(env.set_parallelism(parallelism), folder, interval_ms=rng.choice([100, 300, 1000]))
        if unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        start = start_job if spark is None else (lambda env: env.execute_async(name))
        if how == "changes to a table":
            table = ChangedTable(database, name, 3000 * (kills + 2), 1000)
            table.counted_into(env)
            client = start(env)
            table.start()
            done = strike(client, rng, kills, {"database": restarted(database)})
            assert_exact(table.wait(client, 600), table.records)
            return done
        broker.create_topic(name, 4)
        feeder = Feeder(broker, name, 3000 * (kills + 2), 1000, 4, held_back=2000).start()
        stream, outside = counted(env, feeder), {"broker": restarted(broker)}
        if how == "to kafka":
            broker.create_topic(f"{name}-out", 2)
            stream.sink_to(builder(broker, f"{name}-out").set_transactional_id_prefix(f"{name}-tx").build())
        else:
            key = "PRIMARY KEY (line)" if how == "upsert" else "n int8 GENERATED ALWAYS AS IDENTITY"
            database.execute(f"CREATE TABLE {name} (line text, {key})")
            build = PostgresSink.builder().set_url(database.url).set_table(name).set_columns("line")
            build = build.upsert() if how == "upsert" else build
            stream.map(lambda line: (line,)).sink_to(build.build())
            outside["database"] = restarted(database)
        done = under_fire(start(env), rng, kills, outside, feeder.release, timeout_s=600)
    if how == "to kafka":
        lines = broker.values(f"{name}-out")
    else:
        lines = [line for (line,) in database.execute(f"SELECT line FROM {name}")]
    assert_exact(Counter(lines), feeder.records)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.connectors.soak")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--first-job", type=int, default=0, help="of the list of all ways, to go on where a run ended")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    spark = None
    if not arguments.without_spark:
        from tidegate.spark.session import obtain_session

        spark = obtain_session(Configuration.from_dict({"spark.master": f"local[{SLOTS}]"}), None, SLOTS)
    total: Counter[str] = Counter()
    jobs, began = 0, time.monotonic()
    on_what = processes_for_spark() if spark is None else contextlib.nullcontext()
    with on_what, running_broker() as broker, running_database() as database:
        while sum(total.values()) < arguments.kills:
            total.update(one_job(spark, broker, database, rng, arguments.first_job + jobs, KILLS_PER_JOB))
            jobs += 1
            seconds = time.monotonic() - began
            print(f"seed {arguments.seed}: {jobs} jobs exact, killed {dict(total)}, {seconds:.0f} s", flush=True)
    if spark is not None:
        spark.stop()


if __name__ == "__main__":
    main()
