"""What is away for a while, for good, or full: drivers, brokers, databases, and savepoints that were left alone.

Those that take minutes or need rights run with `make soak-connectors`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.database import Database, running_database
from tests.connectors.kafka_driver import counting_job
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import SOAK, Feeder, counted, feed, restarted
from tests.connectors.on_processes import environment, run_job, start_job
from tests.spark.recovery_kit import (
    CountPerKey,
    assert_exact,
    completed,
    key_of,
    kill,
    latest_checkpoint,
    until,
    with_checkpoints,
)
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.job_status import JobStatus
from tidegate.datastream.connectors.postgres import PostgresChangeSource, PostgresSink

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("on_processes")]


# ---------------------------------------------------------------- the driver


def start_driver(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.connectors.kafka_driver", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=SOAK)])
def test_kafka_to_state_to_kafka_is_exact_when_drivers_are_killed(
    broker: Broker, name: str, tmp_path: Path, kills: int
) -> None:
    """Each next one goes on from the latest checkpoint; the last one is not killed."""
    broker.create_topic(f"{name}-in", 2)
    out = broker.create_topic(f"{name}-out", 2)
    feeder = Feeder(broker, f"{name}-in", 12_000 * kills, 3000, 2, held_back=2000).start()
    job = (broker.bootstrap_servers, f"{name}-in", feeder.records, 2, out)
    snapshot: Path | None = None
    for run in range(kills):
        folder = tmp_path / str(run)
        process = start_driver(*job, folder, *([] if snapshot is None else [snapshot]))
        try:
            until(lambda folder=folder: list(folder.glob("*/chk-*/_metadata")), f"a checkpoint of driver {run}", 90)
            assert process.poll() is None
            time.sleep(random.uniform(0.0, 2.0))
        finally:
            process.kill()
            process.wait()
        snapshot = latest_checkpoint(folder)
    feeder.release()
    env = environment(2, {"execution.state-recovery.path": str(snapshot)})
    with_checkpoints(env, tmp_path / "last", interval_ms=200)
    counting_job(env, *job)
    run_job(env)
    assert_exact(Counter(broker.values(out)), feeder.records)


# ---------------------------------------------------------------- changes of a table


def test_postgres_changes_to_state_to_postgres_is_exact_under_kills(name: str, tmp_path: Path) -> None:
    """Rows are inserted while workers and the database are killed; each inserts once, whatever it is told."""
    records = 6000
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, line text)")
        database.execute(f"CREATE TABLE {name}_out (line text, n int8 GENERATED ALWAYS AS IDENTITY)")
        writer = threading.Thread(target=insert, args=(database, name, records), daemon=True)
        source = PostgresChangeSource.builder().set_url(database.url).set_table(name).set_slot(name).build()
        sink = PostgresSink.builder().set_url(database.url).set_table(f"{name}_out").set_columns("line").build()
        env = with_checkpoints(environment(2), tmp_path, interval_ms=200)
        rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "changes").uid("changes")
        counts = rows.map(lambda row: row.line, Types.STRING()).key_by(lambda line: line)
        counts.process(CountPerKey(), Types.STRING()).uid("count").map(lambda line: (line,)).sink_to(sink).uid("out")
        client = start_job(env)
        writer.start()
        for strike in (None, restarted(database), None):
            seen = len(completed(client))
            until(lambda seen=seen: len(completed(client)) > seen, "a checkpoint", 90)
            if strike is None:
                kill(random.choice(until(client.workers, "workers")).pid, 9)
            else:
                strike()

        def written() -> int:
            try:
                return int(database.execute(f"SELECT count(*) FROM {name}_out")[0][0])
            except Exception:
                return 0

        until(lambda: written() >= records, "all rows", 120)
        client.cancel().result()
        found = Counter(line for (line,) in database.execute(f"SELECT line FROM {name}_out"))
        assert_exact(found, records)


def insert(database: Database, table: str, records: int) -> None:
    at = 0
    while at < records:
        try:
            at = int(database.execute(f"SELECT count(*) FROM {table}")[0][0])  # what was committed before a crash
            while at < records:
                rows = [(n, key_of(n)) for n in range(at, min(at + 20, records))]
                values = ", ".join(f"({n}, '{key}')" for n, key in rows)
                database.execute(f"INSERT INTO {table} VALUES {values}")
                at += len(rows)
        except Exception:
            time.sleep(0.1)


# ---------------------------------------------------------------- savepoints with open transactions


def saved_and_abandoned(env: Any, folder: Path) -> str:
    """A savepoint whose transactions nobody has committed: nothing was completed after it."""
    client = start_job(env)
    until(lambda: client.get_job_status().result() is JobStatus.RUNNING, "the job")
    time.sleep(1.0)  # records are read and written
    path = client.trigger_savepoint(str(folder)).result()
    client.cancel().result()
    return str(path)


def test_rescaling_over_savepoints_commits_what_was_open_in_them(broker: Broker, name: str, tmp_path: Path) -> None:
    topic, out = broker.create_topic(f"{name}-in", 4), broker.create_topic(f"{name}-out", 2)
    places = [(topic, n) for n in range(4)]
    saved, written = "", 0
    for run, parallelism in enumerate((2, 3, 1)):
        feed(broker, places, range(run * 4000, (run + 1) * 4000))  # before the last run it cannot end by itself
        env = environment(parallelism, {"execution.state-recovery.path": saved} if saved else {})
        interval = 200 if parallelism == 1 else 3_600_000  # but for the last run, only savepoints
        with_checkpoints(env, tmp_path / str(parallelism), interval_ms=interval)
        counting_job(env, broker.bootstrap_servers, topic, 12_000, 4, out)
        if parallelism == 1:
            run_job(env)
        else:
            saved = saved_and_abandoned(env, tmp_path / f"savepoints-{parallelism}")
            before, written = written, len(broker.values(out, committed=False))
            assert written > before  # and open
    assert_exact(Counter(broker.values(out)), 12_000)


def test_a_savepoint_that_is_older_than_its_transactions_may_become_is_refused(
    broker: Broker, name: str, tmp_path: Path
) -> None:
    broker.create_topic(f"{name}-in", 1)
    out = broker.create_topic(f"{name}-out", 1)
    feeder = Feeder(broker, f"{name}-in", 1000, 2000, 1)
    broker.produce(feeder.topic, [key_of(n) for n in range(1000)])

    def job(config: dict[str, Any]) -> Any:
        env = with_checkpoints(environment(1, config), tmp_path / "checkpoints", interval_ms=3_600_000, restarts=0)
        build = builder(broker, out).set_transactional_id_prefix(f"{name}-tx")
        counted(env, feeder).sink_to(build.set_property("transaction.timeout.ms", "6000").build()).uid("out")
        return env

    feeder.records += 1  # a record that never comes: the job does not end by itself
    saved = saved_and_abandoned(job({}), tmp_path / "savepoint")
    open_records = len(broker.values(out, committed=False))
    assert open_records
    time.sleep(8)  # the broker has given up on it
    with pytest.raises(Exception, match=r"transaction\.timeout\.ms"):
        run_job(job({"execution.state-recovery.path": saved}))
    assert broker.values(out) == []


# ---------------------------------------------------------------- away, and full


@pytest.mark.parametrize("megabytes", [pytest.param(6, marks=SOAK)])
def test_a_full_disk_of_the_database_loses_nothing(broker: Broker, name: str, tmp_path: Path, megabytes: int) -> None:
    """A tablespace on a file system of a few megabytes. When there is room again, the job comes through."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", str(small)]).returncode:
        pytest.skip("a small file system cannot be mounted here: needs root")
    try:
        with running_database() as database:
            room = small / "space"
            room.mkdir()
            room.chmod(0o777)
            if os.getuid() == 0:
                import pwd

                nobody = pwd.getpwnam("nobody")
                os.chown(room, nobody.pw_uid, nobody.pw_gid)
            for folder in (tmp_path, *tmp_path.parents):
                if folder != Path("/") and folder != Path("/tmp"):
                    folder.chmod(folder.stat().st_mode | 0o011)
            database.execute(f"CREATE TABLESPACE small LOCATION '{room}'")
            padded = "line text, pad text DEFAULT repeat('x', 200)"
            database.execute(f"CREATE TABLE {name} ({padded}) TABLESPACE small")
            broker.create_topic(name, 2)
            feeder = Feeder(broker, name, 60_000, 6000, 2).start()
            env = with_checkpoints(environment(2), tmp_path / "checkpoints", interval_ms=300, restarts=1000)
            build = PostgresSink.builder().set_url(database.url).set_table(name).set_columns("line")
            counted(env, feeder).map(lambda line: (line,)).sink_to(build.build())
            client = start_job(env)
            until(client.failures, "the disk to be full", 120)
            said = client.failures()[0].failure.summary
            assert "No space left on device" in said, said
            assert subprocess.run(["mount", "-o", "remount,size=200m", str(small)]).returncode == 0
            client.get_job_execution_result().result()
            assert_exact(Counter(line for (line,) in database.execute(f"SELECT line FROM {name}")), feeder.records)
    finally:
        subprocess.run(["umount", "-l", str(small)])
