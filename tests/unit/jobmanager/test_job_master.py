"""The JobMaster without checkpoints."""

from __future__ import annotations

import logging

import msgspec
import pytest
from jobmanager_kit import KEYED, Driver, graph, only

from tidegate.common.ids import AttemptNumber, CheckpointId, OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import CounterValue, MetricReport
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.jobmanager.gang import Gang
from tidegate.jobmanager.gang_monitor import GangMonitor
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.protocol.instructions import CancelGang, DeliverResults, Instruction, JobEnded, Log, Send, SubmitGang
from tidegate.protocol.messages import (
    AckCheckpoint,
    CollectAck,
    CollectChunk,
    DeclineCheckpoint,
    DeclineReason,
    Deploy,
    Finish,
    Leave,
    MasterHeartbeat,
    Register,
    SlotFinished,
    SlotHeartbeat,
    SlotReady,
    SlotToMaster,
    Start,
    TaskEndOfData,
)
from tidegate.storage.handles import TaskSnapshot

METRIC = MetricReport(0, 0, "numRecordsIn", CounterValue(1))


def running(restarts: int = 0, delay: float = 0.0, checkpoints: CheckpointSettings | None = None) -> Driver:
    driver = Driver(restart=FixedDelay(restarts, delay), checkpoints=checkpoints)
    driver.start()
    driver.run()
    assert driver.master.status is JobStatus.RUNNING
    return driver


def chunk(seq: int, payload: bytes = b"x", attempt: int = 0, subtask: int = 1) -> CollectChunk:
    return CollectChunk(
        attempt=AttemptNumber(attempt), operator_id=KEYED, subtask=SubtaskIndex(subtask), seq=seq, payload=payload
    )


# ---------------------------------------------------------------- a healthy attempt


def test_a_bounded_job_goes_through_its_steps_to_finished() -> None:
    driver = Driver()
    assert driver.of(SubmitGang, driver.start()) == [SubmitGang(AttemptNumber(0), 2)]
    assert driver.register(1) == []
    deployed = driver.sent(Deploy, driver.register(0))
    assert [slot for slot, _ in deployed] == [0, 1]
    assert msgspec.msgpack.decode(deployed[0][1].addresses) == ["tcp://h:0", "tcp://h:1"]
    assert deployed[0][1].addresses is deployed[1][1].addresses  # encoded once, however many slots there are
    assert deployed[0][1].plan == b"plan0"
    assert deployed[0][1].restore == b""
    assert driver.master.status is JobStatus.CREATED
    assert len(driver.sent(Start, driver.ready_all())) == 2
    assert driver.master.status is JobStatus.RUNNING
    assert len(driver.sent(Finish, driver.end_of_data())) == 2
    assert len(driver.sent(Leave, driver.finish_all())) == 2
    assert driver.ended is None
    driver.now += 50
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FINISHED
    assert driver.ended.accumulators == (b"0", b"1")
    assert driver.ended.runtime_ms == 50
    assert not driver.of(CancelGang, driver.log)


def test_the_end_of_data_of_one_task_twice_is_not_the_end_of_all() -> None:
    driver = running()
    tasks = list(driver.graph.all_tasks())
    for _ in range(5):
        for vertex, subtask in tasks[:-1]:
            message = TaskEndOfData(attempt=driver.attempt, vertex=vertex, subtask=subtask)
            assert not driver.sent(Finish, driver.tell(message))
    vertex, subtask = tasks[-1]
    last = TaskEndOfData(attempt=driver.attempt, vertex=vertex, subtask=subtask)
    assert driver.sent(Finish, driver.tell(last))
    assert not driver.sent(Finish, driver.tell(last))


def test_a_gang_that_does_not_leave_after_the_end_is_cancelled_and_the_job_is_finished() -> None:
    driver = running()
    driver.end_of_data()
    driver.finish_all()
    out = driver.wait(2_500, alive=False)
    assert driver.of(CancelGang, out) == [CancelGang(AttemptNumber(0))]
    assert driver.ended is None
    driver.wait(2_500, alive=False)
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FINISHED


def test_a_worker_that_dies_after_all_slots_have_finished_does_not_matter() -> None:
    driver = running(restarts=3)
    driver.end_of_data()
    driver.finish_all()
    driver.exit("python worker died")
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FINISHED
    assert driver.ended.failures == ()


