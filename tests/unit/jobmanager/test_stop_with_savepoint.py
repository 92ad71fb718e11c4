"""The protocol of stopping with a savepoint, event by event: who is told what, and what every failure leads to."""

from __future__ import annotations

import math
from typing import Any

import pytest
from jobmanager_kit import Driver, only

from tidegate.common.ids import CheckpointId, SubtaskIndex, VertexId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.jobmanager.restart_strategies import FixedDelay, NoRestart
from tidegate.network.elements import Alignment
from tidegate.protocol.instructions import CheckpointRequestDone, DeleteSavepoint, Instruction, WriteMetadata
from tidegate.protocol.messages import (
    DeclineCheckpoint,
    DeclineReason,
    DrainSources,
    Finish,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    Start,
    TriggerCheckpoint,
)

TARGET = "/savepoints/sp"


def running(restart: Any = None, **settings: Any) -> Driver:
    driver = Driver(checkpoints=CheckpointSettings(interval_ms=1_000, **settings), restart=restart or NoRestart())
    driver.start()
    driver.run()
    return driver


def stop(driver: Driver, request_id: int = 1, drain: bool = False) -> list[Instruction]:
    return driver.do(driver.master.on_stop_request, request_id, drain, TARGET)


def decline(driver: Driver, checkpoint_id: int) -> list[Instruction]:
    return driver.tell(
        DeclineCheckpoint(
            attempt=driver.attempt,
            checkpoint_id=CheckpointId(checkpoint_id),
            vertex=VertexId(0),
            subtask=SubtaskIndex(0),
            reason=DeclineReason.WRITE_FAILED,
            detail="the disk is full",
        )
    )


def answers(instructions: list[Instruction]) -> list[CheckpointRequestDone]:
    return Driver.of(CheckpointRequestDone, instructions)


def test_the_job_finishes_behind_the_savepoint() -> None:
    driver = running(alignment=Alignment.UNALIGNED)
    barrier = driver.sent(TriggerCheckpoint, stop(driver))[0][1].barrier
    assert (barrier.savepoint, barrier.stop, barrier.target) == (True, True, TARGET)
    assert barrier.alignment is Alignment.ALIGNED
    assert driver.sent(TriggerCheckpoint, driver.wait(5_000)) == []
    out = driver.ack_all(1)
    assert only(driver.of(WriteMetadata, out)).target == TARGET
    out = driver.written(1)
    assert [type(m).__name__ for _, m in driver.sent(object, out)][:1] == ["NotifyCheckpointComplete"]
    assert len(driver.sent(Finish, out)) == driver.graph.num_slots
    assert answers(out) == []  # not before everything is committed
    driver.finish_all()
    end = driver.exit()
    assert answers(end) == [CheckpointRequestDone(1, CheckpointId(1), None, TARGET)]
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FINISHED
    assert not driver.of(DeleteSavepoint, driver.log)


def test_no_checkpoint_is_triggered_behind_the_barrier_until_its_fate_is_known() -> None:
    driver = running(max_concurrent=3)
    stop(driver)
    assert driver.sent(TriggerCheckpoint, driver.wait(10_000)) == []
    driver.do(driver.master.on_checkpoint_request, 9, False)
    assert driver.sent(TriggerCheckpoint, driver.wait(1_000)) == []
    out = decline(driver, 1)
    assert driver.sent(NotifyCheckpointAborted, out)
    assert "the disk is full" in str(only(answers(out)).error)
    assert driver.of(DeleteSavepoint, out) == [DeleteSavepoint(TARGET)]
    assert driver.sent(TriggerCheckpoint, out)  # the request that waited
    assert driver.master.status is JobStatus.RUNNING


def test_a_failed_savepoint_is_no_failed_checkpoint() -> None:
    driver = running(tolerable_failures=0)
    for number in range(1, 4):
        stop(driver, number)
        decline(driver, number)
    assert driver.master.status is JobStatus.RUNNING
    driver.ack(3, 0, 0)  # a task that had not heard of it yet has written its part
    assert driver.of(DeleteSavepoint, driver.log)[-1] == DeleteSavepoint(TARGET)


def test_a_failure_before_the_savepoint_is_complete_fails_the_request_and_the_job_goes_on() -> None:
    driver = running(FixedDelay(3, 0.0))
    stop(driver)
    out = driver.fail()
    assert "over" in str(only(answers(out)).error)
    driver.exit()
    assert driver.sent(Start, driver.run())
    assert driver.master.status is JobStatus.RUNNING
    assert driver.sent(TriggerCheckpoint, driver.wait(1_000))


