"""Local files: layout, durability, damage, locks."""

from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from tests.unit.storage.snapshots import checkpoint, of_a_newer_version
from tidegate.common.errors import ConfigurationError, SnapshotDamagedError, SnapshotError, StorageUnavailableError
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.jobmanager.preparation import other_checkpoints
from tidegate.state.savepoint.format import write_savepoint_metadata
from tidegate.storage import cleanup
from tidegate.storage.cleanup import Deletion
from tidegate.storage.files import LocalFiles, write_file
from tidegate.storage.filesystem import FileSystemStorage, latest_aligned
from tidegate.storage.handles import FileRange, InlineBytes
from tidegate.storage.job_lock import LocalJobLock
from tidegate.storage.leases.keeper import DirectoryTakenError, LeaseLostError
from tidegate.storage.location import StorageLocation, below
from tidegate.storage.metadata import encode_metadata, read_metadata
from tidegate.storage.worker_storage import file_source

BIG = os.urandom(30_000)
BIGGER = os.urandom(50_000)


@pytest.fixture
def storage(tmp_path):
    storage = FileSystemStorage(str(tmp_path / "ckpt"), "job-1")
    storage.open(0.0)
    yield storage
    storage.close()


def writer(storage, checkpoint_id=1):
    shipped = pickle.loads(pickle.dumps(storage.worker_storage()))
    return shipped.task_writer(checkpoint_id, 0, 2, 3)


def all_files(root):
    return sorted(str(p.relative_to(root)) for p in Path(root).rglob("*") if p.is_file() and p.name != "_lock")


def test_one_file_per_kind_and_handles_are_ranges(storage):
    w = writer(storage)
    exclusive = [w.exclusive.write(BIG), w.exclusive.write(BIGGER)]
    shared = [w.shared.write(BIGGER), w.shared.write(BIG), w.shared.write(b"")]
    assert all_files(storage.root) == [p for p in all_files(storage.root) if ".part-" in p]  # nothing visible yet
    w.close()
    files = all_files(storage.root)
    assert len(files) == 2
    assert re.fullmatch(r"chk-1/v2-s3-a0-\w+\.state", files[0])
    assert re.fullmatch(r"shared/c1-v2-s3-a0-\w+\.state", files[1])
    assert (w.files_written, w.bytes_written) == (2, 2 * (len(BIG) + len(BIGGER)))
    source = storage.worker_storage().source(storage.root)
    assert [source.read(h) for h in exclusive] == [BIG, BIGGER]
    assert [source.read(h) for h in shared] == [BIGGER, BIG, b""]


def test_small_state_makes_no_files(storage):
    w = writer(storage)
    handles = [w.exclusive.write(b"a" * 10_000), w.shared.write(b"b" * 10_000)]
    assert all(isinstance(h, InlineBytes) for h in handles)
    over = w.shared.write(b"c" * 1000)
    assert isinstance(over, FileRange)
    w.close()
    assert len(all_files(storage.root)) == 1
    source = storage.source()
    assert [source.read(h) for h in [*handles, over]] == [b"a" * 10_000, b"b" * 10_000, b"c" * 1000]


@pytest.mark.parametrize("closed", [False, True])
def test_abort_leaves_nothing(storage, closed):
    w = writer(storage)
    w.exclusive.write(BIG)
    w.shared.write(BIG)
    if closed:
        w.close()
    w.abort()
    w.abort()
    assert all_files(storage.root) == []


def test_a_cancelled_writer_writes_no_more(storage):
    w = writer(storage)
    w.shared.write(BIG)
    w.cancel()
    with pytest.raises(SnapshotError, match="aborted"):
        w.shared.write(BIG)
    with pytest.raises(SnapshotError, match="aborted"):
        w.close()
    w.abort()
    assert all_files(storage.root) == []


def test_two_attempts_never_share_a_file(storage):
    paths = set()
    for _ in range(3):
        w = writer(storage)
        paths.add(w.exclusive.write(BIG).path)
        w.close()
    assert len(paths) == 3


# ---------------------------------------------------------------- damage


def written(storage):
    w = writer(storage)
    handles = [w.shared.write(BIG), w.shared.write(BIGGER)]
    w.close()
    return handles, os.path.join(storage.root, handles[0].path)


