"""What a leader starts from, and what it falls back to: checkpoints of earlier leaders that the record names."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from jobmanager_kit import KEYED, Driver, graph, list_state, metadata, only, operator, operator_metadata

from tidegate.common.configuration import Configuration
from tidegate.common.errors import SnapshotDamagedError, StorageUnavailableError
from tidegate.common.ids import CheckpointId
from tidegate.common.job_status import JobStatus
from tidegate.fault_tolerance.barriers.settings import CheckpointSettings
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.leadership.job_record import GraphOutline, JobRecord, SnapshotPointer
from tidegate.jobmanager.starting_points import StartingPoints, starting_points
from tidegate.protocol.instructions import DeleteClaimed, Instruction, Log, RecordSnapshot
from tidegate.protocol.messages import Deploy, TriggerCheckpoint
from tidegate.storage import files
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import CheckpointMetadata, SlotRestore

JOB = "0" * 32


def content(n: int, epoch: int) -> CheckpointMetadata:
    operators = [operator(KEYED, lists=(list_state("l", "split", 1),)) for _ in range(2)]
    found = metadata(operator_metadata(KEYED, *operators), checkpoint_id=n)
    return msgspec.structs.replace(found, epoch=epoch, job_id=JOB)


# ---------------------------------------------------------------- reading what the record names


@pytest.fixture
def record(tmp_path: Path) -> JobRecord:
    """Of a job whose second leader has completed checkpoints 3 and 4, and the one before it 1 and 2."""
    pointers = []
    for epoch, numbers in ((1, (1, 2)), (2, (3, 4))):
        storage = FileSystemStorage(str(tmp_path), f"{JOB}-e{epoch}")
        storage.open(0.0)
        for n in numbers:
            path = storage.write_metadata(content(n, epoch))
            pointers.append(SnapshotPointer(checkpoint_id=CheckpointId(n), path=path, epoch=epoch))
        storage.close()
    *older, newest = pointers
    outline = GraphOutline(operators=(), edges=())
    return JobRecord(job_id=JOB, name="job", graph=outline, epoch=3, checkpoint=newest, older=tuple(reversed(older)))


def started(record: JobRecord) -> StartingPoints:
    return starting_points("job", Configuration(), record)


def numbers(start: StartingPoints) -> list[int]:
    assert start.initial is not None
    assert all(point.owned for point in (start.initial, *start.older))
    return [point.checkpoint_id for point in (start.initial, *start.older)]


def file_of(tmp_path: Path, n: int, epoch: int) -> Path:
    return tmp_path / f"{JOB}-e{epoch}" / f"chk-{n}" / "_metadata"


def test_what_the_record_names_is_known_in_order_with_the_directory_of_each(record: JobRecord, tmp_path: Path) -> None:
    start = started(record)
    assert numbers(start) == [4, 3, 2, 1]
    assert [point.root for point in start.older] == [str(tmp_path / f"{JOB}-e{e}") for e in (2, 1, 1)]
    assert start.highest_id == 4


def test_what_only_looks_complete_is_not_started_from(record: JobRecord, tmp_path: Path) -> None:
    """Of a leader that was deposed when it had written the metadata, and before the record named the checkpoint."""
    storage = FileSystemStorage(str(tmp_path), f"{JOB}-e1")
    storage.open(0.0)
    storage.write_metadata(content(3, 1))
    storage.close()
    assert [(p.checkpoint_id, p.metadata.epoch) for p in started(record).older] == [(3, 2), (2, 1), (1, 1)]


@pytest.mark.parametrize(
    "damage", [lambda path: path.write_bytes(b"rotten"), Path.unlink, lambda path: shutil.rmtree(path.parent)]
)
def test_damaged_metadata_of_the_newest_one_is_fallen_back_from_and_the_log_says_so(
    record: JobRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    damage(file_of(tmp_path, 4, 2))
    start = started(record)
    assert numbers(start) == [3, 2, 1]
    assert start.highest_id == 4, "a new checkpoint 4 would not be recorded"
    assert "checkpoint 4 is damaged" in caplog.text
    assert "falling back to checkpoint 3" in caplog.text


def test_a_damaged_older_one_is_left_out(record: JobRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file_of(tmp_path, 3, 2).write_bytes(b"rotten")
    assert numbers(started(record)) == [4, 2, 1]
    assert "checkpoint 3 of an earlier leader" in caplog.text
    assert "falling back" not in caplog.text


def test_a_directory_that_somebody_has_deleted_keeps_no_leader_from_starting(record: JobRecord, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / f"{JOB}-e1")
    assert numbers(started(record)) == [4, 3]


def test_no_leader_starts_while_it_cannot_know_what_there_is(record: JobRecord, tmp_path: Path) -> None:
    """Nothing older is taken for what is only away, and nothing that is away is left out."""
    folder = tmp_path / f"{JOB}-e2"
    folder.rename(tmp_path / "away")
    with pytest.raises(StorageUnavailableError):
        started(record)
    (tmp_path / "away").rename(folder)
    assert numbers(started(record)) == [4, 3, 2, 1]


@pytest.mark.parametrize("away", [1, 4])
def test_a_store_that_does_not_answer_for_one_of_them_is_asked_again_later(
    record: JobRecord, monkeypatch: pytest.MonkeyPatch, away: int
) -> None:
    read = files.LocalFiles.read

    def fails(self: files.LocalFiles, path: str) -> bytes:
        if path == f"chk-{away}/_metadata":
            raise StorageUnavailableError("away for a moment")
        return read(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(files.LocalFiles, "read", fails)
        with pytest.raises(StorageUnavailableError, match="for a moment"):
            started(record)
    assert numbers(started(record)) == [4, 3, 2, 1]


def test_one_bad_answer_proves_no_damage(record: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    read, answers = files.LocalFiles.read, [b"half"]
    monkeypatch.setattr(files.LocalFiles, "read", lambda self, path: answers.pop() if answers else read(self, path))
    assert numbers(started(record)) == [4, 3, 2, 1]
    assert not answers


def test_a_job_is_not_started_from_nothing_when_all_is_damaged(record: JobRecord, tmp_path: Path) -> None:
    for n in (1, 2, 3, 4):
        file_of(tmp_path, n, 1 + (n > 2)).write_bytes(b"rotten")
    with pytest.raises(SnapshotDamagedError, match="chk-4"):
        started(record)


# ---------------------------------------------------------------- falling back to it, and deleting it


def led_from(*given: tuple[str, int]) -> Driver:
    """A leader that is given checkpoints of earlier ones, newest first; it retains two of its own."""
    initial, *older = (RestorePoint(content(n, int(root[-1])), root, owned=True) for root, n in given)
    settings = CheckpointSettings(interval_ms=1_000, num_retained=2)
    job = dataclasses.replace(graph(), job_id=JOB)
    driver = Driver(job=job, checkpoints=settings, initial=initial, older=older, epoch=3)
    driver.start()
    driver.run()
    return driver


def restored(out: list[Instruction]) -> int:
    deploy = Driver.sent(Deploy, out)[0][1]
    assert deploy.restore is not None
    return msgspec.msgpack.decode(deploy.restore, type=SlotRestore).checkpoint_id


def test_what_is_retained_of_earlier_leaders_is_fallen_back_to_in_order() -> None:
    driver = led_from(("/c/e2", 41), ("/c/e1", 40), ("/c/e1", 39))
    for n, before in ((41, 40), (40, 39)):
        driver.fail("corrupt", corrupt_checkpoint=n)
        driver.exit()
        assert restored(driver.run()) == before
        assert any(f"falling back to checkpoint {before}" in log.text for log in driver.of(Log, driver.log))
    (trigger, *_) = [m.barrier for _, m in driver.sent(TriggerCheckpoint, driver.wait(1_000))]
    assert trigger.checkpoint_id == 42, "higher than all that the record has named"
    driver.fail("corrupt", corrupt_checkpoint=39)
    driver.exit()
    assert driver.ended is not None
    assert driver.ended.status is JobStatus.FAILED
    assert "checkpoint 39 is damaged and there is no other one" in driver.ended.reason


def test_what_was_refused_is_told_to_the_record() -> None:
    driver = led_from(("/c/e2", 41), ("/c/e1", 40))
    driver.fail("corrupt", corrupt_checkpoint=41)
    driver.exit()
    driver.run()
    driver.wait(1_000)
    driver.ack_all(42)
    assert only(driver.of(RecordSnapshot, driver.written(42))).refused == (41,)


def test_what_earlier_leaders_have_left_is_deleted_when_enough_is_recorded_in_its_place_and_not_before() -> None:
    driver = led_from(("/c/e2", 41), ("/c/e1", 40), ("/c/e1", 39))
    for n in (42, 43):
        assert driver.of(DeleteClaimed, driver.log) == []
        driver.wait(1_000)
        driver.ack_all(n)
        assert only(driver.of(RecordSnapshot, driver.written(n))).num_retained == 2
        assert driver.of(DeleteClaimed, driver.log) == []
        driver.do(driver.master.on_recorded, CheckpointId(n), True)
    claimed = driver.of(DeleteClaimed, driver.log)
    assert [(c.root, c.checkpoint_id, c.older) for c in claimed] == [("/c/e1", 40, True), ("/c/e2", 41, True)]
