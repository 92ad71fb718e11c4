"""Savepoints into a storage that hangs hold up neither the job nor who asks; and of those that nobody completes nothing
is left."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.micro_batch.query_stand_in import KilledError
from tests.unit.micro_batch.test_ends import wait_for_more
from tests.unit.micro_batch.test_jobs import World, world
from tidegate.common import JobStatus
from tidegate.common.errors import SnapshotError
from tidegate.snapshots import read_state
from tidegate.spark.micro_batch import job as job_module
from tidegate.spark.micro_batch import savepoints as savepoints_module

__all__ = ["world"]

RATE = 5_000


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any, str], threading.Event]]:
    """Has a function of a module hang until the event that is returned is set."""
    made: list[threading.Event] = []

    def hanging(module: Any, name: str) -> threading.Event:
        let_go, real = threading.Event(), getattr(module, name)
        made.append(let_go)

        def waits(*args: Any, **named: Any) -> Any:
            let_go.wait(30)
            return real(*args, **named)

        monkeypatch.setattr(module, name, waits)
        return let_go

    yield hanging
    for event in made:
        event.set()


def test_a_folder_that_does_not_answer_holds_up_nobody(
    world: World, hang: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savepoints_module, "_MOST_OPEN", 3)
    let_go = hang(savepoints_module, "new_savepoint")
    client = world.counting(records=None, rate=RATE)
    asked = [client.trigger_savepoint(str(world.folder / "savepoints")) for _ in range(3)]
    refused = client.trigger_savepoint(str(world.folder / "savepoints"))
    assert "3 savepoints are waited for already" in str(refused.exception(0))
    wait_for_more(world, wait_for_more(world))
    assert not any(future.done() for future in asked)
    let_go.set()
    assert len({future.result(60) for future in asked}) == 3
    client.cancel().result(60)


def test_metadata_that_cannot_be_written_holds_up_no_batch(world: World, hang: Any) -> None:
    let_go = hang(job_module, "complete_savepoint")
    client = world.counting(records=None, rate=RATE)
    asked = client.trigger_savepoint(str(world.folder / "savepoints"))
    while not list((world.folder / "savepoints").glob("savepoint-*/*")):
        wait_for_more(world)
    for _ in range(3):
        wait_for_more(world, len(world.output()))
    assert not asked.done()
    let_go.set()
    assert read_state(asked.result(60), "count", "count").num_rows == 10
    client.cancel().result(60)


def test_a_stop_whose_savepoint_is_not_completed_in_time_is_none(world: World, hang: Any) -> None:
    let_go = hang(job_module, "complete_savepoint")
    client = world.counting(records=None, rate=RATE, execution_checkpointing_timeout="200 ms")
    error = client.stop_with_savepoint(False, str(world.folder / "savepoints")).exception(60)
    assert "was not complete after 0.2 s (execution.checkpointing.timeout)" in str(error)
    wait_for_more(world, len(world.output()))
    assert client.view().status is JobStatus.RUNNING
    let_go.set()
    path = client.stop_with_savepoint(False, str(world.folder / "savepoints")).result(60)
    assert read_state(path, "count", "count").num_rows == 10
    assert client.get_job_execution_result().result(60) is not None


def test_a_job_that_waits_for_the_savepoint_of_its_stop_can_be_cancelled(
    world: World, hang: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savepoints_module, "_CLOSE_S", 0.2)
    hang(job_module, "complete_savepoint")
    client = world.counting(records=None, rate=RATE)
    asked = client.stop_with_savepoint(False, str(world.folder / "savepoints"))
    while not list((world.folder / "savepoints").glob("savepoint-*/*")):
        wait_for_more(world)
    client.cancel().result(60)
    assert client.get_job_status().result() is JobStatus.CANCELED
    assert "the job is over (CANCELED)" in str(asked.exception(60))


def ordered_by_a_dead_driver(world: World, target: Path) -> int:
    """The order for a savepoint is in Spark's log, and its batch is not committed. Returns the batch."""
    client = world.counting(records=None, rate=RATE)
    wait_for_more(world)
    client.cancel().result(60)
    batch = len(list((world.location / "commits").iterdir()))
    order = {"savepoint": str(target), "permissions": "owner", "drain": False, "batch": batch, "time_ms": 0}
    (world.location / "offsets" / str(batch)).write_text(json.dumps({"batch": batch, "order": json.dumps(order)}))
    return batch


@pytest.mark.parametrize("dies", ["", "committed"])
def test_a_savepoint_of_a_dead_driver_leaves_nothing(world: World, dies: str) -> None:
    """Spark runs its batch again. When the driver dies once more before it has seen the report, nobody has that."""
    target = world.folder / "savepoints" / "of-a-dead-driver"
    batch, written = ordered_by_a_dead_driver(world, target), threading.Event()

    def hook(step: str, n: int) -> None:
        if (step, n) == ("report", batch):
            assert list(target.rglob("*.parquet"))
            written.set()
        if (step, n) == (dies, batch) and world.queries == 2:
            raise KilledError

    def dead(*args: Any) -> Any:
        raise OSError("the driver dies")

    world.hook = hook
    if dies:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(job_module.CheckpointLocation, "keep_commit", dead)
            client = world.counting(records=None, rate=RATE, restart__strategy_type="none")
            assert "the driver dies" in str(client.get_job_execution_result().exception(60))
        assert list(target.rglob("*.parquet"))
    client = world.counting(records=None, rate=RATE)
    wait_for_more(world, len(world.output()))
    client.cancel().result(60)
    assert written.is_set()
    assert not target.exists()


def test_a_savepoint_whose_batch_does_not_come_to_its_end_leaves_nothing(world: World) -> None:
    """The job is cancelled meanwhile."""
    targets: list[Path] = []

    def hook(step: str, batch: int) -> None:
        found = list((world.folder / "savepoints").glob("savepoint-*")) if step == "report" else []
        if found:
            targets.extend(found)
            client.cancel()
            world.query.wait_for_stop()

    world.hook = hook
    client = world.counting(records=None, rate=RATE)
    wait_for_more(world)
    asked = client.trigger_savepoint(str(world.folder / "savepoints"))
    client.get_job_execution_result().exception(60)
    assert isinstance(asked.exception(60), SnapshotError)
    assert targets
    assert not any(path.exists() for path in targets)
