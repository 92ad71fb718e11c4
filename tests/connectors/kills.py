"""Jobs from Kafka and from a table whose output tells what was lost and what was doubled; a hand that kills workers,
broker and database under them at random moments."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from tests.connectors.broker import Broker
from tests.connectors.database import Database
from tests.spark.recovery_kit import CountPerKey, completed, is_alive, key_of, kill, until
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.serialization import SimpleStringSchema
from tidegate.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource, KafkaTopicPartition
from tidegate.datastream.connectors.postgres import PostgresChangeSource, PostgresSink

SOAK = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("TIDEGATE_SOAK"), reason="make soak-connectors runs it"),
]
"""For what takes a minute, or needs more than the tests of this folder start."""


class Feeder:
    """Writes record i to partition i modulo `partitions`, at a steady rate, whatever happens to the broker: each once,
    in order, so that the stop of the source is known before anything is written. The last `held_back` records wait for
    `release`: until then no job that reads them can end."""

    def __init__(
        self, broker: Broker, topic: str, records: int, per_second: float, partitions: int, held_back: int = 0
    ) -> None:
        self._broker, self.topic, self.records, self.partitions = broker, topic, records, partitions
        self._per_second = per_second
        self._held_back = held_back
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def start(self) -> Feeder:
        self._thread.start()
        return self

    def release(self) -> None:
        self._released.set()

    def _feed(self) -> None:
        from confluent_kafka import Producer

        settings = {"bootstrap.servers": self._broker.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
        producer = Producer({**settings, "message.timeout.ms": 600_000})
        began = time.monotonic()
        for i in range(self.records):
            if self._held_back and i == self.records - self._held_back:
                producer.flush(600)
                self._released.wait()
            if (ahead := began + i / self._per_second - time.monotonic()) > 0:
                time.sleep(ahead)
            producer.produce(self.topic, key_of(i), partition=i % self.partitions)
            producer.poll(0)
        producer.flush(600)

    def source(self) -> KafkaSource:
        share = [len(range(n, self.records, self.partitions)) for n in range(self.partitions)]
        stops = {KafkaTopicPartition(self.topic, n): count for n, count in enumerate(share)}
        return (
            KafkaSource.builder()
            .set_bootstrap_servers(self._broker.bootstrap_servers)
            .set_topics(self.topic)
            .set_group_id(f"{self.topic}-group")
            .set_value_only_deserializer(SimpleStringSchema())
            .set_unbounded(KafkaOffsetsInitializer.offsets(stops))
            .build()
        )


def feed(broker: Broker, places: list[tuple[str, int]], numbers: range) -> None:
    """Writes the keys of these records to topics and partitions, in turn."""
    keys: dict[tuple[str, int], list[str]] = {place: [] for place in places}
    for turn, number in enumerate(numbers):
        keys[places[turn % len(places)]].append(key_of(number))
    for (topic, partition), mine in keys.items():
        broker.produce(topic, mine, partition)


def read_whole(broker: Broker, topic: str, records: int, timeout_s: float = 90) -> Counter[str]:
    """What is committed in a topic, when there are so many records, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    while len(values := broker.values(topic)) < records and time.monotonic() < deadline:
        time.sleep(1)
    return Counter(values)


def restarted(thing: Any) -> Callable[[], None]:
    """A broker or a database: killed and started again."""

    def restart() -> None:
        thing.kill()
        thing.start()

    return restart


def counted(env: Any, feeder: Feeder) -> Any:
    stream = env.from_source(feeder.source(), WatermarkStrategy.no_watermarks(), "in", Types.STRING()).uid("in")
    return stream.key_by(lambda key: key).process(CountPerKey(), Types.STRING()).uid("count")


def count_changes(env: Any, url: str, table: str, prefix: str = "") -> None:
    """Per key, into another table."""
    source = PostgresChangeSource.builder().set_url(url).set_table(table).set_slot(table).build()
    build = PostgresSink.builder().set_url(url).set_table(f"{table}_out").set_columns("line")
    sink = (build.set_transaction_prefix(prefix) if prefix else build).build()
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "changes").uid("changes")
    counts = rows.map(lambda row: row.line, Types.STRING()).key_by(lambda line: line)
    counts.process(CountPerKey(), Types.STRING()).uid("count").map(lambda line: (line,)).sink_to(sink).uid("out")