# ---------------------------------------------------------------- registration


def test_the_same_worker_may_register_twice() -> None:
    driver = Driver()
    driver.start()
    driver.register(0)
    assert driver.register(0) == []
    assert driver.sent(Deploy, driver.register(1))


def test_a_second_worker_for_a_slot_must_leave_and_shows_that_the_gang_is_broken() -> None:
    driver = running(restarts=1)
    out = driver.register(1, incarnation="rival")
    first = next(i for i in out if isinstance(i, Send))
    assert first.incarnation == "rival"
    assert isinstance(first.message, Leave)
    assert driver.master.status is JobStatus.FAILING
    assert "Spark has lost a worker" in driver.master.failures[0].failure.summary


def test_a_worker_of_an_old_attempt_must_leave() -> None:
    driver = running(restarts=1)
    driver.fail()
    driver.exit()
    assert driver.attempt == 1
    out = driver.register(0, attempt=0, incarnation="late")
    assert only(driver.sent(Leave, out))[1].attempt == 0
    assert driver.master.fenced_messages == 1


def test_a_slot_that_does_not_exist_must_leave() -> None:
    driver = Driver()
    driver.start()
    out = driver.register(9, incarnation="lost")
    assert "there is no slot 9" in only(driver.sent(Leave, out))[1].reason
    assert driver.master.status is JobStatus.CREATED


def test_a_worker_that_registers_while_the_gang_leaves_must_leave_too() -> None:
    driver = Driver()
    driver.start()
    driver.register(0)
    driver.cancel()
    assert driver.sent(Leave, driver.register(1))


# ---------------------------------------------------------------- failures


def test_a_failed_task_ends_the_job_without_a_restart_strategy() -> None:
    driver = Driver()
    driver.start()
    driver.run()
    out = driver.fail("map (2) raised ValueError", traceback="File my_job.py")
    assert len(driver.sent(Leave, out)) == 2
    assert driver.ended is None
    driver.exit()
    ended = driver.ended
    assert ended is not None
    assert ended.status is JobStatus.FAILED
    assert only(list(ended.failures)).failure.traceback == "File my_job.py"
    assert "no restart strategy" in ended.reason


def test_the_next_attempt_starts_when_the_gang_is_gone_and_the_delay_is_over() -> None:
    driver = running(restarts=1, delay=1_000)
    driver.fail()
    driver.now += 400
    driver.exit()
    assert driver.master.status is JobStatus.RESTARTING
    assert not driver.of(SubmitGang, driver.wait(599))
    assert driver.of(SubmitGang, driver.wait(1)) == [SubmitGang(AttemptNumber(1), 2)]
    driver.run()
    assert driver.master.status is JobStatus.RUNNING


def test_a_restart_without_delay_follows_the_exit_of_the_gang_at_once() -> None:
    driver = running(restarts=1)
    driver.fail()
    assert driver.of(SubmitGang, driver.exit()) == [SubmitGang(AttemptNumber(1), 2)]


def test_a_gang_that_does_not_leave_is_cancelled_after_its_grace_and_does_not_hold_up_the_restart() -> None:
    driver = running(restarts=1)
    driver.fail()
    out = driver.wait(2_500, alive=False)
    assert [type(i) for i in out if isinstance(i, CancelGang | SubmitGang)] == [CancelGang, SubmitGang]
    assert driver.exit("killed", attempt=0) == []
    driver.run()
    assert driver.master.status is JobStatus.RUNNING


def test_only_the_first_cause_of_an_attempt_counts() -> None:
    driver = running()
    driver.fail("first")
    driver.fail("second", slot=1)
    driver.exit("Spark: worker crashed")
    ended = driver.ended
    assert ended is not None
    assert [f.failure.summary for f in ended.failures] == ["first"]


@pytest.mark.parametrize("by_spark", [True, False])
def test_a_cause_gives_way_when_it_only_followed_from_another(by_spark: bool) -> None:
    driver = running()
    driver.fail("connection to slot 1 lost", consequence=True)
    if not by_spark:
        driver.fail("slot 1: out of memory", slot=1)
    driver.exit("worker of slot 1 was killed")
    ended = driver.ended
    assert ended is not None
    assert "slot 1" in only(list(ended.failures)).failure.summary
    assert not ended.failures[0].failure.consequence
    assert ("killed" in ended.failures[0].failure.summary) is by_spark


