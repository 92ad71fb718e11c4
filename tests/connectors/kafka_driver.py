"""A driver program of its own, and a hand that kills it: counts from Kafka, or from the changes of a table, into Kafka
or a table, exactly once.

python -m tests.connectors.kafka_driver JOB CHECKPOINTS [SNAPSHOT]     (JOB: a `DriverJob`, as JSON)
"""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from tests.connectors.broker import Broker
from tests.connectors.database import Database
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import ChangedTable, Feeder, count_changes, counted
from tests.connectors.on_processes import environment, processes_for_spark, run_job, start_job
from tests.spark.recovery_kit import assert_exact, is_alive, kill, latest_checkpoint, until, with_checkpoints
from tidegate.datastream.connectors.postgres import PostgresSink

PARTITIONS = 2


def counting_job(env: Any, servers: str, topic: str, records: int, partitions: int, out: str) -> None:
    broker: Any = SimpleNamespace(bootstrap_servers=servers)
    feeder = Feeder(broker, topic, records, 1, partitions)
    counted(env, feeder).sink_to(builder(broker, out).set_transactional_id_prefix(f"{out}-tx").build()).uid("out")


@dataclasses.dataclass(frozen=True)
class DriverJob:
    """What every driver of a test runs. `how`: as in the soak's list."""

    how: str
    parallelism: int
    unaligned: bool
    servers: str
    url: str
    source: str  # a topic, or a table
    out: str
    records: int

    def environment(self, checkpoints: Path, snapshot: str) -> Any:
        env = environment(self.parallelism, {"execution.state-recovery.path": snapshot} if snapshot else {})
        with_checkpoints(env, checkpoints, interval_ms=200)
        if self.unaligned:
            env.get_checkpoint_config().enable_unaligned_checkpoints()
        if self.how == "to kafka":
            counting_job(env, self.servers, self.source, self.records, PARTITIONS, self.out)
        elif self.how == "changes to a table":
            count_changes(env, self.url, self.source, prefix=self.source)
        else:
            feeder = Feeder(SimpleNamespace(bootstrap_servers=self.servers), self.source, self.records, 1, PARTITIONS)
            build = PostgresSink.builder().set_url(self.url).set_table(self.out).set_columns("line")
            # A driver that is started by hand has another job id: what the one before left prepared is its prefix's.
            sink = (build.upsert() if self.how == "upsert" else build.set_transaction_prefix(self.out)).build()
            counted(env, feeder).map(lambda line: (line,)).sink_to(sink).uid("out")
        return env


def run_with_killed_drivers(
    broker: Broker,
    database: Database | None,
    name: str,
    folder: Path,
    kills: int,
    rng: random.Random,
    how: str = "to kafka",
    parallelism: int = 2,
    unaligned: bool = False,
    outside: Mapping[str, Callable[[], None]] | None = None,
) -> Counter[str]:
    """Each next driver goes on from the latest checkpoint; the last one is not killed, and the output is exact. The
    database is needed unless it is `to kafka`. With `outside`, one of the workers and each of those is killed as well,
    in any order, before each driver, which may find the job as it recovers. How often what was killed."""
    url = "" if database is None else database.url
    job = DriverJob(how, parallelism, unaligned, broker.bootstrap_servers, url, name, f"{name}_out", 12_000 * kills)
    table, feeder = None, None
    if how == "changes to a table":
        assert database is not None
        table = ChangedTable(database, name, job.records, 3000).start()
    else:
        broker.create_topic(name, PARTITIONS)
        feeder = Feeder(broker, name, job.records, 3000, PARTITIONS, held_back=2000).start()
        if how == "to kafka":
            broker.create_topic(job.out, 2)
        else:
            assert database is not None
            key = "PRIMARY KEY (line)" if how == "upsert" else "n int8 GENERATED ALWAYS AS IDENTITY"
            database.execute(f"CREATE TABLE {job.out} (line text, {key})")
    snapshot = ""
    killed: Counter[str] = Counter()
    for run in range(kills):
        checkpoints = folder / str(run)
        process = _start(job, checkpoints, snapshot)
        try:
            until(lambda mine=checkpoints: list(mine.glob("*/chk-*/_metadata")), f"a checkpoint of driver {run}", 90)
            if outside is not None:
                killed += _kill_others(process.pid, rng, outside, checkpoints)
            time.sleep(rng.uniform(0.0, 2.0))
            assert process.poll() is None, f"driver {run} has ended by itself"
            killed["driver"] += 1
        finally:
            process.kill()
            process.wait()
        snapshot = str(latest_checkpoint(checkpoints))
    env = job.environment(folder / "last", snapshot)
    if table is not None:
        assert_exact(table.wait(start_job(env)), job.records)
        return killed
    assert feeder is not None
    feeder.release()
    run_job(env)
    if how == "to kafka":
        assert_exact(Counter(broker.values(job.out)), job.records)
    elif database is not None:
        assert_exact(Counter(line for (line,) in database.execute(f"SELECT line FROM {job.out}")), job.records)
        assert not database.execute("SELECT 1 FROM pg_prepared_xacts WHERE starts_with(gid, %s)", job.out)
    return killed


def _kill_others(
    driver: int, rng: random.Random, outside: Mapping[str, Callable[[], None]], checkpoints: Path
) -> Counter[str]:
    def number() -> int:
        return int(latest_checkpoint(checkpoints).name.removeprefix("chk-"))

    def kill_a_worker() -> bool:
        """Those of `on_processes` are the children of a forkserver, which is the driver's."""
        workers = [c.pid for c in psutil.Process(driver).children(recursive=True) if c.ppid() != driver]
        alive = [pid for pid in workers if is_alive(pid)]
        if alive:
            kill(rng.choice(alive), signal.SIGKILL)
        return bool(alive)

    targets = ["worker", *outside]
    rng.shuffle(targets)
    for what in targets:
        if what == "worker":
            until(kill_a_worker, "a worker of the driver", 90)
        else:
            outside[what]()
        if rng.random() < 0.5:  # else the next one is killed while the job recovers from this
            seen = number()
            until(lambda seen=seen: number() > seen, f"a checkpoint after a kill of the {what}", 90)
    return Counter(targets)


def _start(job: DriverJob, checkpoints: Path, snapshot: str) -> subprocess.Popen[bytes]:
    arguments = [json.dumps(dataclasses.asdict(job)), str(checkpoints), *filter(None, [snapshot])]
    command = [sys.executable, "-m", "tests.connectors.kafka_driver", *arguments]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(job: str, checkpoints: str, snapshot: str = "") -> None:
    env = DriverJob(**json.loads(job)).environment(Path(checkpoints), snapshot)
    with processes_for_spark():
        run_job(env, 600)


if __name__ == "__main__":
    main(*sys.argv[1:])
