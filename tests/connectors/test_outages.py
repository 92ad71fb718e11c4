"""What is away for a while, for good, or full: drivers, brokers, databases, and savepoints that were left alone.

Those that take minutes or need rights run with `make soak-connectors`."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.connectors.broker import Broker, running_broker
from tests.connectors.database import Database, running_database
from tests.connectors.kafka_driver import counting_job, run_with_killed_drivers
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import SOAK, ChangedTable, Feeder, counted, feed, restarted, strike
from tests.connectors.on_processes import environment, run_job, start_job
from tests.spark.recovery_kit import assert_exact, completed, key_of, kill, until, with_checkpoints
from tidegate.common.job_status import JobStatus
from tidegate.datastream.connectors.postgres import PostgresSink

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("on_processes")]


HOWS = ("to kafka", "append", "upsert", "changes to a table")
IN_CI = [("to kafka", 2, False, 1, False), ("append", 1, False, 1, True), ("upsert", 4, True, 1, False)]
MORE = [pytest.param(how, 2, True, 6, others, marks=SOAK) for how in HOWS for others in (False, True)]


@pytest.mark.parametrize(("how", "parallelism", "unaligned", "kills", "others"), [*IN_CI, *MORE])
def test_output_is_exact_when_drivers_are_killed(
    broker: Broker,
    database: Database,
    name: str,
    tmp_path: Path,
    how: str,
    parallelism: int,
    unaligned: bool,
    kills: int,
    others: bool,
) -> None:
    """And, with `others`, its workers and the database (or broker) with them."""
    rng, outside = random.Random(), None
    if others:
        outside = {"broker": restarted(broker)} if how == "to kafka" else {"database": restarted(database)}
    killed = run_with_killed_drivers(broker, database, name, tmp_path, kills, rng, how, parallelism, unaligned, outside)
    assert killed == Counter(driver=kills) + Counter(dict.fromkeys(["worker", *outside], kills) if outside else {})


ALL_WAYS = [pytest.param(p, unaligned, 10, marks=SOAK) for p in (1, 2, 4) for unaligned in (False, True)]


@pytest.mark.parametrize(("parallelism", "unaligned", "kills"), [(4, True, 3), *ALL_WAYS])
def test_postgres_changes_to_state_to_postgres_is_exact_under_kills(
    name: str, tmp_path: Path, parallelism: int, unaligned: bool, kills: int
) -> None:
    """Rows are inserted while workers and the database are killed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with running_database() as database:
        table = ChangedTable(database, name, 2000 * kills)
        env = with_checkpoints(environment(parallelism), tmp_path, interval_ms=200)
        if unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        table.counted_into(env)
        client = start_job(env)
        table.start()
        killed = strike(client, random.Random(seed), kills, {"database": restarted(database)})
        print(dict(killed))
        assert {*killed} == {"database", "worker"}
        assert sum(killed.values()) == kills
        assert_exact(table.wait(client), table.records)


# ---------------------------------------------------------------- savepoints with open transactions


def saved_and_abandoned(env: Any, folder: Path) -> str:
    """A savepoint whose transactions nobody has committed: nothing was completed after it."""
    client = start_job(env)
    until(lambda: client.get_job_status().result() is JobStatus.RUNNING, "the job")
    time.sleep(1.0)  # records are read and written
    path = client.trigger_savepoint(str(folder)).result()
    client.cancel().result()
    return str(path)


@pytest.mark.parametrize("how", ["kafka", "append", "upsert"])
def test_rescaling_over_savepoints_commits_what_was_open_in_them(
    broker: Broker, database: Database, name: str, tmp_path: Path, how: str
) -> None:
    topic, out = broker.create_topic(f"{name}-in", 4), broker.create_topic(f"{name}-out", 2)
    places = [(topic, n) for n in range(4)]
    database.execute(f"CREATE TABLE {name} (line text{' PRIMARY KEY' if how == 'upsert' else ''})")

    def job(env: Any) -> None:
        if how == "kafka":
            counting_job(env, broker.bootstrap_servers, topic, 12_000, 4, out)
            return
        build = PostgresSink.builder().set_url(database.url).set_table(name)
        sink = (build.upsert() if how == "upsert" else build.set_transaction_prefix(name)).build()
        counted(env, Feeder(broker, topic, 12_000, 1, 4)).map(lambda line: (line,)).sink_to(sink).uid("out")

    def lines() -> list[str]:
        return broker.values(out) if how == "kafka" else [line for (line,) in database.execute(f"SELECT * FROM {name}")]

    saved, written = "", 0
    for run, parallelism in enumerate((2, 3, 1)):
        feed(broker, places, range(run * 4000, (run + 1) * 4000))  # before the last run it cannot end by itself
        env = environment(parallelism, {"execution.state-recovery.path": saved} if saved else {})
        interval = 200 if parallelism == 1 else 3_600_000  # but for the last run, only savepoints
        with_checkpoints(env, tmp_path / str(parallelism), interval_ms=interval)
        job(env)
        if parallelism == 1:
            run_job(env)
            continue
        saved = saved_and_abandoned(env, tmp_path / f"savepoints-{parallelism}")
        if how == "kafka":
            before, written = written, len(broker.values(out, committed=False))
            assert written > before  # and open
        elif how == "append":
            assert database.execute("SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, %s)", name)
        assert len(lines()) <= run * 4000  # what was read in this run is in its savepoint, or nowhere
    assert_exact(Counter(lines()), 12_000)
    assert not database.execute("SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, %s)", name)


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