def test_a_changed_byte_is_found(storage):
    (first, second), path = written(storage)
    with open(path, "r+b") as file:
        file.seek(len(BIG) + 5)
        file.write(bytes([BIGGER[5] ^ 1]))
    source = storage.source()
    assert source.read(first) == BIG
    with pytest.raises(SnapshotError, match=re.escape(path) + ".*corrupt"):
        source.read(second)


def test_a_truncated_file_is_found(storage):
    (first, second), path = written(storage)
    os.truncate(path, len(BIG) + 10)
    assert storage.source().read(first) == BIG
    with pytest.raises(SnapshotError, match=re.escape(path) + ".*truncated"):
        storage.source().read(second)


def test_a_missing_file_is_found(storage):
    (first, _), path = written(storage)
    os.unlink(path)
    with pytest.raises(SnapshotError, match=re.escape(path) + ".*no such file"):
        storage.source().read(first)


def test_corrupt_inline_state_is_found(storage):
    with pytest.raises(SnapshotError, match="corrupt"):
        storage.source().read(InlineBytes(b"abc", "0" * 16))


@pytest.mark.parametrize("path", ["../other", "/etc/passwd", "a/../../b"])
def test_paths_outside_of_the_job_directory_are_refused(storage, path):
    with pytest.raises(SnapshotError, match="outside"):
        storage.source().read(FileRange(path, 0, 1, ""))


