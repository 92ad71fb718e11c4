"""Faults of storage, commits, workers and connections: each happens, does what it says, and no result suffers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import MemorySink
from tests.unit.testing.test_in_process_jobs import EXPECTED, counted
from tidegate.common import JobStatus
from tidegate.datastream import DataStream
from tidegate.protocol.messages import DeclineCheckpoint, SlotHeartbeat
from tidegate.testing import (
    EPOCH,
    CommitsFail,
    CutConnections,
    Fault,
    FreezeWorker,
    InProcessJob,
    KillWorker,
    StorageFails,
)

KEYS = {"execution.checkpointing.tolerable-failed-checkpoints": 3, "heartbeat.timeout": 200, "heartbeat.interval": 50}


def job_with(fault: Fault, parallelism: int = 2, **keys: Any) -> InProcessJob:
    return InProcessJob.collecting(configured(parallelism, **keys), [fault])


def configured(parallelism: int = 2, **keys: Any) -> DataStream:
    stream = counted(parallelism=parallelism)
    for key, value in {**KEYS, **keys}.items():
        stream.get_execution_environment()._configuration.set_string(key, str(value))
    return stream


@pytest.mark.parametrize("moment", [{"after_ms": 100}, {"checkpoint": 4}], ids=str)
@pytest.mark.parametrize("how", ["fails", "full"])
def test_storage_that_fails_costs_checkpoints_and_nothing_else(how: Any, moment: dict[str, Any]) -> None:
    with job_with(StorageFails(**moment, for_ms=50, how=how)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        reasons = [message.reason for message in job.heard(DeclineCheckpoint)]
        said = "No space left on device" if how == "full" else "does not answer"
        assert reasons
        assert said in job.logged
        assert "a fault plan of tidegate.testing" in job.logged
        assert (job.restarts, job.faults.left) == (0, [])
        assert sorted(job.results) == EXPECTED


def test_checkpoints_go_on_when_the_storage_is_back() -> None:
    with job_with(StorageFails(checkpoint=3, for_ms=45)) as job:
        job.advance(55)
        assert job.completed == [2]
        job.advance(100)
        assert job.completed[-1] > 3


def test_storage_that_fails_for_too_long_is_a_failover() -> None:
    key = "execution.checkpointing.tolerable-failed-checkpoints"
    with job_with(StorageFails(after_ms=100, for_ms=30), **{key: 0}) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 1
        assert sorted(job.results) == EXPECTED


def test_storage_that_fails_cannot_be_restored_from() -> None:
    faults = [KillWorker(after_ms=100), StorageFails(after_ms=100, for_ms=1_500)]
    with InProcessJob.collecting(configured(), faults) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts > 1
        assert "restoring checkpoint" in job.failure
        assert job.faults.left == []
        assert sorted(job.results) == EXPECTED


@pytest.mark.parametrize("how", ["fails", "full"])
def test_a_savepoint_fails_with_the_storage_and_the_next_one_is_whole(how: Any, tmp_path: Path) -> None:
    with job_with(StorageFails(after_ms=100, for_ms=30, how=how)) as job:
        job.advance(101)
        job.savepoint(tmp_path / "first", request_id=1).advance(5)
        failed = job.answer(1)
        assert failed is not None
        assert "a task could not write its snapshot" in str(failed.error)
        assert "a fault plan of tidegate.testing" in str(failed.error)
        job.advance(40)
        job.savepoint(tmp_path / "second", request_id=2).advance(20)
        made = job.answer(2)
        assert made is not None
        assert made.error is None
        assert job.run_to_end() is JobStatus.FINISHED
        assert sorted(job.results) == EXPECTED


def test_slow_storage_is_done_when_the_time_is_over() -> None:
    with job_with(StorageFails(checkpoint=3, for_ms=70, how="slow")) as job:
        job.advance(61)
        began = job.clock.now
        assert job.completed == [2]
        job.advance(60)
        assert (job.completed, job.clock.now) == ([2], began + 60)  # its clock has not jumped
        counts = len(job.frames)
        job.advance(20)
        assert job.completed[-1] >= 3
        assert len(job.frames) > counts  # and records were processed meanwhile
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 0
        assert sorted(job.results) == EXPECTED


def test_slow_metadata_is_heard_of_late() -> None:
    """Not the state: that was written before it began."""
    with job_with(KillWorker(after_ms=10_000)) as job:
        job.advance(50)
        (newest,) = job.completed
        times = job.faults.bad_times
        times.metadata_written = lambda: times._delay(job.clock.now + 33)  # type: ignore[method-assign]
        job.advance(20)
        assert job.completed == [newest]
        del times.metadata_written  # type: ignore[attr-defined]
        job.advance(33)
        assert job.completed[-1] > newest


@pytest.mark.parametrize("operator", [None, "out", "out-uid"])
def test_commits_that_fail_are_made_after_the_restart(operator: str | None) -> None:
    stream = configured(1)
    stream.map(lambda pair: pair[0] * 100 + pair[1]).sink_to(MemorySink()).name("out").uid("out-uid")
    fault = CommitsFail(after_ms=100, for_ms=30, operator=operator)
    with InProcessJob(stream.get_execution_environment(), [fault]) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts >= 1
        assert "a fault plan of tidegate.testing" in job.failure
        assert job.faults.left == []
    assert sorted(MemorySink.committed) == [key * 100 + n for key, n in EXPECTED]


def test_commits_of_another_sink_do_not_fail() -> None:
    stream = configured(1)
    stream.map(lambda pair: pair[1]).sink_to(MemorySink()).name("out")
    fault = CommitsFail(after_ms=0, for_ms=10_000, operator="in")
    with InProcessJob(stream.get_execution_environment(), [fault]) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert (job.restarts, job.faults.left) == (0, [fault])


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_worker_that_is_frozen_for_less_than_the_heartbeat_goes_on(parallelism: int) -> None:
    with job_with(FreezeWorker(after_ms=101.5, for_ms=150), parallelism) as job:
        job.advance(104)
        assert job.slots[0].frozen_until == EPOCH + 101.5 + 150
        heard = len([m for m in job.heard(SlotHeartbeat) if m.slot == 0])
        assert job.slots[0].frozen
        job.advance(140)
        assert len([m for m in job.heard(SlotHeartbeat) if m.slot == 0]) == heard
        assert job.run_to_end() is JobStatus.FINISHED
        assert (job.restarts, job.faults.left) == (0, [])
        assert sorted(job.results) == EXPECTED


def test_a_worker_that_is_frozen_for_longer_is_taken_for_dead() -> None:
    with job_with(FreezeWorker(checkpoint=3, for_ms=5_000, slot=1)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 1
        assert sorted(job.results) == EXPECTED


@pytest.mark.parametrize("slot", [0, 1])
def test_connections_that_are_cut_are_a_failover(slot: int) -> None:
    with job_with(CutConnections(after_ms=123, slot=slot)) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 1
        assert "was lost (cut by the fault plan)" in job.failure
        assert job.error is None  # it was not the job's own code
        assert sorted(job.results) == EXPECTED


def test_a_worker_is_killed_in_the_middle_of_a_checkpoint() -> None:
    with job_with(KillWorker(checkpoint=5)) as job:
        job.advance(101)
        assert job.master.status is not JobStatus.RUNNING
        assert job.completed == [4]
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.restarts == 1
        assert sorted(job.results) == EXPECTED


def test_waiting_for_a_fault_does_not_hold_up_the_clock() -> None:
    with job_with(KillWorker(after_ms=10_000)) as job:
        for _ in range(3):
            job.advance(10)
        job.received.clear()
        job.advance(10)
        assert len(job.heard(SlotHeartbeat)) < 50  # one of each slot at every stop


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: StorageFails(), "say when, either after_ms=... on the job's clock or checkpoint=..."),
        (lambda: KillWorker(5, checkpoint=2), "KillWorker: say when"),
        (lambda: StorageFails(5, how="quickly"), "how is 'fails', 'slow' or 'full', got 'quickly'"),
        (lambda: CommitsFail(5, for_ms=0), "CommitsFail: for_ms has to be more than 0"),
        (lambda: job_with(KillWorker(5, slot=2)), "the job has no slot 2, its 2 slots begin with 0"),
        (lambda: job_with(CutConnections(5), 1), "the only worker of the job has no connections"),
    ],
)
def test_mistakes_get_a_sentence(make: Any, said: str) -> None:
    with pytest.raises(ValueError) as failure:
        make()
    assert said in str(failure.value)


@pytest.mark.parametrize(
    "faults",
    [
        [StorageFails(checkpoint=2, for_ms=30), KillWorker(checkpoint=4)],
        [FreezeWorker(60, for_ms=20, slot=1), CutConnections(checkpoint=6)],
        [StorageFails(50, for_ms=40, how="slow"), CutConnections(70, slot=1), KillWorker(150)],
    ],
    ids=str,
)
def test_several_one_after_the_other(faults: Sequence[Fault]) -> None:
    with InProcessJob.collecting(configured(), faults) as job:
        assert job.run_to_end() is JobStatus.FINISHED
        assert job.faults.left == []
        assert sorted(job.results) == EXPECTED
