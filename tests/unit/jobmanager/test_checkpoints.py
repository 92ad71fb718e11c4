"""JobMaster and CheckpointCoordinator together: the life of checkpoints."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from jobmanager_kit import (
    KEYED,
    ROOT,
    Driver,
    chain_of,
    graph,
    increment,
    list_state,
    metadata,
    only,
    operator,
    operator_metadata,
)

from tidegate.common.errors import SnapshotError
from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskIndex, VertexId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.failures import CheckpointFailureReason
from tidegate.fault_tolerance.barriers.request_decider import CheckpointKind
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings, Retention
from tidegate.fault_tolerance.barriers.statistics import CheckpointRecord, CheckpointStats, CheckpointStatus
from tidegate.fault_tolerance.checkpoint_view import CheckpointsView, CheckpointViews
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.network.elements import Alignment
from tidegate.protocol.instructions import (
    CheckpointRequestDone,
    DeleteOrphans,
    DeleteState,
    Instruction,
    JobEnded,
    Log,
    RecordSnapshot,
    SubmitGang,
    WriteMetadata,
)
from tidegate.protocol.messages import (
    DeclineCheckpoint,
    DeclineReason,
    Deploy,
    Finish,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TriggerCheckpoint,
)
from tidegate.storage.handles import SlotRestore


def running(job: Any = None, restarts: int = 5, initial: RestorePoint | None = None, **settings: Any) -> Driver:
    checkpoints = CheckpointSettings(interval_ms=settings.pop("interval_ms", 1_000), **settings)
    driver = Driver(job=job, restart=FixedDelay(restarts, 0), checkpoints=checkpoints, initial=initial)
    driver.start()
    driver.run()
    return driver


def triggered(out: list[Instruction]) -> list[int]:
    return [m.barrier.checkpoint_id for slot, m in Driver.sent(TriggerCheckpoint, out) if slot == 0]


def decline(
    driver: Driver,
    checkpoint_id: int,
    reason: DeclineReason = DeclineReason.WRITE_FAILED,
    detail: str = "disk full",
) -> list[Any]:
    message = DeclineCheckpoint(
        attempt=driver.attempt,
        checkpoint_id=CheckpointId(checkpoint_id),
        vertex=VertexId(1),
        subtask=SubtaskIndex(0),
        reason=reason,
        detail=detail,
    )
    return driver.tell(message)


def deleted(out: list[Instruction]) -> tuple[set[str], set[str]]:
    found = Driver.of(DeleteState, out)
    return {f for d in found for f in d.files}, {f for d in found for f in d.directories}


def restored(out: list[Instruction]) -> int | None:
    deploy = Driver.sent(Deploy, out)[0][1]
    return msgspec.msgpack.decode(deploy.restore, type=SlotRestore).checkpoint_id if deploy.restore else None


def restart(driver: Driver, failed: bool = True) -> int | None:
    """The attempt fails and the next one runs; what it was restored from."""
    if failed:
        driver.fail()
    driver.exit()
    return restored(driver.run())


# ---------------------------------------------------------------- trigger, acknowledge, complete


def test_a_checkpoint_goes_from_trigger_to_complete() -> None:
    driver = running()
    assert triggered(driver.wait(999)) == []
    assert triggered(driver.wait(1)) == [1]
    tasks = list(driver.graph.all_tasks())
    for vertex, subtask in tasks[:-1]:
        assert driver.ack(1, vertex, subtask) == []
    out = driver.ack(1, *tasks[-1])
    content = only(driver.of(WriteMetadata, out)).metadata
    assert (content.checkpoint_id, content.job_id, content.timestamp) == (1, "job", int(driver.now))
    assert [(o.name, o.parallelism, len(o.subtasks)) for o in content.operators] == [("source", 2, 2), ("count", 2, 2)]
    assert driver.coordinator is not None
    assert driver.coordinator.store.checkpoints == ()
    done = driver.written(1)
    assert [slot for slot, _ in driver.sent(NotifyCheckpointComplete, done)] == [0, 1]
    assert [c.checkpoint_id for c in driver.coordinator.store.checkpoints] == [1]


def test_only_slots_with_sources_are_triggered() -> None:
    driver = running(job=graph(parallelism=3, sources=1))
    out = driver.wait(1_000)
    assert [slot for slot, _ in driver.sent(TriggerCheckpoint, out)] == [0]


@pytest.mark.parametrize(
    ("alignment", "timeout"), [(Alignment.UNALIGNED, 0), (Alignment.ALIGNED_WITH_TIMEOUT, 50), (Alignment.ALIGNED, 0)]
)
def test_the_barrier_carries_the_mode(alignment: Alignment, timeout: int) -> None:
    driver = running(alignment=alignment, alignment_timeout_ms=timeout)
    barrier = driver.sent(TriggerCheckpoint, driver.wait(1_000))[0][1].barrier
    assert (barrier.alignment, barrier.timeout_ms) == (alignment, timeout)


def test_a_repeated_acknowledgement_changes_nothing() -> None:
    driver = running()
    driver.wait(1_000)
    for _ in range(3):
        for task in [(0, 0), (0, 1), (1, 0)]:
            assert driver.ack(1, *task) == []
    assert driver.of(WriteMetadata, driver.ack(1, 1, 1))
    assert driver.ack(1, 1, 1) == []
    driver.written(1)
    assert driver.ack(1, 1, 1) == []


def test_periodic_checkpoints_wait_for_the_one_that_is_in_progress() -> None:
    driver = running()
    assert triggered(driver.wait(5_000)) == [1]
    assert triggered(driver.complete(1)) == [2]
    driver.wait(100)
    assert triggered(driver.complete(2)) == []
    assert triggered(driver.wait(900)) == [3]


def test_several_may_be_in_progress_when_that_is_allowed() -> None:
    driver = running(max_concurrent=3)
    assert triggered(driver.wait(10_000)) == [1, 2, 3]


def test_the_minimum_pause_is_kept_and_leaves_no_room_for_concurrent_ones() -> None:
    driver = running(min_pause_ms=700, max_concurrent=3)
    assert triggered(driver.wait(2_900)) == [1]
    driver.complete(1)
    assert triggered(driver.wait(699)) == []
    assert triggered(driver.wait(1)) == [2]


def test_a_newer_complete_checkpoint_subsumes_an_older_pending_one() -> None:
    driver = running(max_concurrent=2)
    driver.wait(2_000)
    driver.ack(1, 0, 0)
    out = driver.complete(2)
    assert {m.checkpoint_id for _, m in driver.sent(NotifyCheckpointAborted, out)} == {1}
    assert {m.checkpoint_id for _, m in driver.sent(NotifyCheckpointComplete, out)} == {2}
    assert driver.master.status is JobStatus.RUNNING


def test_the_statistics_know_every_subtask() -> None:
    driver = running()
    driver.wait(1_000)
    driver.now += 40
    driver.complete(1)
    driver.wait(960)
    decline(driver, 2)
    assert driver.coordinator is not None
    stats = driver.coordinator.stats
    first, second = stats.history
    assert (first.status, first.duration_ms, len(first.subtasks)) == (CheckpointStatus.COMPLETED, 40, 4)
    assert (second.status, second.reason) == (CheckpointStatus.FAILED, CheckpointFailureReason.WRITE_FAILED)
    assert stats.latest_completed is first
    assert (stats.summary["duration_ms"].minimum, stats.summary["duration_ms"].average) == (40, 40)
    assert (stats.completed, stats.failed) == (1, 1)


def test_the_history_is_bounded() -> None:
    driver = running(history_size=5)
    for n in range(1, 21):
        driver.wait(1_000)
        driver.complete(n)
    assert driver.coordinator is not None
    assert [r.checkpoint_id for r in driver.coordinator.stats.history] == [16, 17, 18, 19, 20]
    assert driver.coordinator.stats.summary["duration_ms"].count == 20


def test_the_latest_completed_checkpoint_and_those_in_progress_outlive_any_number_of_failures() -> None:
    stats, views = CheckpointStats(history_size=5), CheckpointViews()

    def trigger(number: int) -> CheckpointId:
        kind = CheckpointKind.PERIODIC
        stats.on_triggered(CheckpointRecord(CheckpointId(number), kind, AttemptNumber(0), number * 10.0, 1))
        return CheckpointId(number)

    def latest() -> int | None:
        view = views.of(stats)
        assert len(view.history) <= 5 + view.in_progress
        return None if view.latest_completed is None else view.latest_completed.checkpoint_id

    assert latest() is None
    stats.on_completed(trigger(1), 15.0)
    slow = trigger(2)
    for number in range(3, 123):
        stats.on_failed(trigger(number), CheckpointFailureReason.EXPIRED, "", number * 10.0 + 1)
        assert (latest(), views.of(stats).in_progress) == (1, 1)
    assert [c.checkpoint_id for c in views.of(stats).history] == [2, *range(118, 123)]
    assert views.of(stats).older_completed is views.of(stats).older_completed  # made once
    stats.on_completed(slow, 2_000.0)
    assert (latest(), stats.completed, stats.summary["duration_ms"].count) == (2, 2, 2)
    for number in range(123, 133):
        stats.on_failed(trigger(number), CheckpointFailureReason.EXPIRED, "", number * 10.0 + 1)
    again = msgspec.json.decode(msgspec.json.encode(views.of(stats)), type=CheckpointsView)
    assert again.latest_completed is not None
    assert (again.latest_completed.checkpoint_id, again.in_progress) == (2, 0)


# ---------------------------------------------------------------- failures of checkpoints


def test_a_declined_checkpoint_is_aborted_everywhere_and_its_files_are_deleted() -> None:
    driver = running(tolerable_failures=1)
    driver.wait(1_000)
    driver.ack(1, 1, 1, increment(1, "chk-1/x", full=True))
    out = decline(driver, 1)
    assert [slot for slot, _ in driver.sent(NotifyCheckpointAborted, out)] == [0, 1]
    assert deleted(out) == ({"chk-1/x"}, {"chk-1"})
    assert "disk full" in driver.of(Log, out)[0].text


def test_a_late_acknowledgement_of_an_aborted_checkpoint_has_its_files_deleted() -> None:
    driver = running(tolerable_failures=1)
    driver.wait(1_000)
    decline(driver, 1)
    assert deleted(driver.ack(1, 1, 0, increment(1, "chk-1/late", full=True))) == ({"chk-1/late"}, {"chk-1"})


def test_a_checkpoint_that_takes_too_long_expires_and_the_missing_tasks_are_named() -> None:
    driver = running(timeout_ms=500, tolerable_failures=1)
    driver.wait(1_000)
    driver.ack(1, 0, 0)
    out = driver.wait(500)
    assert driver.sent(NotifyCheckpointAborted, out)
    text = driver.of(Log, out)[0].text
    assert "1 of 4" in text
    assert "count (1)" in text


def test_metadata_that_cannot_be_written_fails_the_checkpoint() -> None:
    driver = running(tolerable_failures=1)
    driver.wait(1_000)
    driver.ack_all(1)
    out = driver.written(1, "no space left")
    assert driver.sent(NotifyCheckpointAborted, out)
    assert deleted(out)[1] == {"chk-1"}
    assert driver.coordinator is not None
    assert driver.coordinator.store.checkpoints == ()


def test_metadata_that_is_written_after_its_checkpoint_expired_is_deleted_and_never_used() -> None:
    driver = running(timeout_ms=500, tolerable_failures=1)
    driver.wait(1_000)
    driver.ack_all(1)
    out = driver.wait(500)
    assert driver.sent(NotifyCheckpointAborted, out)
    assert deleted(out) == (set(), set())
    out = driver.written(1)
    assert deleted(out) == ({"chk-1/_metadata"}, {"chk-1"})
    assert not driver.sent(NotifyCheckpointComplete, out)


@pytest.mark.parametrize("tolerable", [0, 2])
def test_more_failures_in_a_row_than_tolerated_fail_the_attempt(tolerable: int) -> None:
    driver = running(tolerable_failures=tolerable)
    for n in range(1, tolerable + 2):
        assert driver.master.status is JobStatus.RUNNING
        driver.wait(1_000)
        decline(driver, n)
    assert driver.master.status is JobStatus.FAILING
    summary = driver.master.failures[0].failure.summary
    assert "disk full" in summary
    assert "tolerable-failed-checkpoints" in summary


def test_a_success_starts_the_count_anew() -> None:
    driver = running(tolerable_failures=1)
    for n in (1, 3, 5):
        driver.wait(1_000)
        decline(driver, n)
        driver.wait(1_000)
        driver.complete(n + 1)
    assert driver.master.status is JobStatus.RUNNING


def test_a_new_attempt_starts_the_count_anew() -> None:
    driver = running(tolerable_failures=1)
    for n in (1, 2, 3):
        driver.wait(1_000)
        decline(driver, n)
        restart(driver)
    assert [f.failure.summary for f in driver.master.failures] == ["boom"] * 3


@pytest.mark.parametrize("reason", DeclineReason)
def test_only_failures_that_are_somebodys_fault_are_counted(reason: DeclineReason) -> None:
    driver = running()
    for n in range(1, 5):
        if driver.master.status is JobStatus.RUNNING:
            driver.wait(1_000)
            decline(driver, n, reason)
    counted = CheckpointFailureReason.of_decline(reason).counts
    assert counted == (reason is not DeclineReason.SUPERSEDED)
    assert driver.master.status is (JobStatus.FAILING if counted else JobStatus.RUNNING)


def test_a_failed_attempt_triggers_nothing_more() -> None:
    driver = running(interval_ms=10)
    driver.wait(10)
    out = decline(driver, 1)
    assert triggered(out) == []
    driver.exit()


def test_metadata_that_another_attempt_has_written_completes_nothing() -> None:
    driver = running()
    driver.wait(1_000)
    driver.ack_all(1)
    assert driver.written(1, attempt=7) == []
    assert driver.coordinator is not None
    assert driver.coordinator.in_progress == (1,)
    assert driver.sent(NotifyCheckpointComplete, driver.written(1))


# ---------------------------------------------------------------- files


def test_older_checkpoints_are_deleted_and_the_files_that_are_still_needed_stay() -> None:
    driver = running()
    driver.wait(1_000)
    base = increment(1, "shared/base", full=True)
    for task in [(0, 0), (0, 1), (1, 0)]:
        driver.ack(1, *task)
    driver.ack(1, 1, 1, base)
    driver.written(1)
    driver.wait(1_000)
    for task in [(0, 0), (0, 1), (1, 0)]:
        driver.ack(2, *task)
    driver.ack(2, 1, 1, base, increment(2, "shared/two"))
    out = driver.written(2)
    assert deleted(out) == ({"chk-1/_metadata"}, {"chk-1"})


def test_as_many_checkpoints_as_set_are_kept() -> None:
    driver = running(num_retained=3)
    gone: set[str] = set()
    for n in range(1, 7):
        driver.wait(1_000)
        gone |= deleted(driver.complete(n))[1]
    assert gone == {"chk-1", "chk-2", "chk-3"}


def test_a_checkpoint_that_builds_on_deleted_files_is_never_completed() -> None:
    driver = running(tolerable_failures=1)
    driver.wait(1_000)
    for task in [(0, 0), (0, 1), (1, 0)]:
        driver.ack(1, *task)
    out = driver.ack(1, 1, 1, increment(0, "shared/gone", full=True), increment(1, "shared/new"))
    assert not driver.of(WriteMetadata, out)
    assert driver.sent(NotifyCheckpointAborted, out)
    assert driver.coordinator is not None
    assert driver.coordinator.stats.failures_by_reason == {CheckpointFailureReason.BASE_GONE: 1}


# ---------------------------------------------------------------- recovery


def test_a_restart_takes_the_latest_completed_checkpoint_and_ids_go_on_growing() -> None:
    driver = running()
    driver.wait(1_000)
    driver.complete(1)
    driver.wait(1_000)
    driver.complete(2)
    driver.wait(1_000)  # 3 is in progress
    assert restart(driver) == 2
    assert triggered(driver.wait(1_000)) == [4]
    assert driver.coordinator is not None
    assert driver.coordinator.stats.restored[0][0] == 2


def test_without_a_completed_checkpoint_the_job_starts_anew() -> None:
    driver = running()
    driver.wait(1_000)
    assert restart(driver) is None


def test_acknowledgements_of_an_old_attempt_never_count() -> None:
    driver = running()
    driver.wait(1_000)
    driver.ack(1, 0, 0)
    restart(driver)
    driver.wait(1_000)
    for vertex, subtask in driver.graph.all_tasks():
        driver.ack(2, vertex, subtask, attempt=0)
    assert driver.coordinator is not None
    assert driver.coordinator.in_progress == (2,)
    out = driver.ack(1, 1, 0, increment(1, "chk-1/zombie", full=True), attempt=0)
    assert deleted(out)[0] == {"chk-1/zombie"}


def test_metadata_written_after_the_attempt_failed_is_deleted_and_not_restored() -> None:
    driver = running()
    driver.wait(1_000)
    driver.ack_all(1)
    driver.fail()
    driver.exit()
    assert "chk-1" in deleted(driver.written(1))[1]
    assert restored(driver.run()) is None


def test_a_corrupt_checkpoint_is_skipped_for_the_one_before_it() -> None:
    driver = running(num_retained=3, restarts=1)
    for n in (1, 2, 3):
        driver.wait(1_000)
        driver.complete(n)
    assert restart(driver) == 3
    for bad, before in ((3, 2), (2, 1)):
        out = driver.fail(f"chk-{bad}/file: wrong checksum", corrupt_checkpoint=bad)
        warning = [log.text for log in driver.of(Log, out) if log.level == logging.WARNING][-1]
        assert f"falling back to checkpoint {before}" in warning
        driver.exit()
        assert restored(driver.run()) == before
    assert driver.master.status is JobStatus.RUNNING


def test_a_job_without_a_readable_checkpoint_fails_rather_than_starting_from_nothing() -> None:
    driver = running()
    driver.wait(1_000)
    driver.complete(1)
    restart(driver)
    driver.fail("corrupt", corrupt_checkpoint=1)
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert "no other one to start from" in driver.ended.reason


def test_a_corrupt_checkpoint_goes_when_a_newer_one_is_complete() -> None:
    driver = running(num_retained=2)
    for n in (1, 2):
        driver.wait(1_000)
        driver.complete(n)
    restart(driver)
    driver.fail("corrupt", corrupt_checkpoint=2)
    driver.exit()
    driver.run()
    driver.wait(1_000)
    assert deleted(driver.complete(3))[1] == {"chk-2"}
    assert driver.coordinator is not None
    assert [c.checkpoint_id for c in driver.coordinator.store.checkpoints] == [1, 3]


# ---------------------------------------------------------------- start from a snapshot


def snapshot(checkpoint_id: int = 41, root: str = "file:///old") -> RestorePoint:
    operators = [operator(KEYED, lists=(list_state("l", "split", 1),)) for _ in range(2)]
    return RestorePoint(metadata(operator_metadata(KEYED, *operators), checkpoint_id=checkpoint_id), root)


def test_a_job_starts_from_a_given_snapshot_and_goes_on_from_its_id() -> None:
    driver = running(initial=snapshot())
    assert restored(driver.log) == 41
    assert triggered(driver.wait(1_000)) == [42]
    assert restart(driver) == 41
    driver.wait(1_000)
    driver.complete(43)
    assert restart(driver) == 43


def test_a_given_snapshot_that_is_corrupt_fails_the_job() -> None:
    driver = running(initial=snapshot())
    driver.fail("corrupt", corrupt_checkpoint=41)
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED


def test_a_job_does_not_fall_back_to_a_claimed_checkpoint_that_it_has_deleted() -> None:
    """The reason names the damaged one, and no attempt is made with files that are gone."""
    claimed = RestorePoint(snapshot().metadata, ROOT, owned=True)
    driver = running(initial=claimed)
    driver.wait(1_000)
    assert "chk-41/_metadata" in deleted(driver.complete(42))[0]
    assert restart(driver) == 42
    driver.fail("corrupt", corrupt_checkpoint=42)
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert "checkpoint 42 is damaged and there is no other one" in driver.ended.reason


def test_a_given_snapshot_in_the_same_directory_is_never_deleted() -> None:
    driver = running(initial=snapshot(root=ROOT))
    driver.wait(1_000)
    driver.complete(42)
    driver.cancel()
    driver.exit()
    files, directories = deleted(driver.log)
    assert "chk-41" not in directories
    assert "chk-41/_metadata" not in files


def test_a_snapshot_that_does_not_fit_is_refused_before_anything_starts() -> None:
    with pytest.raises(SnapshotError, match="does not have"):
        Driver(job=chain_of("other"), initial=snapshot())


def test_a_job_without_checkpoints_can_start_from_a_snapshot_too() -> None:
    driver = Driver(restart=FixedDelay(1, 0), initial=snapshot())
    driver.start()
    assert restored(driver.run()) == 41
    assert restart(driver) == 41


# ---------------------------------------------------------------- the end


def test_the_job_finishes_only_after_a_checkpoint_that_was_triggered_at_the_end_of_data() -> None:
    driver = running(max_concurrent=2)
    driver.wait(1_000)
    out = driver.end_of_data()
    assert triggered(out) == [2]
    assert not driver.sent(Finish, out)
    assert not driver.sent(Finish, driver.complete(1))
    done = driver.complete(2)
    messages = [i.message for i in done if hasattr(i, "message") and not isinstance(i.message, NotifyCheckpointAborted)]
    assert [type(m) for m in messages[-4:]] == [NotifyCheckpointComplete] * 2 + [Finish] * 2
    driver.finish_all()
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FINISHED


def test_the_last_checkpoint_waits_for_the_one_that_is_in_progress() -> None:
    driver = running()
    driver.wait(1_000)
    assert triggered(driver.end_of_data()) == []
    assert triggered(driver.complete(1)) == [2]
    assert driver.sent(Finish, driver.complete(2))


def test_no_periodic_checkpoints_at_the_end_of_data() -> None:
    driver = running(max_concurrent=5)
    driver.end_of_data()
    assert triggered(driver.wait(10_000)) == []


def test_a_failed_last_checkpoint_is_tried_again_within_the_tolerable_number() -> None:
    driver = running(tolerable_failures=1)
    driver.end_of_data()
    assert triggered(decline(driver, 1)) == []
    assert triggered(driver.wait(1_000)) == [2]
    assert not driver.sent(Finish, driver.log)
    decline(driver, 2)
    assert driver.master.status is JobStatus.FAILING


def test_nothing_is_triggered_after_the_last_checkpoint() -> None:
    driver = running()
    driver.end_of_data()
    driver.complete(1)
    assert triggered(driver.wait(60_000)) == []


def test_a_failure_after_the_last_checkpoint_is_recovered_from_it() -> None:
    driver = running()
    driver.end_of_data()
    driver.complete(1)
    assert restart(driver) == 1
    driver.end_of_data()
    assert driver.sent(Finish, driver.complete(2))


@pytest.mark.parametrize(
    ("status", "retention", "kept"),
    [
        (JobStatus.FINISHED, Retention.RETAIN_ON_CANCELLATION, False),
        (JobStatus.FINISHED, Retention.NO_EXTERNALIZED_CHECKPOINTS, False),
        (JobStatus.FAILED, Retention.RETAIN_ON_CANCELLATION, True),
        (JobStatus.FAILED, Retention.DELETE_ON_CANCELLATION, True),
        (JobStatus.FAILED, Retention.NO_EXTERNALIZED_CHECKPOINTS, False),
        (JobStatus.CANCELED, Retention.RETAIN_ON_CANCELLATION, True),
        (JobStatus.CANCELED, Retention.DELETE_ON_CANCELLATION, False),
        (JobStatus.CANCELED, Retention.NO_EXTERNALIZED_CHECKPOINTS, False),
    ],
)
def test_retention_at_the_end_is_that_of_flink(status: JobStatus, retention: Retention, kept: bool) -> None:
    driver = running(retention=retention)
    driver.wait(1_000)
    driver.complete(1)
    if status is JobStatus.FINISHED:
        driver.end_of_data()
        driver.complete(2)
        driver.finish_all()
    elif status is JobStatus.FAILED:
        driver.fail(permanent=True)
    else:
        driver.cancel()
    out = driver.exit()
    assert isinstance(out[-1], JobEnded)
    assert out[-1].status is status
    assert isinstance(out[-2], DeleteOrphans)
    latest = 2 if status is JobStatus.FINISHED else 1
    assert (f"chk-{latest}" not in deleted(out)[1]) is kept


def test_the_end_waits_for_metadata_that_is_being_written_and_deletes_it() -> None:
    driver = running()
    driver.wait(1_000)
    driver.ack_all(1)
    driver.cancel()
    driver.exit()
    assert driver.ended is None
    out = driver.written(1)
    assert deleted(out)[1] == {"chk-1"}
    assert driver.ended is not None


def test_the_end_does_not_wait_for_ever_for_metadata() -> None:
    driver = running()
    driver.wait(1_000)
    driver.ack_all(1)
    driver.cancel()
    driver.exit()
    assert deleted(driver.wait(2_500))[1] == {"chk-1"}
    assert driver.ended is not None
    assert deleted(driver.written(1))[1] == {"chk-1"}


# ---------------------------------------------------------------- requests of users


def request(driver: Driver, request_id: int, savepoint: bool = False) -> list[Instruction]:
    return driver.do(driver.master.on_checkpoint_request, request_id, savepoint)


def test_a_requested_checkpoint_comes_before_the_periodic_one() -> None:
    driver = running(min_pause_ms=500)
    driver.wait(1_000)
    assert request(driver, 77) == []
    out = driver.complete(1)
    assert triggered(out) == [2]
    assert driver.of(CheckpointRequestDone, driver.complete(2)) == [CheckpointRequestDone(77, CheckpointId(2))]


def test_a_savepoint_is_full_and_aligned_and_neither_subsumes_nor_is_restored_nor_deleted() -> None:
    driver = running(alignment=Alignment.UNALIGNED)
    driver.wait(1_000)
    driver.complete(1)
    out = request(driver, 5, savepoint=True)
    barrier = driver.sent(TriggerCheckpoint, out)[0][1].barrier
    assert barrier.savepoint
    assert barrier.alignment is Alignment.ALIGNED
    done = driver.complete(2)
    assert driver.of(WriteMetadata, done)[0].metadata.savepoint
    assert not driver.sent(NotifyCheckpointComplete, done)
    assert restart(driver) == 1
    driver.cancel()
    driver.exit()
    assert "chk-2" not in deleted(driver.log)[1]


def test_a_request_that_fails_says_why() -> None:
    driver = running(tolerable_failures=1)
    request(driver, 5)
    done = only(driver.of(CheckpointRequestDone, decline(driver, 1)))
    assert done.request_id == 5
    assert "disk full" in str(done.error)


def test_requests_are_answered_when_the_attempt_ends_or_does_not_run() -> None:
    driver = running()
    request(driver, 1)
    request(driver, 2)
    out = driver.fail()
    assert {d.request_id for d in driver.of(CheckpointRequestDone, out) if d.error} == {1, 2}
    assert only(driver.of(CheckpointRequestDone, request(driver, 3))).error


def test_the_queue_of_requests_is_bounded() -> None:
    driver = running()
    refused = [n for n in range(200) if driver.of(CheckpointRequestDone, request(driver, n))]
    assert refused == list(range(101, 200))


def test_a_request_without_checkpointing_is_refused() -> None:
    driver = Driver()
    driver.start()
    assert only(driver.of(CheckpointRequestDone, request(driver, 1))).error


# ---------------------------------------------------------------- metadata


def test_operators_without_state_are_in_the_metadata_too() -> None:
    driver = running(job=chain_of("a", "b", parallelism=2))
    driver.wait(1_000)
    content = only(driver.of(WriteMetadata, driver.ack_all(1))).metadata
    assert [o.operator_id for o in content.operators] == [OperatorId(n.ljust(32, "0")) for n in "ab"]
    assert all(len(o.subtasks) == 2 and o.end_of_data == [False, False] for o in content.operators)


def test_attempts_are_fenced_in_what_is_submitted() -> None:
    driver = running()
    restart(driver)
    assert [i.attempt for i in driver.of(SubmitGang, driver.log)] == [AttemptNumber(0), AttemptNumber(1)]


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_request_is_answered_when_the_job_ends_before_its_record_says_what_holds(savepoint: bool) -> None:
    driver = Driver(checkpoints=CheckpointSettings(interval_ms=1_000_000), epoch=1)
    driver.start()
    driver.run()
    out = request(driver, 7, savepoint)
    n = triggered(out)[0]
    driver.ack_all(n)
    assert only(driver.of(RecordSnapshot, driver.written(n))).checkpoint_id == n
    driver.cancel()
    driver.exit()
    driver.wait(60_000)  # the storage of the record hangs
    assert driver.ended is not None
    answer = only(driver.of(CheckpointRequestDone, driver.log))
    assert answer.request_id == 7
    assert "whether the job's record names it" in str(answer.error)
    assert (f"chk-{n}" in deleted(driver.log)[1]) is not savepoint
    assert not driver.of(CheckpointRequestDone, driver.do(driver.master.on_recorded, CheckpointId(n), True))
