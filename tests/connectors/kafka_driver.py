"""A driver program of its own, and a hand that kills it: counts from Kafka into Kafka, exactly once.

python -m tests.connectors.kafka_driver SERVERS IN RECORDS PARTITIONS OUT CHECKPOINTS [SNAPSHOT]
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.connectors.broker import Broker
from tests.connectors.kafka_kit import builder
from tests.connectors.kills import Feeder, counted
from tests.connectors.on_processes import environment, processes_for_spark, run_job
from tests.spark.recovery_kit import assert_exact, latest_checkpoint, until, with_checkpoints


def counting_job(env: Any, servers: str, topic: str, records: int, partitions: int, out: str) -> None:
    broker: Any = SimpleNamespace(bootstrap_servers=servers)
    feeder = Feeder(broker, topic, records, 1, partitions)
    counted(env, feeder).sink_to(builder(broker, out).set_transactional_id_prefix(f"{out}-tx").build()).uid("out")


def run_with_killed_drivers(broker: Broker, name: str, folder: Path, kills: int, rng: random.Random) -> None:
    """Each next driver goes on from the latest checkpoint; the last one is not killed, and the output is exact."""
    broker.create_topic(f"{name}-in", 2)
    out = broker.create_topic(f"{name}-out", 2)
    feeder = Feeder(broker, f"{name}-in", 12_000 * kills, 3000, 2, held_back=2000).start()
    job = (broker.bootstrap_servers, f"{name}-in", feeder.records, 2, out)
    snapshot: Path | None = None
    for run in range(kills):
        checkpoints = folder / str(run)
        process = _start(*job, checkpoints, *([] if snapshot is None else [snapshot]))
        try:
            until(lambda mine=checkpoints: list(mine.glob("*/chk-*/_metadata")), f"a checkpoint of driver {run}", 90)
            assert process.poll() is None
            time.sleep(rng.uniform(0.0, 2.0))
        finally:
            process.kill()
            process.wait()
        snapshot = latest_checkpoint(checkpoints)
    feeder.release()
    env = environment(2, {"execution.state-recovery.path": str(snapshot)})
    with_checkpoints(env, folder / "last", interval_ms=200)
    counting_job(env, *job)
    run_job(env)
    assert_exact(Counter(broker.values(out)), feeder.records)


def _start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.connectors.kafka_driver", *map(str, arguments)]
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


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