class ChangedTable:
    """A table that rows are inserted into, one after the other and each once, whatever happens to the database; a job
    that counts them per key into another table. The job does not end by itself: `wait` until all is there."""

    def __init__(self, database: Database, name: str, records: int, per_second: float = 2000) -> None:
        self._database, self.name, self.records, self._per_second = database, name, records, per_second
        database.execute(f"CREATE TABLE {name} (id int8 PRIMARY KEY, line text)")
        database.execute(f"CREATE TABLE {name}_out (line text, n int8 GENERATED ALWAYS AS IDENTITY)")
        self._thread = threading.Thread(target=self._insert, daemon=True)

    def start(self) -> ChangedTable:
        self._thread.start()
        return self

    def _insert(self) -> None:
        at, began = 0, time.monotonic()
        while at < self.records:
            try:
                at = int(self._database.execute(f"SELECT count(*) FROM {self.name}")[0][0])  # committed before a crash
                while at < self.records:
                    rows = [(n, key_of(n)) for n in range(at, min(at + 20, self.records))]
                    values = ", ".join(f"({n}, '{key}')" for n, key in rows)
                    self._database.execute(f"INSERT INTO {self.name} VALUES {values}")
                    at += len(rows)
                    time.sleep(max(0.0, began + at / self._per_second - time.monotonic()))
            except Exception:
                time.sleep(0.1)

    def counted_into(self, env: Any) -> None:
        count_changes(env, self._database.url, self.name)

    def wait(self, client: Any, timeout_s: float = 120) -> Counter[str]:
        """The lines of the other table, when all are there; ends the job."""

        def written() -> bool:
            try:
                return int(self._database.execute(f"SELECT count(*) FROM {self.name}_out")[0][0]) >= self.records
            except Exception:
                return False

        until(written, f"{self.records} rows of {self.name}", timeout_s)
        client.cancel().result()
        lines = Counter(line for (line,) in self._database.execute(f"SELECT line FROM {self.name}_out"))
        self._database.execute("SELECT pg_drop_replication_slot(%s)", self.name)
        return lines


def plan_of_kills(rng: random.Random, kills: int, outside: Iterable[str]) -> list[str]:
    """What is killed, in which order: of two or more, at least one worker and one of `outside`."""
    names = sorted(outside)
    plan = [rng.choice(names) if names and rng.random() < 0.4 else "worker" for _ in range(kills)]
    for needed in (names, ["worker"]):
        if len(plan) > 1 and needed and not set(needed) & set(plan):
            plan[rng.randrange(len(plan))] = rng.choice(needed)
    return plan


def strike(client: Any, rng: random.Random, kills: int, outside: Mapping[str, Callable[[], None]]) -> Counter[str]:
    """Kill a worker, or something of `outside`, again and again while the job runs, so often: it must be one that
    cannot end meanwhile. How often what was killed."""
    result = client.get_job_execution_result()
    done: Counter[str] = Counter()
    for what in plan_of_kills(rng, kills, outside):
        seen = len(completed(client))
        patience = time.monotonic() + rng.uniform(0.2, 1.5)
        # Between two kills the job gets somewhere, mostly: a complete checkpoint, or a moment.
        while time.monotonic() < patience or (len(completed(client)) == seen and time.monotonic() < patience + 15):
            if result.done():
                break
            time.sleep(0.02)
        if what == "worker":
            until(lambda: result.done() or _kill_a_worker(client, rng), "a worker that lives")
        elif not result.done():
            outside[what]()
        assert not result.done(), f"the job has ended before all was killed, after {dict(done)}: {result.result()}"
        done[what] += 1
    return done


def _kill_a_worker(client: Any, rng: random.Random) -> bool:
    """False: there is none, or it has just ended by itself."""
    alive = [worker.pid for worker in client.workers() if is_alive(worker.pid)]
    if alive:
        kill(rng.choice(alive), signal.SIGKILL)
    return bool(alive)


def under_fire(
    client: Any,
    rng: random.Random,
    kills: int,
    outside: Mapping[str, Callable[[], None]],
    release: Callable[[], None],
    timeout_s: float = 100,
) -> Counter[str]:
    """`strike`, then `release` what holds the job open, and wait for its end."""
    done, result = strike(client, rng, kills, outside), client.get_job_execution_result()
    release()
    deadline = time.monotonic() + timeout_s
    while not result.done():
        assert time.monotonic() < deadline, (
            f"the job has not ended after {dict(done)}, status {client.get_job_status().result()}"
        )
        time.sleep(0.05)
    result.result()
    return done
