"""The places outside that jobs of the soak write to: folders, a real Kafka, a real PostgreSQL. Each run has its own."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

from tests.connectors.broker import Broker, running_broker
from tests.connectors.cache import UnavailableError
from tests.connectors.database import Database, running_database
from tests.spark.chaos_jobs.soak_job import KEYS, RECORDS, WITH_TARGETS, target_of
from tests.spark.recovery_kit import visible_lines

_INPUT = "soak-input"
_PARTITIONS = 2


class Targets(contextlib.ExitStack):
    """Inside `with`: starts what there is; `kinds` are the jobs that can be run with it."""

    def __enter__(self) -> Targets:
        super().__enter__()
        self._broker: Broker | None = None
        self._database: Database | None = None
        try:
            self._broker = self.enter_context(running_broker())
            self._database = self.enter_context(running_database())
        except UnavailableError as error:
            print(f"left out: {error}", flush=True)
        if self._broker is not None:
            self._broker.create_topic(_INPUT, _PARTITIONS)
            for partition in range(_PARTITIONS):
                numbers = range(partition, RECORDS, _PARTITIONS)
                self._broker.produce(_INPUT, [f"k{i % KEYS}" for i in numbers], partition)
            os.environ["SOAK_KAFKA"] = f"{self._broker.bootstrap_servers} {_INPUT}"
        if self._database is not None:
            os.environ["SOAK_POSTGRES"] = self._database.url
        return self

    @property
    def kinds(self) -> tuple[str, ...]:
        there = {"files": True, "kafka": self._broker is not None, "postgres": self._database is not None}
        return tuple(kind for kind in WITH_TARGETS if there[kind])

    def make(self, kind: str, folder: str) -> None:
        """For a run that will have this folder."""
        if kind == "kafka":
            assert self._broker is not None
            self._broker.create_topic(target_of(folder), _PARTITIONS)
        elif kind == "postgres":
            assert self._database is not None
            self._database.execute(f"CREATE TABLE {target_of(folder)} (line text)")

    def lost_and_doubled(self, kind: str, folder: str) -> tuple[int, int]:
        """What a reader of the target sees, against what has to be there."""
        found = self._found(kind, folder)
        expected = Counter(f"k{i % KEYS} {i // KEYS + 1}" for i in range(RECORDS))
        return (expected - found).total(), (found - expected).total()

    def _found(self, kind: str, folder: str) -> Counter[str]:
        if kind == "kafka":
            assert self._broker is not None
            return Counter(self._broker.values(target_of(folder)))
        if kind == "postgres":
            assert self._database is not None
            return Counter(line for (line,) in self._database.execute(f"SELECT line FROM {target_of(folder)}"))
        return visible_lines(Path(folder) / "out")