def test_a_permanent_failure_ends_the_job_whatever_the_strategy_says() -> None:
    driver = running(restarts=10)
    driver.fail("no module named foo", permanent=True)
    driver.exit()
    ended = driver.ended
    assert ended is not None
    assert ended.status is JobStatus.FAILED
    assert ended.failed_attempts == 1


def test_the_end_carries_the_causes_of_all_attempts() -> None:
    driver = running(restarts=2)
    for n in range(3):
        driver.fail(f"failure {n}")
        driver.exit()
        if n < 2:
            driver.run()
    ended = driver.ended
    assert ended is not None
    assert [(f.attempt, f.failure.summary) for f in ended.failures] == [(n, f"failure {n}") for n in range(3)]
    assert "2 restarts" in ended.reason


def test_the_memory_of_causes_is_bounded() -> None:
    driver = running(restarts=100)
    for n in range(60):
        driver.fail(f"failure {n}")
        driver.exit()
        driver.run()
    kept = [f.attempt for f in driver.master.failures]
    assert kept == [0, *range(41, 60)]


@pytest.mark.parametrize("error", [None, "executor lost"])
def test_a_gang_that_goes_away_before_the_end_is_a_failure(error: str | None) -> None:
    driver = running(restarts=1)
    out = driver.exit(error)
    assert driver.of(SubmitGang, out)
    assert (error or "went away") in driver.master.failures[0].failure.summary


def test_a_gang_that_is_refused_by_spark_is_a_failure() -> None:
    driver = Driver()
    driver.start()
    driver.exit("not enough slots")
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert not driver.of(CancelGang, driver.log)


def test_slots_that_do_not_come_up_in_time_are_named() -> None:
    driver = Driver(settings=JobSettings("test job", start_timeout_ms=5_000))
    driver.start()
    driver.register(0)
    driver.wait(5_000)
    driver.exit()
    assert driver.ended is not None
    summary = driver.ended.failures[0].failure.summary
    assert "only 1 of 2 workers" in summary
    assert "slot 1" in summary
    assert "tidegate.slot.start-timeout" in summary


def test_restoring_may_take_longer_than_the_start_timeout() -> None:
    driver = Driver(settings=JobSettings("test job", start_timeout_ms=5_000))
    driver.start()
    driver.register_all()
    driver.wait(60_000)
    driver.ready_all()
    assert driver.master.status is JobStatus.RUNNING


def test_a_restore_that_hangs_fails_the_attempt_when_its_time_is_over() -> None:
    driver = Driver(settings=JobSettings("test job", restore_timeout_ms=90_000))
    driver.start()
    driver.register_all()
    driver.tell(SlotReady(attempt=AttemptNumber(0), slot=SlotIndex(0)))
    driver.wait(89_999)
    assert driver.master.status is JobStatus.CREATED
    driver.wait(1)
    assert driver.master.status is not JobStatus.CREATED
    driver.exit()
    assert driver.ended is not None
    summary = driver.ended.failures[0].failure.summary
    assert "1 of 2 workers have not opened their functions within 90 s" in summary
    assert "worker of slot 1" in summary
    assert "tidegate.slot.restore-timeout" in summary


def test_messages_of_old_attempts_change_nothing() -> None:
    driver = running(restarts=1)
    driver.fail()
    driver.exit()
    driver.run()
    late = [TaskEndOfData(attempt=AttemptNumber(0), vertex=v, subtask=s) for v, s in driver.graph.all_tasks()]
    assert [driver.tell(message) for message in late] == [[], [], [], []]
    assert driver.tell(chunk(0, attempt=0)) == []
    assert driver.exit("late", attempt=0) == []
    assert driver.master.status is JobStatus.RUNNING
    assert driver.master.fenced_messages == 5


# ---------------------------------------------------------------- heartbeats


def test_both_sides_hear_from_each_other() -> None:
    driver = running()
    out = driver.wait(10_000)
    assert len(driver.sent(MasterHeartbeat, out)) == 2 * 10
    assert driver.master.status is JobStatus.RUNNING


def test_a_slot_hears_of_the_master_while_it_waits_for_the_others() -> None:
    driver = Driver()
    driver.start()
    driver.register(0)
    assert driver.sent(MasterHeartbeat, driver.wait(3_000))


