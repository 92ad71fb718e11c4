"""The JobMaster beside other models of fault tolerance than barriers: none at all, and one that logs every bundle
before its results are released."""

from __future__ import annotations

from jobmanager_kit import EPOCH, ROOT, Driver, graph, metadata, only

from tidegate.common.ids import AttemptNumber, CheckpointId, SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.job_side import FinishAttempt, Outcome, TellSlots
from tidegate.fault_tolerance.none.job import NoFaultTolerance
from tidegate.fault_tolerance.recovery_points import Refusal, RestorePoint
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_settings import JobSettings
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.protocol.instructions import CheckpointRequestDone, WriteMetadata
from tidegate.protocol.messages import (
    AckCheckpoint,
    Deploy,
    FaultToleranceMessage,
    Finish,
    NotifyCheckpointComplete,
)


class BundleLog(NoFaultTolerance):
    """A transaction log in miniature. `AckCheckpoint` stands for "log this bundle", `NotifyCheckpointComplete` for
    "release its results", and the metadata of a checkpoint for an entry of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.attempt = AttemptNumber(0)
        self.logged: list[CheckpointId] = []
        self.writing: set[CheckpointId] = set()
        self.at_end = False

    def restore_point(self) -> RestorePoint | None:
        return RestorePoint(metadata(checkpoint_id=self.logged[-1]), ROOT) if self.logged else None

    def on_attempt_running(self, attempt: AttemptNumber, now_ms: float) -> list[Outcome]:
        self.attempt = attempt
        return super().on_attempt_running(attempt, now_ms)

    def on_message(self, message: FaultToleranceMessage, now_ms: float) -> list[Outcome]:
        assert isinstance(message, AckCheckpoint)
        n = message.checkpoint_id
        if n in self.logged:  # seen before: nothing is written twice, and the task may go on
            return [self._release(n)]
        self.writing.add(n)
        return [WriteMetadata(message.attempt, metadata(checkpoint_id=n))]

    def on_metadata_written(
        self, attempt: AttemptNumber, checkpoint_id: CheckpointId, error: str | None, now_ms: float
    ) -> list[Outcome]:
        self.writing.discard(checkpoint_id)
        self.logged.append(checkpoint_id)
        return [self._release(checkpoint_id), *self._finish()]

    def on_end_of_data(self, everywhere: bool, now_ms: float) -> list[Outcome]:
        self.at_end = everywhere
        return self._finish()

    @property
    def awaits_storage(self) -> bool:
        return bool(self.writing)

    def _release(self, n: CheckpointId) -> Outcome:
        return TellSlots((SlotIndex(0),), NotifyCheckpointComplete(attempt=self.attempt, checkpoint_id=n))

    def _finish(self) -> list[Outcome]:
        return [FinishAttempt()] if self.at_end and not self.writing else []


def driven(model: NoFaultTolerance) -> Driver:
    driver = Driver()
    driver.master = JobMaster(
        graph(), JobSettings("test job"), FixedDelay(3, 0), model, lambda attempt: b"plan%d" % attempt
    )
    driver.start()
    driver.run()
    return driver


def test_results_are_held_back_until_their_bundle_is_in_the_log() -> None:
    driver = driven(BundleLog())
    out = driver.ack(1, 0, 0)
    assert only(driver.of(WriteMetadata, out)).metadata.checkpoint_id == 1
    assert not driver.sent(NotifyCheckpointComplete, out)
    assert [slot for slot, _ in driver.sent(NotifyCheckpointComplete, driver.written(1))] == [0]


def test_a_bundle_that_was_logged_before_the_failure_is_recognised() -> None:
    driver = driven(BundleLog())
    driver.ack(1, 0, 0)
    driver.written(1)
    driver.fail()
    driver.exit()
    out = driver.register_all()
    assert all(message.restore for _, message in driver.sent(Deploy, out))
    assert driver.master.restored_checkpoint == 1
    driver.ready_all()
    again = driver.ack(1, 0, 0)
    assert driver.sent(NotifyCheckpointComplete, again)
    assert not driver.of(WriteMetadata, again)


def test_the_job_finishes_when_the_log_has_everything() -> None:
    driver = driven(BundleLog())
    driver.ack(1, 0, 0)
    assert not driver.sent(Finish, driver.end_of_data())
    assert driver.sent(Finish, driver.written(1))
    driver.finish_all()
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FINISHED


def test_without_fault_tolerance_every_attempt_begins_anew_and_nothing_can_be_saved() -> None:
    model = NoFaultTolerance()
    driver = driven(model)
    for savepoint in (False, True):
        done = only(driver.of(CheckpointRequestDone, driver.master.on_checkpoint_request(1, savepoint, EPOCH, "x")))
        assert "without fault tolerance" in str(done.error)
    driver.fail()
    driver.exit()
    assert not any(message.restore for _, message in driver.sent(Deploy, driver.register_all()))
    assert model.refuse(CheckpointId(1)) is Refusal.NOT_CURRENT
    driver.ready_all()
    assert driver.sent(Finish, driver.end_of_data())


def test_a_message_of_another_model_fails_the_job_and_not_the_jobmanager() -> None:
    driver = driven(NoFaultTolerance())
    driver.ack(1, 0, 0)
    assert "please file a bug" in driver.master.failures[-1].failure.summary
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