def test_after_a_failure_behind_the_savepoint_the_next_attempt_only_commits() -> None:
    driver = running(FixedDelay(3, 0.0))
    stop(driver)
    driver.ack_all(1)
    driver.written(1)
    driver.fail()
    driver.exit()
    out = driver.run()
    assert driver.master.restored_checkpoint == 1
    assert not driver.sent(Start, out)
    assert len(driver.sent(Finish, out)) == driver.graph.num_slots
    assert driver.sent(TriggerCheckpoint, driver.wait(3_000)) == []
    driver.finish_all()
    assert only(answers(driver.exit())).error is None


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_a_job_that_cannot_commit_says_where_its_savepoint_is(end: str) -> None:
    driver = running()
    stop(driver)
    driver.ack_all(1)
    driver.written(1)
    driver.fail() if end == "fail" else driver.cancel()
    answer = only(answers(driver.exit()))
    assert TARGET in str(answer.error)
    assert answer.target == TARGET


def test_a_drain_comes_before_the_savepoint_and_stops_all_checkpoints() -> None:
    driver = running()
    out = stop(driver, drain=True)
    assert driver.sent(DrainSources, out)
    assert not driver.sent(TriggerCheckpoint, out)
    assert driver.sent(TriggerCheckpoint, driver.wait(5_000)) == []
    assert "being stopped" in str(only(answers(stop(driver, 2))).error)
    out = driver.end_of_data()
    barrier = driver.sent(TriggerCheckpoint, out)[0][1].barrier
    assert barrier.stop
    driver.ack_all(1)
    assert driver.sent(Finish, driver.written(1))
    driver.finish_all()
    assert only(answers(driver.exit())).error is None


@pytest.mark.parametrize("first", [False, True], ids=["plain", "drained"])
@pytest.mark.parametrize("second", [False, True], ids=["plain", "drained"])
def test_a_job_is_stopped_once_also_while_the_savepoint_waits_for_its_turn(first: bool, second: bool) -> None:
    driver = running(max_concurrent=1)
    driver.do(lambda now: driver.master.on_checkpoint_request(9, True, now, "/savepoints/before"))
    stop(driver, 1, drain=first)
    if first:
        driver.end_of_data()
    out = stop(driver, 2, drain=second)
    assert "being stopped" in str(only(answers(out)).error)
    assert not driver.sent(DrainSources, out)
    driver.ack_all(1)
    assert driver.sent(TriggerCheckpoint, driver.written(1))[0][1].barrier.stop
    driver.ack_all(2)
    assert driver.sent(Finish, driver.written(2))
    driver.finish_all()
    assert answers(driver.exit()) == [CheckpointRequestDone(1, CheckpointId(2), None, TARGET)]


def test_a_drain_whose_savepoint_fails_goes_on_from_the_latest_checkpoint_without_using_up_a_restart() -> None:
    driver = running(NoRestart())
    driver.wait(1_000)
    driver.complete(1)
    stop(driver, drain=True)
    driver.end_of_data()
    out = decline(driver, 2)
    assert only(answers(out)).error
    assert driver.sent(TriggerCheckpoint, driver.wait(100)) == []
    driver.exit()
    assert driver.sent(Start, driver.run())
    assert driver.master.restored_checkpoint == 1
    assert driver.master.attempt == 1


def test_a_failure_while_draining_fails_the_request() -> None:
    driver = running(FixedDelay(3, 0.0))
    stop(driver, drain=True)
    assert only(answers(driver.fail())).error
    driver.exit()
    driver.run()
    assert driver.sent(TriggerCheckpoint, driver.wait(1_000))


def test_a_job_at_its_end_or_between_two_attempts_cannot_be_stopped() -> None:
    driver = running(FixedDelay(3, 1_000.0))
    driver.fail()
    assert "not running" in str(only(answers(stop(driver))).error)
    driver = running()
    driver.end_of_data()
    stop(driver)
    out = driver.complete(1)  # the last checkpoint was under way already
    assert "end" in str(only(answers(out)).error)
    assert driver.sent(Finish, out)


def test_a_savepoint_tells_its_folder_and_nobody_commits_because_of_it() -> None:
    driver = running()
    driver.do(lambda now: driver.master.on_checkpoint_request(4, True, now, TARGET))
    driver.ack_all(1)
    out = driver.written(1)
    assert answers(out) == [CheckpointRequestDone(4, CheckpointId(1), None, TARGET)]
    assert not driver.sent(NotifyCheckpointComplete, out)


def test_a_job_without_checkpoints_says_so() -> None:
    driver = Driver()
    driver.start()
    driver.run()
    assert "without fault tolerance" in str(only(answers(stop(driver))).error)


def test_without_checkpointing_a_failed_drain_is_a_failure_since_there_is_nothing_to_go_on_from() -> None:
    driver = Driver(checkpoints=CheckpointSettings(interval_ms=math.inf), restart=NoRestart())
    driver.start()
    driver.run()
    assert len(driver.sent(DrainSources, stop(driver, drain=True))) > 0
    driver.end_of_data()
    out = decline(driver, 1)
    assert "the disk is full" in str(only(answers(out)).error)
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert "could not be stopped" in driver.ended.failures[-1].failure.summary