def test_a_silent_worker_fails_the_attempt_and_is_named() -> None:
    driver = running()
    for _ in range(8):
        driver.now += 1_000
        driver.tell(SlotHeartbeat(attempt=driver.attempt, slot=0, metrics=(METRIC,)))
        driver.do(driver.master.on_tick)
    assert driver.master.status is JobStatus.FAILING
    summary = driver.master.failures[0].failure.summary
    assert summary == "worker of slot 1 (h, pid 101) has not answered for 8 s"
    assert driver.master.members[0].metrics == (METRIC,)


def test_a_pause_of_the_master_itself_is_not_blamed_on_the_workers() -> None:
    driver = running()
    driver.now += 100_000
    driver.do(driver.master.on_tick)
    assert driver.master.status is JobStatus.RUNNING
    driver.wait(8_000, alive=False)
    assert driver.master.status is JobStatus.FAILING


def test_a_timeout_not_above_the_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        JobSettings("x", heartbeat_interval_ms=1_000, heartbeat_timeout_ms=1_000)


# ---------------------------------------------------------------- cancel


def test_a_job_can_be_cancelled_before_it_starts() -> None:
    driver = Driver()
    driver.cancel()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.CANCELED


def test_a_gang_without_workers_is_dropped_at_once_when_the_job_is_cancelled() -> None:
    driver = Driver()
    driver.start()
    assert driver.of(CancelGang, driver.cancel())
    driver.exit("cancelled")
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.CANCELED


def test_a_running_job_is_cancelled_by_leave_messages() -> None:
    driver = running(restarts=5)
    assert len(driver.sent(Leave, driver.cancel())) == 2
    assert driver.cancel() == []
    driver.exit("whatever")
    ended = driver.ended
    assert ended is not None
    assert ended.status is JobStatus.CANCELED
    assert ended.failures == ()


def test_a_job_can_be_cancelled_while_it_waits_for_its_restart() -> None:
    driver = running(restarts=5, delay=60_000)
    driver.fail()
    driver.exit()
    driver.cancel()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.CANCELED
    assert not [i for i in driver.log if isinstance(i, SubmitGang) and i.attempt == 1]


def test_a_job_can_be_cancelled_while_its_gang_leaves() -> None:
    driver = running(restarts=5)
    driver.fail()
    driver.cancel()
    assert driver.ended is None
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.CANCELED


def test_a_job_can_be_cancelled_when_its_gang_never_left() -> None:
    driver = running(restarts=5, delay=60_000)
    driver.fail()
    driver.wait(2_500, alive=False)
    assert driver.master.status is JobStatus.RESTARTING
    driver.cancel()
    assert driver.ended is None  # Spark was asked to kill it, and is given the time to do so
    driver.wait(2_500, alive=False)
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.CANCELED


@pytest.mark.parametrize("error", [None, "ExecutorLostFailure"])
def test_a_gang_may_exit_during_the_delay_of_the_restart(error: str | None) -> None:
    """Its workers had their time to leave, Spark killed them, and says so while the next attempt is not yet due."""
    driver = running(restarts=1, delay=60_000)
    driver.fail("boom")
    driver.wait(2_500, alive=False)
    assert driver.of(CancelGang, driver.log)
    assert driver.exit(error) == []
    assert driver.master.status is JobStatus.RESTARTING
    assert only(driver.of(SubmitGang, driver.wait(57_500))).attempt == 1
    driver.run()
    assert driver.master.status is JobStatus.RUNNING
    assert [f.failure.summary for f in driver.master.failures] == ["boom"]


def test_a_job_whose_gang_exits_during_the_delay_can_be_cancelled() -> None:
    driver = running(restarts=1, delay=60_000)
    driver.fail()
    driver.wait(2_500, alive=False)
    driver.exit()
    driver.cancel()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.CANCELED


def test_a_cancelled_job_whose_workers_hang_ends_after_two_graces() -> None:
    driver = running()
    driver.cancel()
    driver.wait(2_500, alive=False)
    assert driver.of(CancelGang, driver.log)
    assert driver.ended is None
    driver.wait(2_500, alive=False)
    assert driver.ended is not None
    assert driver.master.next_deadline() is None


