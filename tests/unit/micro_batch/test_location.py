"""What Tidegate keeps in the checkpoint location of a micro-batch job: who may read it, and what happens when it is
damaged. More in `test_jobs`, with whole jobs."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.common.ids import OperatorId
from tidegate.spark.micro_batch.location import CheckpointLocation, LocationError
from tidegate.spark.micro_batch.prepared import Prepared
from tidegate.spark.micro_batch.report import TakenSplits

PREPARED = Prepared([(OperatorId("sink"), pickle.dumps(["a"]))], [TakenSplits(OperatorId("s"), ("x", "y"), 2, True)], 7)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def filled(path: Path, permissions: str = "owner") -> CheckpointLocation:
    """An open one in which Spark has committed batch 0, and the sinks have not."""
    location = CheckpointLocation(str(path), permissions)
    location.open("job", "job", {}, 0.0)
    location.prepared(0, PREPARED)
    (path / "commits").mkdir(exist_ok=True)
    (path / "commits" / "0").write_text("{}")
    return location


def modes(path: Path) -> set[tuple[bool, int]]:
    ours = [path / "tidegate", *(path / "tidegate").rglob("*")]
    return {(file.is_dir(), stat.S_IMODE(file.stat().st_mode)) for file in ours}


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    ("permissions", "folders", "files"), [("owner", 0o700, 0o600), ("group", 0o750, 0o640), ("umask", 0o755, 0o644)]
)
def test_it_is_for_whom_the_settings_say(tmp_path: Path, permissions: str, folders: int, files: int) -> None:
    location = filled(tmp_path / "above" / "location", permissions)
    assert modes(tmp_path / "above" / "location") == {(True, folders), (False, files)}
    assert stat.S_IMODE((tmp_path / "above" / "location").stat().st_mode) == folders
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o755
    location.close()


@pytest.mark.usefixtures("usual_umask")
def test_a_folder_of_the_user_stays_as_it_is_and_one_of_an_older_version_does_not(tmp_path: Path) -> None:
    (tmp_path / "location" / "tidegate" / "commits").mkdir(parents=True)
    (tmp_path / "location" / "tidegate").chmod(0o777)
    filled(tmp_path / "location").close()
    assert stat.S_IMODE((tmp_path / "location").stat().st_mode) == 0o755
    assert {mode for is_folder, mode in modes(tmp_path / "location") if is_folder} == {0o700}


def test_what_was_prepared_is_read_again(tmp_path: Path) -> None:
    assert list(filled(tmp_path).to_commit()) == [(0, PREPARED)]


def test_what_a_version_before_has_prepared_is_read(tmp_path: Path) -> None:
    location = filled(tmp_path)
    older = tmp_path / "tidegate" / "commits" / "0"
    older.write_bytes(pickle.dumps((PREPARED.committables, PREPARED.taken), 5))
    assert list(location.to_commit()) == [(0, Prepared(PREPARED.committables, PREPARED.taken))]
    for damaged in (older.read_bytes()[:-3], pickle.dumps("a text", 5), pickle.dumps(([("sink", "no bytes")], []), 5)):
        older.write_bytes(damaged)
        with pytest.raises(LocationError, match=r"tidegate/commits/0 is damaged"):
            list(location.to_commit())


@pytest.mark.parametrize("size", [0, 1, 30, 60, -1])
def test_what_is_damaged_is_told_with_what_to_do(tmp_path: Path, size: int) -> None:
    location = filled(tmp_path)
    file = tmp_path / "tidegate" / "commits" / "0"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(LocationError, match=r"commits/0 is damaged .* of batch 0, .*Restore the folder.*Or delete the"):
        list(location.to_commit())
