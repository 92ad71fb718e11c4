"""Paths of checkpoints are noted without secrets, and opened with those of the checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tests.unit.storage.snapshots import checkpoint
from tidegate.common.configuration import Configuration
from tidegate.jobmanager import preparation
from tidegate.jobmanager.channel_assignment import UnmovableRecordsError
from tidegate.jobmanager.leadership.job_record import SnapshotPointer
from tidegate.jobmanager.starting_points import starting_points, storage_options
from tidegate.jobmanager.storage_work import StorageWork
from tidegate.protocol.instructions import DeleteClaimed
from tidegate.storage import files, job_lock
from tidegate.storage.filesystem import FileSystemStorage, storage_in
from tidegate.storage.leases.cells import FileCell
from tidegate.storage.location import StorageLocation

SECRETS = {"access_key": "me", "secret_key": "hidden", "session_token": "brief"}


class Bucket:
    """S3, as far as `files` knows it: opens only with the secrets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused: list[str] = []

    def open(self, location: StorageLocation) -> Any:
        if not SECRETS.items() <= dict(location.options).items():
            self.refused.append(location.uri)
            raise PermissionError(f"no keys for {location.uri}")
        return SubTreeFileSystem(str(self.folder), LocalFileSystem()), location.uri.removeprefix("s3://")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket(tmp_path)
    monkeypatch.setattr(files, "_s3_filesystem", bucket.open)
    cells = StorageLocation.parse(str(tmp_path / "cells"))
    monkeypatch.setattr(job_lock, "open_cell", lambda location, name, **_: FileCell(cells, name))
    files._open_files.cache_clear()
    return bucket


def directory(tmp_path: Path) -> str:
    """With everything in the URI."""
    query = "&".join(f"{name}={value}" for name, value in SECRETS.items())
    return f"s3://{tmp_path.name}/checkpoints?region=here&{query}"


def earlier_run(tmp_path: Path, *numbers: int) -> FileSystemStorage:
    storage = FileSystemStorage(directory(tmp_path), "job")
    storage.open(0.0)
    for n in numbers:
        storage.write_metadata(msgspec.structs.replace(checkpoint(n), epoch=1))
    storage.close()
    assert "hidden" not in storage.root
    return storage


def configured(tmp_path: Path, **more: str) -> Configuration:
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", directory(tmp_path))
    for key, value in more.items():
        configuration.set_string(key, value)
    return configuration


@pytest.mark.parametrize("stopped", [False, True])
def test_the_next_leader_reads_what_the_record_names(bucket: Bucket, tmp_path: Path, stopped: bool) -> None:
    pointer = SnapshotPointer(
        checkpoint_id=2, path=f"{earlier_run(tmp_path, 1, 2).root}".replace("?", "/chk-2?"), epoch=1
    )
    record: Any = SimpleNamespace(stopped=stopped, checkpoint=pointer, savepoint=pointer, older=())
    found = starting_points("job", configured(tmp_path), record).initial
    assert found is not None
    assert found.checkpoint_id == 2
    assert bucket.refused == []


def test_a_path_to_start_from_is_read_with_the_secrets_of_the_directory(bucket: Bucket, tmp_path: Path) -> None:
    path = f"{earlier_run(tmp_path, 1).root}".replace("?", "/chk-1?")
    found = starting_points("job", configured(tmp_path, **{"execution.state-recovery.path": path}), None).initial
    assert found is not None
    assert found.checkpoint_id == 1


def test_the_nearest_aligned_checkpoint_is_found(bucket: Bucket, tmp_path: Path) -> None:
    root = earlier_run(tmp_path, 1, 2).root
    point = preparation.RestorePoint(checkpoint(2), root)

    class Assigner:
        def assign(self, point: Any) -> None:
            raise UnmovableRecordsError("records in flight")

    assigner: Any = Assigner()
    known = storage_options(configured(tmp_path))
    assert preparation._restorable("job", assigner, point, known).checkpoint_id == 1


def test_a_claimed_checkpoint_is_deleted(bucket: Bucket, tmp_path: Path) -> None:
    earlier = earlier_run(tmp_path, 1, 2)
    storage = FileSystemStorage(directory(tmp_path), "next")
    work = StorageWork(storage)
    work.delete_claimed(DeleteClaimed(earlier.root, 1, False), 0.0)
    work.close()
    assert storage_in(StorageLocation.parse(earlier.root, SECRETS)).completed_checkpoints() == [2]
    assert bucket.refused == []