def test_a_full_disk_is_an_error_with_the_path(tmp_path):
    """RLIMIT_FSIZE stands for the full disk: the write fails in the middle of a file."""
    script = textwrap.dedent(f"""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        from tidegate.common.errors import SnapshotError
        from tidegate.storage.filesystem import FileSystemStorage
        storage = FileSystemStorage({str(tmp_path)!r}, "job")
        storage.open(0.0)
        w = storage.worker_storage().task_writer(1, 0, 0, 0)
        try:
            for _ in range(5):
                w.shared.write(bytes(30_000))
            w.close()
        except SnapshotError as error:
            print(error)
            w.abort()
    """)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert re.search(rf"cannot write {re.escape(str(tmp_path))}/job/shared/c1-.*File too large", done.stdout)
    assert all_files(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_refused_early(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ConfigurationError, match=r"checkpoint directory .*file/sub/job cannot be written"):
        FileSystemStorage(str(tmp_path / "file" / "sub"), "job").open(0.0)


# ---------------------------------------------------------------- metadata, clean-up


def test_metadata_makes_a_checkpoint_complete(storage):
    writer(storage, 3).close()
    assert storage.completed_checkpoints() == []
    pointers = [storage.write_metadata(checkpoint(n)) for n in (10, 9)]
    assert storage.completed_checkpoints() == [9, 10]
    assert storage.read_metadata(9) == checkpoint(9)
    assert read_metadata(pointers[0]).metadata == checkpoint(10)
    assert str(read_metadata(pointers[0]).root) == storage.root


def test_a_moved_job_directory_can_be_read(storage, tmp_path):
    w = writer(storage)
    handle = w.shared.write(BIG)
    w.close()
    storage.write_metadata(checkpoint(1, [(1, [handle])]))
    os.rename(storage.root, tmp_path / "moved")
    loaded = read_metadata(str(tmp_path / "moved" / "chk-1"))
    assert file_source(str(loaded.root)).read(handle) == BIG


def test_orphans_are_deleted_and_nothing_else(storage):
    kept_writer = writer(storage, 1)
    kept = kept_writer.shared.write(BIG)
    kept_writer.close()
    storage.write_metadata(checkpoint(1, [(1, [kept])]))
    lost = writer(storage, 2)
    lost.shared.write(BIG)
    lost.exclusive.write(BIG)
    lost.close()
    assert storage.delete_orphans() == []
    assert all_files(storage.root) == sorted(["chk-1/_metadata", kept.path])


def test_with_an_unreadable_checkpoint_no_orphans_are_deleted(storage):
    storage.write_metadata(checkpoint(1))
    Path(storage.root, "chk-1", "_metadata").write_bytes(b"TIDE")
    lost = writer(storage, 2)
    lost.shared.write(BIG)
    lost.close()
    assert "incomplete" in storage.delete_orphans()[0]
    assert len(all_files(storage.root)) == 2


def test_deleting_never_raises(storage):
    Path(storage.root, "a-directory").mkdir()
    problems = storage.delete(Deletion(files=["a-directory", "missing"], directories=["missing-directory"]))
    assert len(problems) == 1
    assert "a-directory" in problems[0]


@pytest.mark.parametrize(("owned", "expected"), [(True, [1]), (False, [])])
def test_what_an_earlier_run_left_beside_a_claimed_checkpoint_is_known(storage, owned, expected):
    for n in (1, 2, 3):
        storage.write_metadata(checkpoint(n))
    Path(storage.root, "chk-3", "_metadata").write_bytes(b"TIDE")
    claimed = RestorePoint(storage.read_metadata(2), storage.root, owned=owned)
    assert [other.checkpoint_id for other in other_checkpoints(storage, claimed)] == expected
    elsewhere = RestorePoint(storage.read_metadata(2), "/elsewhere", owned=True)
    assert other_checkpoints(storage, elsewhere) == other_checkpoints(storage, None) == []


class Stuck(LocalFiles):
    """Files that cannot be deleted while they are in `stuck`."""

    stuck: set[str]

    def delete_file(self, path, for_good=False):
        if path in self.stuck:
            raise StorageUnavailableError(f"cannot delete {path}")
        super().delete_file(path)


def test_a_checkpoint_whose_metadata_cannot_be_deleted_stays_whole_until_it_can(storage, monkeypatch):
    files = Stuck(storage.root)
    monkeypatch.setattr(storage, "files", lambda: files)
    for name in ("chk-1/a.state", "shared/b.state", "shared/c.state"):
        write_file(files, name, b"x")
    storage.write_metadata(checkpoint(1))
    whole = all_files(storage.root)
    files.stuck = {"chk-1/_metadata"}
    problems = storage.delete(Deletion(files=["chk-1/_metadata", "chk-1/a.state"], directories=["chk-1"]))
    assert len(problems) == 1
    assert "stays whole" in problems[0]
    # Its shared files are released later, and others with them, which may be its too.
    assert storage.delete(Deletion(files=["shared/b.state"])) == problems
    assert all_files(storage.root) == whole
    files.stuck = {"shared/b.state"}
    assert storage.delete(Deletion(files=["shared/c.state"])) == ["cannot delete shared/b.state"]
    assert all_files(storage.root) == ["shared/b.state"]


def test_what_waits_for_metadata_that_cannot_be_deleted_is_bounded(storage, monkeypatch):
    files = Stuck(storage.root)
    monkeypatch.setattr(storage, "files", lambda: files)
    monkeypatch.setattr(cleanup, "MAX_WAITING", 3)
    for i in range(10):
        write_file(files, f"shared/{i}", b"x")
    files.stuck = {"chk-1/_metadata"}
    storage.delete(Deletion(files=["chk-1/_metadata"]))
    for n in (2, 3):
        storage.write_metadata(checkpoint(n))
    for i in range(10):
        storage.delete(Deletion(files=[f"shared/{i}"]))
        if i in (7, 8):
            storage.delete(Deletion(files=[f"chk-{i - 5}/_metadata"]))
    assert storage.completed_checkpoints() == [2, 3]  # checkpoint 1 was never there
    files.stuck = set()
    assert storage.delete(Deletion()) == []
    assert all_files(storage.root) == [f"shared/{i}" for i in range(2, 10)]


def test_an_empty_job_directory_goes_with_the_job(tmp_path):
    for kept in (False, True):
        storage = FileSystemStorage(str(tmp_path), "job")
        storage.open(0.0)
        if kept:
            storage.write_metadata(checkpoint(1))
        storage.close()
        assert os.path.exists(storage.root) == kept


def test_a_file_is_never_seen_half_written(tmp_path):
    files = LocalFiles(str(tmp_path))
    output = files.create("f")
    output.write(b"half")
    assert files.names("") == []
    assert files.size("f") is None
    output.discard()
    write_file(files, "f", b"old")
    write_file(files, "f", b"new")
    assert files.read("f") == b"new"


# ---------------------------------------------------------------- locks


def test_the_same_job_twice_is_refused(tmp_path):
    first = FileSystemStorage(str(tmp_path), "job")
    first.open(0.0)
    second = FileSystemStorage(str(tmp_path), "job")
    with pytest.raises(ConfigurationError, match=rf"already running, in process {os.getpid()}"):
        second.open(0.0)
    FileSystemStorage(str(tmp_path), "another").open(0.0)
    first.close()
    second.open(0.0)
    second.close()


def test_the_view_of_an_earlier_run_does_not_keep_a_folder_without_checkpoints(tmp_path):
    storage = FileSystemStorage(str(tmp_path), "job")
    storage.open(0.0)
    storage.write_metadata(checkpoint(1))
    (tmp_path / "job" / "_view.json").write_text("{}")
    storage.close()
    assert (tmp_path / "job" / "_view.json").exists()
    storage.open(0.0)
    storage.delete(Deletion(directories=["chk-1"]))
    storage.close()
    assert not (tmp_path / "job").exists()


def test_a_lock_ends_with_its_process(tmp_path):
    script = f"""
import os, signal
from tidegate.storage.job_lock import LocalJobLock
LocalJobLock({str(tmp_path)!r}).acquire(0.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert (tmp_path / "_lock").exists()
    lock = LocalJobLock(str(tmp_path))
    lock.acquire(0.0)
    lock.release()
    assert not (tmp_path / "_lock").exists()


def test_a_run_whose_lock_was_deleted_writes_and_deletes_nothing(tmp_path):
    first, second = (FileSystemStorage(str(tmp_path), "job") for _ in range(2))
    first.open(0.0)
    first.write_metadata(checkpoint(1))
    (tmp_path / "job" / "_lock").unlink()
    second.open(0.0)
    with pytest.raises(DirectoryTakenError, match=f"held by process {os.getpid()}"):
        first.write_metadata(checkpoint(2))
    assert "not deleted" in first.delete(Deletion(directories=["chk-1"]))[0]
    assert second.completed_checkpoints() == [1]
    second.close()


def test_a_lock_that_nobody_holds_may_come_back(tmp_path):
    """Of a directory that is away, or in whose place another one lies, with the lock of a run that has died."""
    storage = FileSystemStorage(str(tmp_path / "mounted"), "job")
    storage.open(0.0)
    storage.write_metadata(checkpoint(1))
    os.rename(tmp_path / "mounted", tmp_path / "away")
    for left in (False, True):
        if left:
            shutil.copytree(tmp_path / "away", tmp_path / "mounted")
        with pytest.raises(LeaseLostError) as raised:
            storage.check_owned()
        assert not isinstance(raised.value, DirectoryTakenError)
    shutil.rmtree(tmp_path / "mounted")
    os.rename(tmp_path / "away", tmp_path / "mounted")
    storage.check_owned()
    storage.close()


# ---------------------------------------------------------------- locations


def test_paths_and_uris_name_the_same_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spaced = str(tmp_path / "a b%20")
    for uri in ("a b%20", spaced, Path(spaced).as_uri(), f"{spaced}/"):
        location = StorageLocation.parse(uri)
        assert str(location) == spaced
        assert StorageLocation.parse(str(location.child("x y"))) == location.child("x y")
        assert location.child("x").parent() == location


def test_s3_options_come_from_query_and_environment_and_secrets_stay_out_of_sight(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    location = StorageLocation.parse("s3a://bucket/dir/?region=us-west-2&secret_key=hidden")
    assert location.uri == "s3://bucket/dir"
    assert dict(location.options) == {
        "endpoint_override": "http://minio:9000",
        "region": "us-west-2",
        "secret_key": "hidden",
    }
    assert "hidden" not in str(location)
    assert "hidden" not in repr(location)
    assert dict(StorageLocation.parse(str(location)).options)["endpoint_override"] == "http://minio:9000"


def test_a_place_below_a_uri_keeps_the_options_behind_it() -> None:
    assert below("s3://bucket/jobs/?region=eu&secret_key=x", "chk-3") == "s3://bucket/jobs/chk-3?region=eu&secret_key=x"
    assert below("hdfs://name/jobs", "chk-3") == "hdfs://name/jobs/chk-3"
    assert below("/jobs/what?/", "chk-3") == "/jobs/what?/chk-3"  # a name like others


@pytest.mark.parametrize("uri", ["", "  ", "ftp://host/x", "file://host/x", "s3:///x", "s3://b/x?colour=red"])
def test_bad_locations_are_refused(uri):
    with pytest.raises(ConfigurationError):
        StorageLocation.parse(uri)


@pytest.mark.parametrize("job_id", ["", "../x", "a/b", ".", "x" * 200])
def test_bad_job_ids_are_refused(tmp_path, job_id):
    with pytest.raises(ConfigurationError, match="job id"):
        FileSystemStorage(str(tmp_path), job_id)


# ---------------------------------------------------------------- damaged, or not readable now


def test_a_file_that_the_listing_does_not_have_is_gone_for_good(storage):
    (first, _), path = written(storage)
    os.unlink(path)
    with pytest.raises(SnapshotDamagedError, match="deleted"):
        storage.source().read(first)


def test_a_directory_that_is_away_as_a_whole_is_not_damage(storage):
    """A disk that is not mounted: there is nothing older to be read either."""
    (first, _), _ = written(storage)
    os.rename(storage.root, storage.root + "-away")
    with pytest.raises(StorageUnavailableError):
        storage.source().read(first)
    os.mkdir(storage.root)
    with pytest.raises(StorageUnavailableError):
        storage.source().read(first)
    os.rmdir(storage.root)
    os.rename(storage.root + "-away", storage.root)
    assert storage.source().read(first) == BIG


def test_what_a_writer_may_have_left_is_no_proof_that_the_directory_is_there(storage):
    (first, _), _ = written(storage)
    os.rename(storage.root, storage.root + "-away")
    stray = Path(storage.root, "shared", "c9-stray.state")
    stray.parent.mkdir(parents=True)
    stray.write_text("")
    with pytest.raises(StorageUnavailableError):
        storage.source().read(first)


@pytest.mark.parametrize("proof", ["_lock", "chk-1/_metadata", "_metadata"])
def test_what_is_written_last_or_held_by_a_run_proves_that_the_directory_is_there(tmp_path, proof):
    files = LocalFiles(str(tmp_path))
    write_file(files, proof, b"")
    write_file(files, "shared/other.state", b"")
    with pytest.raises(SnapshotDamagedError, match="deleted"):
        files.read("shared/gone.state")


def test_nobody_but_the_opening_makes_the_directory_of_a_job(tmp_path):
    storage = FileSystemStorage(str(tmp_path / "mounted"), "job")
    storage.open(0.0)
    os.rename(tmp_path / "mounted", tmp_path / "away")
    workers = writer(storage)
    with pytest.raises(StorageUnavailableError, match="is its disk mounted"):
        workers.shared.write(BIG)
    with pytest.raises(StorageUnavailableError, match="is its disk mounted"):
        write_file(storage.files(), "chk-1/_metadata", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["away"]


def test_an_error_of_the_disk_is_not_damage(storage, monkeypatch):
    (first, _), _ = written(storage)
    for failure in (OSError(errno.EIO, "Input/output error"), PermissionError(errno.EACCES, "Permission denied")):
        with monkeypatch.context() as patch:
            patch.setattr("tidegate.storage.files._read_fully", raising(failure))
            with pytest.raises(StorageUnavailableError, match=str(failure.strerror)):
                storage.source().read(first)


def test_bytes_that_are_right_the_second_time_are_taken(storage, monkeypatch):
    (first, _), _ = written(storage)
    answers = [b"x" * len(BIG), BIG, BIG[:5], BIG]
    monkeypatch.setattr("tidegate.storage.files._read_fully", lambda file, length: answers.pop(0))
    assert storage.source().read(first) == BIG
    assert storage.source().read(first) == BIG


def test_a_short_read_of_a_whole_file_is_not_damage(storage, monkeypatch):
    (first, _), _ = written(storage)
    monkeypatch.setattr("tidegate.storage.files._read_fully", lambda file, length: BIG[:5])
    with pytest.raises(StorageUnavailableError, match="5 of 30000 bytes"):
        storage.source().read(first)


def raising(failure):
    def fail(*_):
        raise failure

    return fail


# ---------------------------------------------------------------- misdirected files


def test_the_metadata_of_another_checkpoint_is_refused(storage):
    for n in (6, 7):
        storage.write_metadata(checkpoint(n))
    folders = [Path(storage.root, f"chk-{n}") for n in (6, 7)]
    shutil.copy(folders[0] / "_metadata", folders[1] / "_metadata")
    for read in (lambda: storage.read_metadata(7), lambda: read_metadata(str(folders[1]))):
        with pytest.raises(SnapshotDamagedError, match=r"chk-7/_metadata is the metadata of checkpoint 6, not of 7"):
            read()
    assert storage.read_metadata(6).checkpoint_id == 6


def test_the_metadata_of_another_job_is_refused(tmp_path):
    jobs = ["a" * 32, "b" * 32]
    storages = [FileSystemStorage(str(tmp_path), job) for job in jobs]
    for job, storage in zip(jobs, storages, strict=True):
        storage.open(0.0)
        storage.write_metadata(msgspec.structs.replace(checkpoint(7), job_id=job))
    shutil.copy(tmp_path / jobs[0] / "chk-7/_metadata", tmp_path / jobs[1] / "chk-7/_metadata")
    for read in (lambda: storages[1].read_metadata(7), lambda: read_metadata(str(tmp_path / jobs[1] / "chk-7"))):
        with pytest.raises(SnapshotDamagedError, match=f"of job {jobs[0]} .*directory of job {jobs[1]}"):
            read()
    os.rename(tmp_path / jobs[0], tmp_path / "moved by hand")
    assert read_metadata(str(tmp_path / "moved by hand" / "chk-7")).metadata.job_id == jobs[0]


JOB = "a" * 32


@pytest.mark.parametrize(
    ("folder", "of_job", "of_epoch"), [(f"{JOB}-e1", "b" * 32, 1), (f"{JOB}-e1", JOB, 2), (f"{JOB}-e12", JOB, 0)]
)
def test_the_metadata_of_another_job_or_leader_is_refused_in_the_directory_of_a_leader(
    tmp_path, folder, of_job, of_epoch
):
    storage = FileSystemStorage(str(tmp_path), folder)
    storage.open(0.0)
    storage.write_metadata(msgspec.structs.replace(checkpoint(7), job_id=of_job, epoch=of_epoch))
    for read in (lambda: storage.read_metadata(7), lambda: read_metadata(str(tmp_path / folder / "chk-7"))):
        with pytest.raises(SnapshotDamagedError, match=f"of job {of_job} .*directory of job {JOB}, epoch 1"):
            read()


@pytest.mark.parametrize(("folder", "epoch"), [(f"{JOB}-e3", 3), (JOB, 0), (JOB, 3), (f"{JOB}-moved", 4)])
def test_the_metadata_of_its_own_directory_is_taken(tmp_path, folder, epoch):
    storage = FileSystemStorage(str(tmp_path), folder)
    storage.open(0.0)
    storage.write_metadata(msgspec.structs.replace(checkpoint(7), job_id=JOB, epoch=epoch))
    assert storage.read_metadata(7).epoch == epoch


def away_for_a_moment(monkeypatch, away):
    read = FileSystemStorage.read_metadata

    def read_or_fail(self, checkpoint_id):
        if checkpoint_id == away:
            raise StorageUnavailableError("away for a moment")
        return read(self, checkpoint_id)

    monkeypatch.setattr(FileSystemStorage, "read_metadata", read_or_fail)


def test_the_newest_aligned_checkpoint_is_not_passed_over_while_it_cannot_be_read(storage, monkeypatch):
    for n in (1, 2, 3):
        storage.write_metadata(checkpoint(n))
    assert latest_aligned(storage.root, 3).checkpoint_id == 2
    with monkeypatch.context() as patch:
        away_for_a_moment(patch, 2)
        with pytest.raises(StorageUnavailableError):
            latest_aligned(storage.root, 3)
    Path(storage.root, "chk-2", "_metadata").write_bytes(b"TIDE")
    assert latest_aligned(storage.root, 3).checkpoint_id == 1


def test_a_job_does_not_start_while_it_cannot_know_what_others_share_with_a_claimed_checkpoint(storage, monkeypatch):
    for n in (1, 2):
        storage.write_metadata(checkpoint(n))
    claimed = RestorePoint(storage.read_metadata(2), storage.root, owned=True)
    away_for_a_moment(monkeypatch, 1)
    with pytest.raises(StorageUnavailableError):
        other_checkpoints(storage, claimed)


HALF = encode_metadata(checkpoint(2))[:-20]
FLIPPED = bytes([*encode_metadata(checkpoint(2))[:9], 1, *encode_metadata(checkpoint(2))[10:]])  # its version
OF_ANOTHER = encode_metadata(checkpoint(1))


def with_one_bad_answer(monkeypatch, path, answer):
    """The next read of a file brings something else."""
    read, bad = LocalFiles.read, [answer]

    def once(self, asked):
        return bad.pop() if bad and self.describe(asked).endswith(path) else read(self, asked)

    monkeypatch.setattr(LocalFiles, "read", once)
    return bad


@pytest.mark.parametrize("answer", [HALF, FLIPPED, OF_ANOTHER, b""], ids=["half", "flipped", "of another", "empty"])
def test_one_bad_answer_proves_no_damage(storage, monkeypatch, answer):
    """Else the job would start from something older, or delete what an intact checkpoint shares with its own."""
    for n in (1, 2, 3):
        storage.write_metadata(checkpoint(n))
    claimed = RestorePoint(checkpoint(3), storage.root, owned=True)
    looks = {
        "the newest aligned one": lambda: latest_aligned(storage.root, 3).checkpoint_id == 2,
        "others": lambda: [other.checkpoint_id for other in other_checkpoints(storage, claimed)] == [1, 2],
        "one": lambda: storage.read_metadata(2).checkpoint_id == 2,
        "one by its path": lambda: read_metadata(f"{storage.root}/chk-2").metadata.checkpoint_id == 2,
        "orphans": lambda: storage.delete_orphans() == [],
    }
    for name, look in looks.items():
        with monkeypatch.context() as patch:
            left = with_one_bad_answer(patch, "chk-2/_metadata", answer)
            assert look(), name
            assert not left, name


def test_one_bad_answer_proves_no_damage_of_what_belongs_to_a_savepoint(tmp_path, monkeypatch):
    companion = tmp_path / "sp" / "metadata.json"
    files = LocalFiles(str(tmp_path / "sp"))
    write_savepoint_metadata(files, msgspec.structs.replace(checkpoint(2), savepoint=True, self_contained=True))
    assert companion.exists()
    left = with_one_bad_answer(monkeypatch, "metadata.json", b"{}")
    assert read_metadata(str(tmp_path / "sp")).metadata.companions
    assert not left


def test_a_checkpoint_of_a_newer_version_is_an_error_and_no_damage(storage):
    for n in (1, 2, 3):
        storage.write_metadata(checkpoint(n))
    Path(storage.root, "chk-2", "_metadata").write_bytes(of_a_newer_version(encode_metadata(checkpoint(2))))
    claimed = RestorePoint(checkpoint(3), storage.root, owned=True)
    for look in (lambda: latest_aligned(storage.root, 3), lambda: other_checkpoints(storage, claimed)):
        with pytest.raises(SnapshotError, match="use the version") as raised:
            look()
        assert not isinstance(raised.value, SnapshotDamagedError)


def test_swapped_shared_files_are_found(storage):
    handles = []
    for data in (BIG, bytes(reversed(BIG))):
        w = writer(storage)
        handles.append(w.shared.write(data))
        w.close()
    one, other = (os.path.join(storage.root, handle.path) for handle in handles)
    os.rename(one, one + "-x")
    os.rename(other, one)
    os.rename(one + "-x", other)
    for handle in handles:
        with pytest.raises(SnapshotDamagedError, match="file of another snapshot"):
            storage.source().read(handle)


def test_the_metadata_of_another_savepoint_is_refused(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for n, folder in enumerate(folders):
        write_savepoint_metadata(LocalFiles(str(folder)), checkpoint(n + 1))
    shutil.copy(folders[0] / "_metadata", folders[1] / "_metadata")
    with pytest.raises(SnapshotDamagedError, match=r"two/metadata\.json is corrupt"):
        read_metadata(str(folders[1]))
