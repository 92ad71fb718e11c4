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
from tidegate.protocol.instructions import DeleteSavepoint, DeleteState, WriteMetadata
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.handles import CheckpointMetadata
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

    def _pass(self, call: str) -> None:
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
        self.work = StorageWork(self.storage, StorageThreads(self.storage.root, warn_after_s=0.05))
        self.answers: list[tuple[int, str | None]] = []

    def write(self, n: int, target: str = "") -> None:
        metadata = msgspec.structs.replace(METADATA, checkpoint_id=CheckpointId(n))
        instruction = WriteMetadata(AttemptNumber(0), metadata, target)
        self.work.write_metadata(instruction, lambda error: self.answers.append((n, error)))

    def until(self, condition: Any) -> None:
        end = time.monotonic() + 10
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
    began = time.monotonic()
    assert host.work.close() is Closed.GIVEN_UP
    assert time.monotonic() - began < 5
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