@pytest.mark.parametrize("seconds", [2, pytest.param(75, marks=SOAK)])
def test_a_broker_that_is_away_is_waited_for(name: str, tmp_path: Path, seconds: int) -> None:
    """By tasks that run, and by those of an attempt that starts meanwhile: no attempt fails but by a killed worker.
    What waits does not work."""
    with running_broker() as broker:
        topic, out = broker.create_topic(f"{name}-in", 2), broker.create_topic(f"{name}-out", 2)
        feeder = Feeder(broker, topic, 12_000, 3000, 2, held_back=2000).start()
        env = with_checkpoints(environment(2), tmp_path, interval_ms=200, restarts=1)
        counting_job(env, broker.bootstrap_servers, topic, feeder.records, 2, out)
        client = start_job(env)
        until(lambda: len(completed(client)) > 2, "checkpoints", 60)
        broker.kill()
        time.sleep(seconds / 2)
        worker = client.workers()[0].pid
        kill(worker, 9)
        others = until(lambda: [w for w in client.workers() if w.pid != worker and w.attempt], "the next attempt", 60)
        before = sum(sum(psutil.Process(w.pid).cpu_times()[:2]) for w in others)
        time.sleep(seconds / 2)
        used = sum(sum(psutil.Process(w.pid).cpu_times()[:2]) for w in others) - before
        broker.start()
        feeder.release()
        client.get_job_execution_result().result(120)
        assert len(client.failures()) == 1
        assert_exact(Counter(broker.values(out)), feeder.records)
        if seconds > 60:
            print(f"{used:.1f} s of CPU in {seconds / 2:.0f} s")
            assert used < 0.2 * len(others) * seconds / 2


@pytest.mark.parametrize(
    ("how", "seconds"),
    [("append", 2), pytest.param("append", 60, marks=SOAK), pytest.param("upsert", 60, marks=SOAK)],
)
def test_a_database_that_is_away_costs_one_attempt(
    broker: Broker, name: str, tmp_path: Path, how: str, seconds: int
) -> None:
    """The one whose connections broke: the next one waits."""
    with running_database() as database:
        database.execute(f"CREATE TABLE {name} (line text{' PRIMARY KEY' if how == 'upsert' else ''})")
        broker.create_topic(name, 2)
        feeder = Feeder(broker, name, 12_000, 3000, 2, held_back=2000).start()
        env = with_checkpoints(environment(2), tmp_path, interval_ms=200, restarts=1)
        build = PostgresSink.builder().set_url(database.url).set_table(name).set_outage_timeout(300_000)
        sink = (build.upsert() if how == "upsert" else build).build()
        counted(env, feeder).map(lambda line: (line,)).sink_to(sink).uid("out")
        client = start_job(env)
        until(lambda: len(completed(client)) > 2, "checkpoints", 60)
        database.kill()
        time.sleep(seconds)
        database.start()
        feeder.release()
        client.get_job_execution_result().result(240)
        print([record.failure.summary for record in client.failures()])
        assert len(client.failures()) <= 1
        assert_exact(Counter(line for (line,) in database.execute(f"SELECT line FROM {name}")), feeder.records)


@pytest.mark.parametrize("how", [pytest.param("append", marks=SOAK), pytest.param("upsert", marks=SOAK)])
def test_a_full_disk_of_the_database_loses_nothing(broker: Broker, name: str, tmp_path: Path, how: str) -> None:
    """A tablespace on a file system of a few megabytes. When there is room again, the job comes through."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0777", "tmpfs", str(small)]).returncode:
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
            columns = "line text, pad text DEFAULT repeat('x', 200)"
            if how == "upsert":
                columns += ", PRIMARY KEY (line) USING INDEX TABLESPACE small"
            database.execute(f"CREATE TABLE {name} ({columns}) TABLESPACE small")
            broker.create_topic(name, 2)
            feeder = Feeder(broker, name, 60_000, 6000, 2).start()
            # A commit that fails is tried again; here the job is to give up on it soon.
            env = environment(2, {"tidegate.sink.commit-retries": "2"})
            with_checkpoints(env, tmp_path / "checkpoints", interval_ms=300, restarts=1000)
            build = PostgresSink.builder().set_url(database.url).set_table(name).set_columns("line")
            build = build.upsert() if how == "upsert" else build
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
