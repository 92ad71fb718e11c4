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
from tidegate.common.errors import ConfigurationError
from tidegate.jobmanager import preparation
from tidegate.jobmanager.channel_assignment import UnmovableRecordsError
from tidegate.jobmanager.job_view import settings_of
from tidegate.jobmanager.leadership.job_record import SnapshotPointer
from tidegate.jobmanager.starting_points import starting_points, storage_options
from tidegate.jobmanager.storage_work import StorageWork
from tidegate.protocol.instructions import DeleteClaimed
from tidegate.spark.state_tables import running_job
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


def test_a_location_that_is_shown_is_the_place_without_the_secrets() -> None:
    for uri in (
        "s3://me:hidden@bucket/path?region=here&session_token=brief",
        "s3://bucket/path?region=here&access_key=me&secret_key=hidden",
        "abfss://data@lake.dfs.core.windows.net/path?client_secret=hidden&tenant_id=here",
    ):
        (shown,) = [s.value for s in settings_of(Configuration().set_string("mine", uri)) if s.key == "mine"]
        assert "hidden" not in shown
        location = StorageLocation.parse(shown)
        assert location.uri == StorageLocation.parse(uri).uri
        assert "here" in dict(location.options).values()
        assert "*" not in str(location)


def test_the_checkpoints_of_a_running_job_are_read_with_the_reader_s_own_secrets(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_run(tmp_path, 1)
    job_id = "ab" * 16
    job = SimpleNamespace(job_id=job_id, job_name="counts")
    view = SimpleNamespace(
        name="counts", job_id=job_id, mode="STREAMING", configuration=settings_of(configured(tmp_path))
    )
    monkeypatch.setattr(running_job, "running_jobs", lambda: [job])
    monkeypatch.setattr(running_job, "view_of", lambda record: view)
    with pytest.raises(ConfigurationError, match="access_key and secret_key"):
        running_job.checkpoints_of("counts", {})
    path = running_job.checkpoints_of("counts", SECRETS)
    assert f"/checkpoints/{job_id}?region=here" in path
    assert "hidden" not in path
