"""How micro-batch jobs and their queries end: drained, given up, and not before the query of an attempt is gone."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.micro_batch.query_stand_in import KilledError
from tests.unit.micro_batch.test_jobs import EXPECTED, World
from tests.unit.micro_batch.test_jobs import world as world
from tidegate.common import JobStatus
from tidegate.common.errors import JobExecutionError
from tidegate.snapshots import read_state
from tidegate.spark.micro_batch import job as job_module
from tidegate.spark.micro_batch import stopping
from tidegate.spark.micro_batch import task as task_module
from tidegate.spark.micro_batch.stopping import QueryRemainsError, StoppedQueries


def wait_for_more(world: World, than: int = 0) -> int:
    while not (world.folder / "out").exists() or len(world.output()) <= than:
        time.sleep(0.01)
    return len(world.output())


def test_a_job_goes_on_when_it_was_to_be_drained_and_the_savepoint_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.counting(records=None, rate=5_000, restart__strategy_type="none")
    wait_for_more(world)
    writer = task_module.SavepointWriter

    def full(*args: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(task_module, "SavepointWriter", full)
    error = client.stop_with_savepoint(True, str(world.folder / "savepoints")).exception(60)
    assert "disk full" in str(error)
    wait_for_more(world, len(world.output()))
    assert client.view().status is JobStatus.RUNNING
    assert not client.failures()
    monkeypatch.setattr(task_module, "SavepointWriter", writer)
    savepoint = client.stop_with_savepoint(True, str(world.folder / "savepoints")).result(60)
    client.get_job_execution_result().result(60)
    assert client.view().status is JobStatus.FINISHED
    assert read_state(savepoint, "count", "count").num_rows == 10
    lines = world.output()
    assert len(lines) == len(set(lines))


def test_a_drain_that_a_dead_driver_has_ordered_is_completed(world: World) -> None:
    """Spark runs the batch again with the order in its log, which leaves nothing to go on with."""
    target = str(world.folder / "savepoints" / "of-a-dead-driver")
    client = world.counting(records=None, rate=5_000)
    wait_for_more(world)
    client.cancel().result(60)
    batch = len(list((world.location / "commits").iterdir()))
    order = {"savepoint": target, "permissions": "owner", "drain": True, "batch": batch, "time_ms": 0}
    (world.location / "offsets" / str(batch)).write_text(json.dumps({"batch": batch, "order": json.dumps(order)}))
    client = world.counting(records=None, rate=5_000)
    client.get_job_execution_result().result(60)
    assert client.view().status is JobStatus.FINISHED
    assert read_state(target, "count", "count").num_rows == 10


def test_a_drained_job_without_its_savepoint_has_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark has committed the drain when the metadata is written."""

    def full(*args: Any) -> Any:
        raise OSError("disk full")

    client = world.counting(records=None, rate=5_000)
    wait_for_more(world)
    monkeypatch.setattr(job_module, "complete_savepoint", full)
    error = client.stop_with_savepoint(True, str(world.folder / "savepoints")).exception(60)
    assert "disk full" in str(error)
    with pytest.raises(JobExecutionError, match=r"was drained, and its savepoint .* could not be completed: disk full"):
        client.get_job_execution_result().result(60)


def test_a_failure_that_comes_again_and_again_ends_the_job(world: World) -> None:
    settings = {"tidegate_restart_stop__on__repeated__failure": 3}
    env = world.environment(**settings)
    env.from_collection([1, 0]).map(lambda n: 1 // n).name("Divide").print()
    with pytest.raises(JobExecutionError, match="the same failure has come 3 times"):
        env.execute("dividing")
    assert world.queries == 3


# ---------------------------------------------------------------- queries


class Query:
    runId = "run"

    def __init__(self, stops: bool = True) -> None:
        self.isActive = True
        self.stops = stops

    def stop(self) -> None:
        self.isActive = not self.stops

    def awaitTermination(self, timeout: float) -> None:
        pass


class Tracker:
    def __init__(self) -> None:
        self.tasks = 0

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [1]

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(status="FAILED", stageIds=[1])

    def getStageInfo(self, stage: int) -> Any:
        return SimpleNamespace(numActiveTasks=self.tasks)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "STOP_S", 0.02)


@pytest.mark.usefixtures("impatient")
def test_no_query_begins_beside_one_that_does_not_stop() -> None:
    queries, query = StoppedQueries(Tracker()), Query(stops=False)
    queries.check()
    queries.stop(query)
    for _ in range(2):
        with pytest.raises(QueryRemainsError, match="still runs"):
            queries.check()
    query.isActive = False
    queries.check()


@pytest.mark.usefixtures("impatient")
def test_no_query_begins_beside_tasks_of_the_one_before() -> None:
    tracker = Tracker()
    queries = StoppedQueries(tracker)
    tracker.tasks = 1
    queries.stop(Query())
    with pytest.raises(QueryRemainsError, match="has left tasks that run"):
        queries.check()
    tracker.tasks = 0
    queries.check()


@pytest.mark.usefixtures("impatient")
def test_a_job_waits_for_the_tasks_of_its_attempt_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its restart strategy says, and then goes on."""
    remaining = iter([1] * 30)
    monkeypatch.setattr(stopping, "tasks_are_gone", lambda *args: next(remaining, 0) == 0)

    def hook(step: str, batch: int) -> None:
        if step == "report" and batch == 2 and world.queries == 1:
            raise KilledError("a Python worker process exited unexpectedly")

    world.hook = hook
    client = world.counting(restart__strategy_fixed__delay_attempts=1000)
    client.get_job_execution_result().result(60)
    assert world.output() == EXPECTED
    assert world.queries == 2
    assert next(remaining, None) is None
    assert any("has left tasks that run" in failure.failure.summary for failure in client.view().failures)
