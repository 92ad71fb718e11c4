"""What a JobMaster asks of the storage, with a storage in which a call can hang."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.common.ids import AttemptNumber, CheckpointId
from tidegate.jobmanager import storage_work
from tidegate.jobmanager.storage_work import StorageWork
from tidegate.protocol.instructions import DeleteClaimed, DeleteSavepoint, DeleteState, WriteMetadata
from tidegate.storage import workers
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.leases.keeper import DirectoryTakenError, LeaseLostError
from tidegate.storage.metadata import FORMAT_VERSION
from tidegate.storage.workers import Closed, StorageThreads

METADATA = CheckpointMetadata(
    format_version=FORMAT_VERSION,
    job_id="job",
    job_name="a job",
    checkpoint_id=CheckpointId(1),
    timestamp=1,
    savepoint=False,
    unaligned=False,
    operators=[],
    channels=[],
    tidegate_version="0",
)


class HangingStorage(FileSystemStorage):
    """The real one, around which calls of one kind hang until they are let go."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory), "job")
        self.hangs = ""
        self.let_go = threading.Event()
        self.calls = 0  # that may hang
        self.owned = LeaseLostError("")
        self.is_lost = False
        self.lose_it_meanwhile = False

    def check_owned(self) -> None:
        if self.is_lost:
            raise self.owned
        self.is_lost = self.lose_it_meanwhile
        super().check_owned()

    def _pass(self, call: str) -> None:
        self.calls += 1
        if call == self.hangs:
            self.let_go.wait(60)

    def write_metadata(self, metadata: CheckpointMetadata) -> str:
        self._pass("write_metadata")
        return super().write_metadata(metadata)

    def delete(self, deletion: Any) -> list[str]:
        self._pass("delete")
        return super().delete(deletion)

    def delete_orphans(self) -> list[str]:
        self._pass("delete_orphans")
        return super().delete_orphans()

    def close(self) -> None:
        self._pass("close")
        super().close()


class Host:
    def __init__(self, tmp_path: Path) -> None:
        self.storage = HangingStorage(tmp_path)
        self.storage.open(0.0)
        self.taken: list[str] = []
        threads = StorageThreads(self.storage.root, warn_after_s=0.05)
        self.work = StorageWork(self.storage, threads, taken=self.taken.append)
        self.answers: list[tuple[int, str | None]] = []

    def write(self, n: int, target: str = "") -> None:
        metadata = msgspec.structs.replace(METADATA, checkpoint_id=CheckpointId(n))
        instruction = WriteMetadata(AttemptNumber(0), metadata, target)
        self.work.write_metadata(instruction, lambda error: self.answers.append((n, error)))

    def until(self, condition: Any) -> None:
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.01)
        assert condition()


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_work, "_PATIENCE_S", 0.3)
    host = Host(tmp_path)
    yield host
    host.storage.let_go.set()
    host.work.close()


def test_what_is_asked_for_is_done_and_the_storage_closed(host, tmp_path):
    host.write(1)
    host.write(2)
    host.write(3, str(tmp_path / "savepoint"))
    host.until(lambda: len(host.answers) == 3)
    assert sorted(host.answers) == [(1, None), (2, None), (3, None)]
    host.work.delete_state(DeleteState(("chk-1/_metadata",), ("chk-1",)))
    host.work.delete_savepoint(DeleteSavepoint(str(tmp_path / "savepoint")))
    host.work.delete_orphans()
    assert host.work.close() is Closed.ALL_DONE
    assert not (tmp_path / "savepoint").exists()
    assert sorted(p.name for p in (tmp_path / "job").iterdir()) == ["chk-2"]


def test_an_error_is_the_answer(host, tmp_path):
    (tmp_path / "job" / "chk-1").write_text("in the way")
    host.write(1)
    host.until(lambda: host.answers)
    assert "StorageUnavailableError" in host.answers[0][1]


def test_a_deletion_that_hangs_stops_no_checkpoint_and_is_told_of(host, caplog):
    host.write(1)
    host.storage.hangs = "delete"
    host.work.delete_state(DeleteState(("chk-1/_metadata",), ("chk-1",)))
    host.write(2)
    host.until(lambda: (2, None) in host.answers)
    host.work.watch()
    time.sleep(0.1)
    host.work.watch()
    assert f"{host.storage.root}: deleting chk-1/_metadata has not returned for" in caplog.text