def test_a_job_that_has_committed_everything_cannot_be_cancelled() -> None:
    driver = running()
    driver.end_of_data()
    driver.finish_all()
    assert driver.cancel() == []
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FINISHED


def test_after_the_end_everything_is_harmless() -> None:
    driver = running()
    driver.cancel()
    driver.exit()
    before = len(driver.log)
    driver.cancel()
    driver.exit("again")
    driver.wait(100_000)
    driver.fail()
    driver.end_of_data()
    assert len(driver.log) == before
    assert driver.sent(Leave, driver.register(0))


# ---------------------------------------------------------------- results


def test_results_are_delivered_once_and_in_order_over_restarts() -> None:
    driver = running(restarts=1, checkpoints=CheckpointSettings(interval_ms=1_000))
    driver.tell(chunk(0, b"a"))
    driver.tell(chunk(1, b"b"))
    driver.tell(chunk(0, b"other", subtask=0))
    driver.fail()
    driver.exit()
    driver.run()
    assert driver.sent(CollectAck, driver.tell(chunk(1, b"b", attempt=1)))
    driver.tell(chunk(2, b"c", attempt=1))
    delivered = driver.of(DeliverResults, driver.log)
    assert [(d.subtask, d.seq, d.payload) for d in delivered] == [
        (1, 0, b"a"),
        (1, 1, b"b"),
        (0, 0, b"other"),
        (1, 2, b"c"),
    ]


def test_the_sink_hears_when_the_client_has_taken_a_chunk() -> None:
    driver = running()
    assert not driver.sent(CollectAck, driver.tell(chunk(0)))
    out = driver.do(driver.master.on_results_taken, KEYED, SubtaskIndex(1), 0)
    assert only(driver.sent(CollectAck, out))[0] == driver.graph.slot_of(VertexId(1), SubtaskIndex(1))


def test_a_missing_chunk_fails_the_job_rather_than_losing_results() -> None:
    driver = running(restarts=5)
    driver.tell(chunk(1))
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert "chunk 1" in driver.ended.failures[0].failure.summary


# ---------------------------------------------------------------- the status machine


def test_a_failure_is_logged_with_the_job_and_the_cause() -> None:
    driver = running()
    out = driver.fail("the cause")
    log = next(i for i in driver.of(Log, out) if i.level == logging.WARNING)
    assert "test job" in log.text
    assert "the cause" in log.text


def test_slots_of_a_graph_with_few_sources_are_all_waited_for() -> None:
    driver = Driver(job=graph(parallelism=3, sources=1))
    driver.start()
    driver.register(0)
    driver.register(1)
    assert driver.sent(Deploy, driver.register(2))
    assert [type(i) for i in driver.log if isinstance(i, JobEnded)] == []


# ---------------------------------------------------------------- messages that cannot be true, or cannot be read

NOT_THERE = [
    TaskEndOfData(attempt=AttemptNumber(0), vertex=VertexId(9), subtask=SubtaskIndex(0)),
    TaskEndOfData(attempt=AttemptNumber(0), vertex=VertexId(-1), subtask=SubtaskIndex(0)),
    TaskEndOfData(attempt=AttemptNumber(0), vertex=VertexId(0), subtask=SubtaskIndex(77)),
    SlotHeartbeat(attempt=AttemptNumber(0), slot=SlotIndex(2)),
    SlotReady(attempt=AttemptNumber(0), slot=SlotIndex(-1)),
    SlotFinished(attempt=AttemptNumber(0), slot=SlotIndex(5)),
    chunk(0, subtask=3),
    CollectChunk(attempt=AttemptNumber(0), operator_id=OperatorId("x"), subtask=SubtaskIndex(0), seq=0, payload=b""),
    DeclineCheckpoint(
        attempt=AttemptNumber(0),
        checkpoint_id=CheckpointId(1),
        vertex=VertexId(8),
        subtask=SubtaskIndex(0),
        reason=DeclineReason.WRITE_FAILED,
    ),
    AckCheckpoint(
        attempt=AttemptNumber(0),
        checkpoint_id=CheckpointId(1),
        snapshot=TaskSnapshot(vertex=VertexId(0), subtask=SubtaskIndex(9), operators=[]),
    ),
]


