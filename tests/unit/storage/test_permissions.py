"""Who may read what is made on a local disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.storage.snapshots import checkpoint
from tidegate.common.configuration import Configuration
from tidegate.connectors.record_cache import CacheSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.cached_stream import cache_folder
from tidegate.jobmanager.preparation import checkpoint_storage
from tidegate.spark.batch.job_savepoint import planned_savepoint
from tidegate.spark.dataframes.staging import new_folder
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.storage.files import open_files, write_file
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.location import StorageLocation


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> set[tuple[str, int]]:
    """(kind, mode) of all that is at or below `root`."""
    found = [root, *root.rglob("*")]
    return {("directory" if p.is_dir() else "file", stat.S_IMODE(p.stat().st_mode)) for p in found}


@pytest.mark.parametrize(
    ("permissions", "directory", "file"), [("owner", 0o700, 0o600), ("group", 0o750, 0o640), ("umask", 0o755, 0o644)]
)
def test_checkpoints_and_savepoints_are_made_as_told(tmp_path, permissions, directory, file):
    storage = FileSystemStorage(str(tmp_path / "given"), "job", permissions=permissions)
    storage.open(0.0)
    writer = storage.worker_storage().task_writer(1, 0, 0, 0)
    writer.shared.write(bytes(30_000))
    writer.exclusive.write(bytes(30_000))
    writer.close()
    storage.write_metadata(checkpoint(1))
    target = tmp_path / "savepoints" / "one"
    write_savepoint_metadata(storage.worker_storage().savepoint_files(str(target)), checkpoint(1))
    for root in (tmp_path / "given" / "job", target):
        assert modes(root) == {("directory", directory), ("file", file)}
    assert stat.S_IMODE((tmp_path / "given").stat().st_mode) == 0o755  # the user's own folder
    storage.close()


def test_the_option_reaches_every_place_that_holds_user_data(tmp_path):
    configuration = Configuration()
    configuration.set_string("execution.checkpointing.dir", str(tmp_path / "checkpoints"))
    configuration.set_string("tidegate.cache.dir", str(tmp_path / "cache"))
    for permissions, file in (("owner", 0o600), ("group", 0o640)):
        configuration.set_string("tidegate.storage.permissions", permissions)
        configuration.set_string("execution.batch.savepoint-path", str(tmp_path / f"batch-{permissions}"))
        environment = StreamExecutionEnvironment.get_execution_environment(configuration)
        storage = checkpoint_storage(configuration, f"job-{permissions}")
        storage.open(0.0)
        session = SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]"))
        plan = planned_savepoint(configuration, 0.0)
        cache = cache_folder(environment)
        CacheSink(cache).create_writer(SimpleNamespace(subtask=0, attempt=0)).flush(True)
        for number, files in enumerate(
            [
                open_files(new_folder(configuration, session, "staged", "here")),
                open_files(plan.location),
                open_files(cache),
                storage.files(),
                storage.worker_storage().savepoint_files(str(tmp_path / f"savepoint-{permissions}")),
            ]
        ):
            write_file(files, f"a/{number}", b"user data")
            assert stat.S_IMODE(os.stat(files.describe(f"a/{number}")).st_mode) == file, (permissions, number)


def test_a_delta_table_follows_the_umask(tmp_path):
    files = open_files(StorageLocation.parse(str(tmp_path / "table")).with_permissions("umask"))
    write_file(files, "part-0", b"")
    assert modes(tmp_path / "table") == {("directory", 0o755), ("file", 0o644)}
