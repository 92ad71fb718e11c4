"""Two runs of a job, one after the other, in one directory whose lock is a lease: each operation of the first one's
write of metadata hangs in turn, for as long as the second run lives, and then comes to its end. What can be read
afterwards has to be what the run wrote that owned the directory by then."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow.fs import LocalFileSystem

from tests.unit.storage.snapshots import checkpoint
from tidegate.common.errors import SnapshotDamagedError
from tidegate.common.ids import CheckpointId
from tidegate.storage.files import ArrowFiles, Files, LocalFiles
from tidegate.storage.filesystem import FileSystemStorage, latest_aligned
from tidegate.storage.handles import CheckpointMetadata
from tidegate.storage.leases.keeper import LeaseLostError
from tidegate.storage.metadata import read_metadata
from tidegate.storage.orphans import find_orphans

FIRST, SECOND = 1, 2  # the runs; also the time stamps of what they write


class Directory:
    """Who owns it, and the operation that hangs."""

    def __init__(self) -> None:
        self.owner = 0
        self.left = -1  # operations of the first run until one hangs; less than 0: none does
        self.meanwhile: Callable[[], None] = lambda: None
        self.operations: list[str] = []  # of the first run's write

    def before(self, operation: str) -> None:
        self.operations.append(operation)
        self.left -= 1
        if self.left == 0:
            self.meanwhile()


class Lease:
    ends_with_its_owner = False

    def __init__(self, directory: Directory, run: int) -> None:
        self._directory = directory
        self._run = run

    def acquire(self, now_ms: float) -> None:
        self._directory.owner = self._run

    def check(self) -> None:
        if self._directory.owner != self._run:
            raise LeaseLostError("nothing is written")

    def release(self) -> None: ...


class Watched:
    """Files that tell before every operation."""

    def __init__(self, files: Any, directory: Directory) -> None:
        self._files = files
        self._directory = directory

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._files, name)
        if not callable(value) or name == "describe":
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            self._directory.before(name)
            answer = value(*arguments, **named)
            return Watched(answer, self._directory) if name == "create" else answer

        return call


class Run(FileSystemStorage):
    def __init__(self, parent: str, directory: Directory, run: int, files: Callable[[], Files] | None) -> None:
        super().__init__(parent, "job")
        self._directory = directory
        self._run = run
        self._made = files
        self.watched = False

    def _make_lock(self) -> Any:
        return Lease(self._directory, self._run)

    def files(self, *, makes_root: bool = False) -> Any:
        files = super().files(makes_root=True) if self._made is None else self._made()
        return Watched(files, self._directory) if self.watched else files


def written_by(run: int, n: int, lists: Any = ()) -> CheckpointMetadata:
    return msgspec.structs.replace(checkpoint(CheckpointId(n), None, lists), timestamp=run)


def with_state(storage: FileSystemStorage, run: int, n: int, files: bool) -> CheckpointMetadata:
    """`files`: with a file of a task in the folder of the checkpoint."""
    if not files:
        return written_by(run, n)
    writer = storage.worker_storage().task_writer(CheckpointId(n), 0, 0, 0)  # type: ignore[arg-type]
    handle = writer.exclusive.write(bytes(30_000))
    writer.close()
    return written_by(run, n, [handle])


@pytest.fixture(params=["a disk", "pyarrow", "S3"])
def make_run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Directory, int], Run]:
    """Those with one `Directory` are in one place."""
    places: dict[Directory, str] = {}

    def make(directory: Directory, run: int) -> Run:
        place = places.setdefault(directory, f"{tmp_path}/{len(places)}")
        if request.param == "S3":
            endpoint, _ = request.getfixturevalue("s3_server")
            return Run(f"s3://bucket{place}?endpoint_override={endpoint}", directory, run, None)
        root = f"{place}/job"
        if request.param == "pyarrow":
            return Run(place, directory, run, lambda: ArrowFiles(LocalFileSystem(), root, root))
        return Run(place, directory, run, lambda: LocalFiles(root))

    return make


def readable(storage: FileSystemStorage) -> dict[int, int]:
    """Checkpoint -> the run that wrote it."""
    found = {}
    for n in storage.completed_checkpoints():
        try:
            found[int(n)] = storage.read_metadata(n).timestamp
        except SnapshotDamagedError:
            continue
    return found


@pytest.mark.parametrize("files", [False, True], ids=["inline", "files"])
def test_a_write_that_comes_late_changes_nothing(make_run: Callable[[Directory, int], Run], files: bool) -> None:
    for hanging in itertools.count(1):
        directory = Directory()
        first, second = make_run(directory, FIRST), make_run(directory, SECOND)
        first.open(0.0)
        first.write_metadata(with_state(first, FIRST, 1, files))
        expected = {1: FIRST}

        def live(second: Run = second, expected: dict[int, int] = expected) -> None:
            second.open(0.0)
            before = second.highest_checkpoint()
            expected.update(dict.fromkeys(map(int, second.completed_checkpoints()), FIRST))
            for n in (before + 1, before + 2):
                second.write_metadata(with_state(second, SECOND, n, files))
                expected[n] = SECOND

        to_write = with_state(first, FIRST, 2, files)
        directory.meanwhile, directory.left, first.watched = live, hanging, True
        try:
            first.write_metadata(to_write)
        except LeaseLostError:
            pass
        else:
            assert directory.left > 0
            break
        newest = max(expected)
        assert readable(second) == expected, f"operation {hanging}, {directory.operations}"
        aligned = latest_aligned_of(second, newest)
        assert (aligned.checkpoint_id, aligned.timestamp) == (newest - 1, SECOND)
        assert {f"chk-{n}" for n in expected} == folders_after(second)
        assert readable(second) == expected
    assert hanging > 5  # the witness, then the metadata


def folders_after(run: Run) -> set[str]:
    """What the end of the run leaves."""
    orphans = find_orphans(run).deletion
    assert run.delete_orphans() == []
    left = {name for name in run.files().names("") if name.startswith("chk-")}
    assert not left & set(orphans.directories)
    return left


def latest_aligned_of(storage: Run, before: int) -> CheckpointMetadata:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidegate.storage.filesystem.storage_in", lambda location: storage)
        found = latest_aligned(storage.root, CheckpointId(before))
    assert found is not None
    return found


def test_the_witness_is_no_orphan_and_goes_with_its_checkpoint(make_run: Callable[[Directory, int], Run]) -> None:
    run = make_run(Directory(), FIRST)
    run.open(0.0)
    run.write_metadata(written_by(FIRST, 1))
    assert any(name.startswith("_run-") for name in run.files().names("chk-1"))
    assert not find_orphans(run).deletion
    assert run.delete_checkpoint(CheckpointId(1), older=False) == []
    assert run.files().names("chk-1") == []


def test_a_local_disk_whose_lock_ends_with_its_process_needs_none(tmp_path: Path) -> None:
    storage = FileSystemStorage(str(tmp_path), "job")
    storage.open(0.0)
    path = storage.write_metadata(checkpoint(CheckpointId(1)))
    assert storage.files().names("chk-1") == ["_metadata"]
    assert read_metadata(path).metadata.witness == ""
    storage.close()
