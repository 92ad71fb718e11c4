"""Results of `execute_and_collect` that nobody reads: the job waits, and what the driver holds is bounded."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from tests.unit.micro_batch.test_jobs import World, job_watermarks, world
from tidegate.common import JobStatus
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.spark.micro_batch import results as results_module
from tidegate.spark.micro_batch.results import HeldResults

__all__ = ["world"]

PER_BATCH = 30


def collecting(world: World, records: int | None) -> Any:
    """The client of a running job whose results nobody has taken yet."""
    env = world.environment()
    source = DataGeneratorSource(lambda i: i, count=records)
    env.from_source(source, job_watermarks(), "Numbers").map(lambda n: n).sink_to(CollectSink())
    return env.execute_async("collecting")


def read_by(client: Any) -> int:
    return int(client.view().total("numRecordsIn", 0))


def test_a_job_waits_for_its_results_to_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Savepoints are taken meanwhile: their batches read nothing."""
    monkeypatch.setattr(results_module, "MOST_HELD", 1)
    client = collecting(world, records=None)
    results = client.collect_results()
    assert 0 <= next(results) < PER_BATCH
    for _ in range(3):
        client.trigger_savepoint(str(world.folder / "savepoints")).result(60)
        assert read_by(client) == PER_BATCH
    assert {next(results) for _ in range(4 * PER_BATCH)} <= set(range(6 * PER_BATCH))
    client.stop_with_savepoint(False, str(world.folder / "savepoints")).result(60)
    assert client.get_job_execution_result().result(60) is not None
    left = len(list(results))
    assert 1 + 4 * PER_BATCH + left == read_by(client) <= 6 * PER_BATCH


def test_a_job_whose_results_nobody_reads_can_be_cancelled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "MOST_HELD", 1)
    client = collecting(world, records=None)
    while not client.checkpoint_history():
        time.sleep(0.01)
    client.cancel().result(60)
    assert client.get_job_status().result() is JobStatus.CANCELED


def test_a_job_with_few_results_does_not_wait(world: World) -> None:
    client = collecting(world, records=100)
    client.get_job_execution_result().result(60)
    assert sorted(client.collect_results()) == list(range(100))


def test_there_is_room_again_when_enough_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = pickle.dumps([1, 2])
    monkeypatch.setattr(results_module, "MOST_HELD", 2 * len(chunk))
    woken: list[bool] = []
    held = HeldResults(lambda: woken.append(held.room))
    held.put([chunk])
    assert held.room
    held.put([chunk] * 3)
    assert not held.room
    reading = held.taken()
    assert [next(reading) for _ in range(6)] == [1, 2] * 3
    assert not held.room
    assert next(reading) == 1
    assert held.room
    assert woken == [True]
    held.end()
    assert list(reading) == [2]
