"""The benchmarks of the connectors follow the code that they measure: each of their parts runs, with a few records."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks import connectors, kafka_pipeline
from tests.connectors.broker import Broker
from tests.connectors.database import Database
from tests.connectors.on_processes import run_job

RECORDS = 2 * connectors.BATCH


def test_every_part_of_the_comparison_with_kafka_runs(broker: Broker, name: str) -> None:
    topic = broker.create_topic(name, 2)
    broker.produce(topic, [connectors.VALUE] * RECORDS)
    pairs = list(connectors.kafka_pairs(broker, topic, RECORDS))
    assert len(pairs) == 3
    for what, bare, ours, _ in pairs:
        assert bare() > 0.0, what
        assert ours() > 0.0, what


def test_every_part_of_the_comparison_with_postgresql_runs(database: Database) -> None:
    pairs = list(connectors.postgres_pairs(database, RECORDS))
    assert len(pairs) == 2
    for what, bare, ours, _ in pairs:
        assert bare() > 0.0, what
        assert ours() > 0.0, what


@pytest.mark.usefixtures("on_processes")
def test_the_pipeline_from_kafka_to_kafka_runs_and_its_records_arrive_with_their_age(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_pipeline, "PER_SECOND", 200)
    topic, out = kafka_pipeline._topics(broker)
    kafka_pipeline._produce(broker, topic, 1)
    env = kafka_pipeline._job(broker, topic, out, 100, bounded=True)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(tmp_path))
    run_job(env)
    ages: list[float] = []
    over = threading.Event()
    reader = threading.Thread(target=kafka_pipeline._read, args=(broker, out, ages, over))
    reader.start()
    try:
        while reader.is_alive() and len(ages) < 200:
            over.wait(0.02)
    finally:
        over.set()
        reader.join()
    assert len(ages) == 200
    assert min(ages) > 0.0