def test_metadata_that_is_written_late_does_not_outlive_its_files(host, tmp_path):
    host.storage.hangs = "write_metadata"
    host.write(1)
    host.work.delete_state(DeleteState(("chk-1/_metadata",), ("chk-1",)))
    host.work.delete_orphans()
    time.sleep(0.1)
    host.storage.let_go.set()
    assert host.work.close() is Closed.ALL_DONE
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("call", ["write_metadata", "delete", "delete_orphans", "close"])
def test_the_end_comes_whatever_hangs(host, caplog, call):
    host.storage.hangs = call
    host.write(1)
    host.work.delete_state(DeleteState((), ("chk-7",)))
    host.work.delete_orphans()
    assert host.work.close() is Closed.GIVEN_UP
    assert f"{host.storage.root}: " in caplog.text
    assert "is not waited for any longer" in caplog.text


def test_many_files_are_deleted_in_pieces(host, tmp_path):
    folder = tmp_path / "job" / "shared"
    folder.mkdir()
    for n in range(250):
        (folder / str(n)).write_text("")
    pieces: list[int] = []
    delete = host.storage.delete
    host.storage.delete = lambda deletion: (pieces.append(len(deletion.files)), delete(deletion))[1]
    host.work.delete_state(DeleteState(tuple(f"shared/{n}" for n in range(250)), ()))
    assert host.work.close() is Closed.ALL_DONE
    assert pieces == [100, 100, 50]
    assert not folder.exists()


def test_what_is_left_out_behind_a_deletion_that_hangs_leaves_no_half_checkpoints(host, tmp_path, monkeypatch):
    """With room for one more: the metadata of checkpoint 1 must not stay when what it needs goes."""
    monkeypatch.setattr(workers, "MAX_WAITING", 1)
    job = tmp_path / "job"
    (job / "shared").mkdir()
    (job / "shared" / "a").write_text("")
    for n in (1, 2):
        host.write(n)
    host.until(lambda: len(host.answers) == 2)
    own = [f"chk-1/{n}" for n in range(150)]
    for path in own:
        (job / path).write_text("")
    host.storage.hangs = "delete"
    begun = host.storage.calls
    host.work.delete_state(DeleteState((), ("chk-7",)))
    host.until(lambda: host.storage.calls > begun)
    host.work.delete_state(DeleteState((), ("chk-8",)))
    host.work.delete_state(DeleteState(("chk-1/_metadata", *own), ("chk-1",)))  # left out, as a whole
    host.storage.let_go.set()
    host.until(lambda: host.storage.calls == begun + 2)
    assert host.storage.completed_checkpoints() == [1, 2]
    assert all((job / path).exists() for path in own)
    host.work.delete_state(DeleteState(("shared/a",), ()))
    assert host.work.close() is Closed.ALL_DONE
    assert host.storage.completed_checkpoints() == [2]
    assert not (job / "shared" / "a").exists()


# ---------------------------------------------------------------- a run that has lost its directory


@pytest.mark.parametrize("savepoint", [False, True])
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_run_that_has_lost_its_directory_completes_nothing(host, tmp_path, savepoint, meanwhile):
    host.storage.is_lost, host.storage.lose_it_meanwhile = not meanwhile, meanwhile
    host.write(1, str(tmp_path / "savepoint") if savepoint else "")
    host.until(lambda: host.answers)
    assert "LeaseLostError" in host.answers[0][1]
    assert host.taken == []


@pytest.mark.parametrize("savepoint", [False, True])
def test_that_another_run_has_taken_the_directory_for_good_is_told_before_the_answer(host, tmp_path, savepoint):
    host.storage.is_lost, host.storage.owned = True, DirectoryTakenError("by process 7")
    told: list[int] = []
    host.work._taken = lambda why: told.append(len(host.answers))
    host.write(1, str(tmp_path / "savepoint") if savepoint else "")
    host.until(lambda: host.answers)
    assert told == [0]
    assert "by process 7" in host.answers[0][1]


def test_a_run_that_has_lost_its_directory_deletes_neither_savepoints_nor_claimed_checkpoints(host, tmp_path):
    host.write(1, str(tmp_path / "savepoint"))
    other = FileSystemStorage(str(tmp_path), "other")
    other.open(0.0)
    other.write_metadata(METADATA)
    other.close()
    host.until(lambda: host.answers)
    host.storage.is_lost = True
    host.work.delete_savepoint(DeleteSavepoint(str(tmp_path / "savepoint")))
    host.work.delete_claimed(DeleteClaimed(other.root, CheckpointId(1), False), 0.0)
    assert host.work.close() is Closed.ALL_DONE
    assert (tmp_path / "savepoint" / "_metadata").exists()
    assert other.completed_checkpoints() == [1]
