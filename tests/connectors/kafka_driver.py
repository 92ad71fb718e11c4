"""A driver program of its own, for tests that kill it: counts from Kafka into Kafka, exactly once.

python -m tests.connectors.kafka_driver SERVERS IN RECORDS PARTITIONS OUT CHECKPOINTS [SNAPSHOT]
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.connectors.kafka_kit import builder
from tests.connectors.kills import Feeder, counted
from tests.connectors.on_processes import environment, processes_for_spark, run_job
from tests.spark.recovery_kit import with_checkpoints


def counting_job(env: Any, servers: str, topic: str, records: int, partitions: int, out: str) -> None:
    broker: Any = SimpleNamespace(bootstrap_servers=servers)
    feeder = Feeder(broker, topic, records, 1, partitions)
    counted(env, feeder).sink_to(builder(broker, out).set_transactional_id_prefix(f"{out}-tx").build()).uid("out")


def main(
    servers: str, topic: str, records: str, partitions: str, out: str, checkpoints: str, snapshot: str = ""
) -> None:
    env = environment(2, {"execution.state-recovery.path": snapshot} if snapshot else {})
    with_checkpoints(env, Path(checkpoints), interval_ms=200)
    counting_job(env, servers, topic, int(records), int(partitions), out)
    with processes_for_spark():
        run_job(env, 600)


if __name__ == "__main__":
    main(*sys.argv[1:])
