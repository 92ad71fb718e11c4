"""What is found on a local disk after a power failure at any moment (`tests/losing_disk.py`): what was said to be
written is there, nothing is there in part, and no checkpoint looks complete that is not."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.losing_disk import LosingDisk, everything, nothing, some
from tidegate.common.ids import CheckpointId, OperatorId
from tidegate.connectors.files.part_files import LocalPartFiles, hidden_path
from tidegate.spark.micro_batch.location import CheckpointLocation
from tidegate.spark.micro_batch.prepared import Prepared
from tidegate.storage import files as storage_files
from tidegate.storage.cleanup import Deletion, OrderedDeletions
from tidegate.storage.files import LocalFiles, write_file
from tidegate.storage.job_directory import METADATA_NAME, checkpoint_directory, metadata_file
from tidegate.storage.leases.cells import FileCell
from tidegate.storage.location import StorageLocation

Check = Callable[[Path], None]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LosingDisk]:
    disk = LosingDisk(tmp_path / "disk", monkeypatch)
    yield disk
    disk.close()


def at_every_moment(disk: LosingDisk, check: Check) -> Callable[[], int]:
    """Lets the power fail, in many ways, whenever something has changed. Returns how many moments there were."""
    rng = random.Random(7)
    moments = 0

    def moment() -> None:
        nonlocal moments
        moments += 1
        for number, chance in enumerate((everything, nothing, *[some(rng)] * 4)):
            check(disk.survivors(disk.root.parent / f"after-{moments}-{number}", chance))

    disk.moment = moment
    return lambda: moments


def test_the_disk_loses_what_was_not_synced(disk: LosingDisk) -> None:
    (disk.root / "file").write_bytes(b"lost")
    os.mkdir(disk.root / "folder")
    assert not list(disk.survivors(disk.root.parent / "1", nothing).iterdir())
    assert (disk.survivors(disk.root.parent / "2", everything) / "file").read_bytes() == b"lost"

    descriptor = os.open(disk.root, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    after = disk.survivors(disk.root.parent / "3", nothing)
    assert (after / "file").read_bytes() == b""  # its name only
    assert (after / "folder").is_dir()

    with open(disk.root / "file", "rb") as file:
        os.fsync(file.fileno())
    os.unlink(disk.root / "file")
    assert (disk.survivors(disk.root.parent / "4", nothing) / "file").read_bytes() == b"lost"  # the deletion was lost


def test_what_was_committed_is_there_and_whole(disk: LosingDisk) -> None:
    promised: dict[str, bytes] = {}
    under_way: dict[str, bytes] = {}

    def check(after: Path) -> None:
        files = LocalFiles(str(after / "job"))
        for path in promised.keys() | under_way.keys():
            there = files.read(path) if files.size(path) is not None else None
            assert there in (promised.get(path), under_way.get(path)), (path, there)

    moments = at_every_moment(disk, check)
    files = LocalFiles(str(disk.root / "job"))
    for path in ("chk-1/a", "chk-1/b", "shared/c", "chk-2/a", "chk-1/a"):
        under_way[path] = f"{path} {len(promised)}".encode()
        write_file(files, path, under_way[path])
        promised[path] = under_way.pop(path)
        disk.look()
    assert moments() > 20


def test_a_deleted_checkpoint_never_looks_complete_in_part(disk: LosingDisk) -> None:
    shared = ["shared/a", "shared/b"]

    def check(after: Path) -> None:
        files = LocalFiles(str(after / "job"))
        if files.size(metadata_file(CheckpointId(1))) is not None:
            own = [f"{checkpoint_directory(CheckpointId(1))}/own"]
            assert [path for path in own + shared if files.size(path) is None] == []

    files = LocalFiles(str(disk.root / "job"))
    for path in (*shared, "chk-1/own", metadata_file(CheckpointId(1))):
        write_file(files, path, path.encode())
    moments = at_every_moment(disk, check)
    deletion = Deletion([metadata_file(CheckpointId(1)), "chk-1/own", *shared], [checkpoint_directory(CheckpointId(1))])
    assert OrderedDeletions().delete(files, deletion) == []
    assert moments() > 4


def test_the_newest_value_of_a_cell_is_there(disk: LosingDisk) -> None:
    location = StorageLocation.parse(str(disk.root / "ha" / "job"))
    put, under_way = [b""], [b""]

    def check(after: Path) -> None:
        found = FileCell(StorageLocation.parse(str(after / "ha" / "job")), "lease").read()
        assert (found.data if found else b"") in (put[-1], under_way[-1])

    moments = at_every_moment(disk, check)
    cell, version = FileCell(location, "lease"), None
    for number in range(8):
        under_way.append(f"value {number}".encode())
        version = cell.put(under_way[-1], version)
        assert version is not None
        put.append(under_way[-1])
        disk.look()
    assert moments() > 20


def test_what_the_sinks_of_a_micro_batch_have_prepared_is_there(disk: LosingDisk) -> None:
    prepared: list[int] = []

    def check(after: Path) -> None:
        left = CheckpointLocation(str(after / "query"))
        (after / "query" / "commits").mkdir(parents=True, exist_ok=True)
        for batch in prepared:
            (after / "query" / "commits" / str(batch)).touch()  # as Spark does
        assert [batch for batch, _ in left.to_commit()] == prepared

    location = CheckpointLocation(str(disk.root / "query"))
    moments = at_every_moment(disk, check)
    location.open("job", "job", {}, 0.0)
    for batch in range(3):
        committables = [(OperatorId("sink"), pickle.dumps([f"of batch {batch}"]))]
        location.prepared(batch, Prepared(committables, [], 1))
        prepared.append(batch)
        disk.look()
    location.close()
    assert moments() > 10


def test_a_batch_that_the_sinks_commit_is_not_run_again(disk: LosingDisk) -> None:
    """Spark syncs nothing: what says that a batch counts is kept before the sinks commit it."""
    kept: list[int] = []

    def check(after: Path) -> None:
        left = CheckpointLocation(str(after / "query"))
        assert left.next_batch > (kept[-1] if kept else -1)
        for batch in kept:
            assert (after / "query" / "commits" / str(batch)).read_text() == f"commit {batch}"
            assert (after / "query" / "offsets" / str(batch)).read_text() == f"order {batch}"
            assert (after / "query" / "metadata").read_text() == "the query"

    location = CheckpointLocation(str(disk.root / "query"))
    location.open("job", "job", {}, 0.0)
    (disk.root / "query" / "metadata").write_text("the query")
    for folder in ("offsets", "commits"):
        (disk.root / "query" / folder).mkdir()
    moments = at_every_moment(disk, check)
    for batch in range(3):
        (disk.root / "query" / "offsets" / str(batch)).write_text(f"order {batch}")
        (disk.root / "query" / "commits" / str(batch)).write_text(f"commit {batch}")
        location.keep_commit(batch)
        kept.append(batch)
        disk.look()
    location.close()
    assert moments() > 10


@pytest.mark.parametrize("how", ["publish", "publish_copy", "publish_joined"])
def test_part_files_that_a_checkpoint_knows_can_be_published(how: str, disk: LosingDisk) -> None:
    """From the moment on at which a file was closed (or synced) it can be published, and is then whole, however often
    the power fails in between."""
    closed = False
    published = False

    def publish(files: LocalPartFiles) -> None:
        if how == "publish_joined":
            files.publish_joined([(hidden, 6)], final, b"")
        else:
            getattr(files, how)(hidden, final, 6)

    def check(after: Path) -> None:
        files = LocalPartFiles(str(after / "out"))
        target = after / "out" / final
        assert target.exists() or not published
        if closed:
            publish(files)
        assert not closed or target.read_bytes() == b"abcdef"

    final, hidden = "bucket=1/deep/part-1", hidden_path("job", "part-1")
    moments = at_every_moment(disk, check)
    files = LocalPartFiles(str(disk.root / "out"))
    stream = files.create(hidden)
    stream.write(b"abcdef")
    stream.sync() if how == "publish_copy" else stream.close()
    closed = True
    disk.look()
    publish(files)
    published = True
    disk.look()
    stream.abandon()
    assert moments() > 5


def test_metadata_is_what_makes_a_checkpoint_complete() -> None:
    """The tests above go by its name."""
    assert metadata_file(CheckpointId(1)).endswith(METADATA_NAME)


# ---------------------------------------------------------------- planted bugs: each is found


def bytes_are_not_synced_before_the_rename(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Any) -> None:
        self._file.close()
        os.rename(self._temporary, self._path)
        storage_files.sync_directory(os.path.dirname(self._path))

    patch.setattr(storage_files._LocalOutput, "commit", commit)


def names_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(storage_files, "sync_directory", lambda path: None)


def files_are_written_in_place(patch: pytest.MonkeyPatch) -> None:
    def in_place(files: LocalFiles, path: str, data: bytes) -> None:
        full = files.describe(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        storage_files.sync_directory(os.path.dirname(full))

    patch.setattr(f"{__name__}.write_file", in_place)


def deletions_of_metadata_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    delete = LocalFiles.delete_file
    patch.setattr(LocalFiles, "delete_file", lambda self, path, for_good=False: delete(self, path))


@pytest.mark.parametrize(
    ("plant", "test"),
    [
        (bytes_are_not_synced_before_the_rename, test_what_was_committed_is_there_and_whole),
        (names_are_not_synced, test_what_was_committed_is_there_and_whole),
        (files_are_written_in_place, test_what_was_committed_is_there_and_whole),
        (
            deletions_of_metadata_are_not_synced,
            test_a_deleted_checkpoint_never_looks_complete_in_part,
        ),
    ],
    ids=lambda value: value.__name__,
)
def test_a_write_that_is_lost_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    test: Callable[[LosingDisk], None],
    disk: LosingDisk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test(disk)