@pytest.mark.parametrize("message", NOT_THERE, ids=lambda m: type(m).__name__)
def test_a_message_that_names_what_the_job_does_not_have_fails_the_attempt_and_not_the_job(
    message: SlotToMaster,
) -> None:
    driver = running(restarts=1)
    assert len(driver.sent(Leave, driver.tell(message))) == 2
    assert "which this job does not have" in driver.master.failures[0].failure.summary
    driver.exit()
    driver.run()
    assert driver.master.status is JobStatus.RUNNING
    assert driver.attempt == 1


def unreadable(driver: Driver, sender: str, permanent: bool = False) -> list[Instruction]:
    return driver.do(driver.master.on_unreadable, sender, "a control message cannot be read", permanent)


def test_what_cannot_be_read_fails_the_attempt_of_its_sender() -> None:
    driver = running(restarts=1)
    assert len(driver.sent(Leave, unreadable(driver, "0/1"))) == 2
    assert driver.master.failures[0].failure.summary == (
        "from a worker of slot 1 (h, pid 101): a control message cannot be read"
    )
    unreadable(driver, "0/0")  # while they leave: nothing more
    driver.exit()
    driver.run()
    assert (driver.attempt, driver.master.status) == (1, JobStatus.RUNNING)


def test_what_a_stranger_to_the_attempt_says_is_only_logged() -> None:
    driver = running()
    out = unreadable(driver, "old/0")
    assert [type(i) for i in out] == [Log]
    assert driver.master.status is JobStatus.RUNNING


def test_a_worker_of_another_version_fails_the_job_at_once() -> None:
    driver = Driver(restart=FixedDelay(10, 0.0))
    driver.start()
    driver.register(0)
    unreadable(driver, "new/1", permanent=True)
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert "has not registered: a control message cannot be read" in driver.ended.failures[0].failure.summary


# ---------------------------------------------------------------- without Spark


def test_a_job_fails_at_once_when_spark_is_gone() -> None:
    driver = running(restarts=100)
    driver.do(driver.master.on_engine_gone, driver.attempt, "its session was stopped")
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert (
        driver.ended.failures[-1].failure.summary == "Spark is gone, and with it the workers: its session was stopped"
    )
    assert driver.ended.failed_attempts == 1


def test_a_job_whose_workers_have_failed_before_spark_was_known_to_be_gone_is_not_restarted() -> None:
    driver = running(restarts=100)
    driver.fail()
    assert driver.status is JobStatus.FAILING
    driver.do(driver.master.on_engine_gone, driver.attempt, "its JVM has died")
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert "its JVM has died" in driver.ended.reason


@pytest.mark.parametrize("state", ["delay", "ending", "cancelled", "ended"])
def test_spark_may_be_gone_at_any_time(state: str) -> None:
    driver = running(restarts=0 if state == "ending" else 100)
    if state == "cancelled":
        driver.cancel()
    else:
        driver.fail()
    if state == "delay":
        driver.wait(2_500, alive=False)
    attempt = driver.attempt
    if state == "ended":
        driver.cancel()
        driver.exit()
    driver.do(driver.master.on_engine_gone, attempt, "its session was stopped")
    driver.wait(60_000, alive=False)
    if state == "delay":
        driver.do(driver.master.on_engine_gone, driver.attempt, "its session was stopped")
    assert driver.ended is not None
    expected = JobStatus.CANCELED if state in ("cancelled", "ended") else JobStatus.FAILED
    assert driver.ended.status is expected


def test_a_deadline_of_silence_is_one_whatever_the_rounding() -> None:
    """Otherwise the host, told to come at the deadline, would come again and again until time has moved on a little."""
    for i in range(200):
        registered, timeout = 1_000_000.0 + i * 0.1, 734.4779365014717 + i / 7
        settings = JobSettings("j", heartbeat_interval_ms=timeout / 1.5, heartbeat_timeout_ms=timeout)
        gang = Gang(AttemptNumber(0), graph(), registered)
        gang.register(
            Register(attempt=gang.attempt, slot=SlotIndex(0), data_address="", host="h", pid=1, incarnation="i"),
            registered,
        )
        monitor = GangMonitor(gang, settings)
        monitor.heartbeat_due(registered + timeout / 1.5)
        due = monitor.deadline()
        assert due is not None
        assert monitor.silence(due) is not None
