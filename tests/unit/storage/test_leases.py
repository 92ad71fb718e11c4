"""Leases on real stores, with real threads and time. The protocol is tested in tests/simulation/test_leases.py."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.unit.storage.snapshots import checkpoint
from tidegate.common.errors import ConfigurationError
from tidegate.storage.files import LocalFiles
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.storage.job_lock import LeaseJobLock
from tidegate.storage.leases import cells, keeper
from tidegate.storage.leases.answers import stored
from tidegate.storage.leases.cells import BestEffortCell, FileCell, S3Cell, open_cell
from tidegate.storage.leases.failing import Failing
from tidegate.storage.leases.keeper import DirectoryTakenError, LeaseKeeper, LeaseLostError, Waited
from tidegate.storage.leases.lease import (
    Answer,
    Found,
    Instruction,
    Lease,
    LeaseRecord,
    LeaseTimes,
    Owning,
    Read,
    Refused,
    Stored,
    Watching,
    Written,
)
from tidegate.storage.location import StorageLocation

TIMES = LeaseTimes(lease_ms=600, renew_ms=150, look_ms=50)


def record(owner: str, beat: int = 1, epoch: int = 1) -> bytes:
    return msgspec.json.encode(LeaseRecord(owner=owner, epoch=epoch, beat=beat, lease_ms=600))


@pytest.fixture(params=["file", "s3", "best-effort"])
def make_store(request, tmp_path):
    if request.param == "s3":
        endpoint, _ = request.getfixturevalue("s3_server")
        location = StorageLocation.parse(f"s3://bucket/{tmp_path.name}?endpoint_override={endpoint}")
        return lambda: S3Cell(location, "_lock")
    if request.param == "file":
        return lambda: FileCell(StorageLocation.parse(str(tmp_path / "leases")), "_lock")
    return lambda: BestEffortCell(LocalFiles(str(tmp_path)), "_lock")


# ---------------------------------------------------------------- stores


def test_a_write_is_refused_unless_the_version_is_known(make_store):
    store, other = make_store(), make_store()
    assert store.read() is None
    first = store.put(record("a"), None)
    assert first is not None
    assert other.put(record("b"), None) is None
    second = other.put(record("b"), first)
    assert second not in (None, first)
    assert store.put(record("a", 2), first) is None
    found = store.read()
    assert (found.data, found.version) == (record("b"), second)


@pytest.mark.parametrize("make_store", ["file", "s3"], indirect=True)
def test_of_many_that_write_at_once_one_is_taken(make_store):
    contenders = [make_store() for _ in range(8)]
    version: str | None = None
    with ThreadPoolExecutor(8) as pool:
        for beat in range(10):
            put = [pool.submit(store.put, record(str(i), beat), version) for i, store in enumerate(contenders)]
            (version,) = [v for v in (p.result() for p in put) if v is not None]
            assert make_store().read().version == version


def test_something_else_in_its_place_is_no_record(tmp_path):
    (tmp_path / "_lock-1").write_text("garbage")
    found = FileCell(StorageLocation.parse(str(tmp_path)), "_lock").read()
    assert stored(found.data, found.version) == Stored(None, "1")


def test_files_do_not_pile_up(tmp_path):
    store = FileCell(StorageLocation.parse(str(tmp_path)), "_lock")
    version = None
    for beat in range(50):
        version = store.put(record("a", beat), version)
    assert version == "50"
    assert len(os.listdir(tmp_path)) <= 9


def test_a_writer_whose_number_has_come_and_gone_is_refused(tmp_path):
    store = FileCell(StorageLocation.parse(str(tmp_path)), "_lock")
    version = early = store.put(record("a"), None)
    for beat in range(30):
        version = store.put(record("b", beat), version)
    assert store.put(record("a", 2), early) is None
    assert store.read().version == version


def test_a_store_without_conditional_writes_is_refused_or_warned_of(tmp_path, monkeypatch, s3_server, caplog):
    endpoint, _ = s3_server
    location = StorageLocation.parse(f"s3://bucket/x?endpoint_override={endpoint}")

    def ignores_conditions(options, request_s):
        client = stores_client(options, request_s)
        put = client.put_object
        client.put_object = lambda **a: put(**{k: v for k, v in a.items() if not k.startswith("If")})
        return client

    stores_client = cells._s3_client
    monkeypatch.setattr(cells, "_s3_client", ignores_conditions)
    with pytest.raises(ConfigurationError, match="does not heed the conditions"):
        open_cell(location, "_lock", conditional=True)
    assert isinstance(open_cell(location, "_lock", conditional=False), BestEffortCell)
    assert "best effort" in caplog.text
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setattr(cells, "_s3_client", stores_client)
    with pytest.raises(ConfigurationError, match=r"boto3: pip install 'tidegate\[s3\]'"):
        open_cell(location, "_lock", conditional=True)


def test_a_store_that_refuses_what_it_should_accept_is_refused(monkeypatch, s3_server):
    endpoint, _ = s3_server

    def refuses_etags(options, request_s):
        client = stores_client(options, request_s)
        put = client.put_object
        client.put_object = lambda **a: put(**a | ({"IfMatch": '"another"'} if "IfMatch" in a else {}))
        return client

    stores_client = cells._s3_client
    monkeypatch.setattr(cells, "_s3_client", refuses_etags)
    with pytest.raises(ConfigurationError, match=r"refuses a conditional write \(If-Match\) also when its condition"):
        open_cell(StorageLocation.parse(f"s3://bucket/x?endpoint_override={endpoint}"), "_lock", conditional=True)


@pytest.mark.parametrize(
    ("number", "why"), [(errno.EPERM, "makes no hard links"), (errno.ENOTSUP, "makes no hard"), (None, "over a file")]
)
def test_a_disk_without_hard_links_is_refused(tmp_path, monkeypatch, caplog, number, why):
    def link(source, target):
        if number is not None:
            raise OSError(number, os.strerror(number))
        shutil.copy(source, target)

    monkeypatch.setattr(cells.os, "link", link)
    location = StorageLocation.parse(str(tmp_path / "not made yet"))
    with pytest.raises(ConfigurationError, match=f"no lease can be kept here, since this disk .*{why}"):
        open_cell(location, "lease", conditional=True)
    assert isinstance(open_cell(location, "lease", conditional=False), BestEffortCell)
    assert "best effort" in caplog.text
    assert os.listdir(tmp_path) == []


def test_a_disk_with_hard_links_is_left_as_it_was(tmp_path):
    assert isinstance(open_cell(StorageLocation.parse(str(tmp_path / "new")), "lease", conditional=True), FileCell)
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------- a store that refuses what it should accept


def asked_within(ms: int, lease: Lease, answers: Callable[[Instruction], Answer]) -> int:
    """How often the store is asked when it answers at once."""
    count, asked = 0, None
    for now in range(ms):
        asked = lease.on_tick(now)
        while asked is not None and count < 10_000:
            count += 1
            asked = lease.on_answer(answers(asked), now)
    return count


def test_a_store_that_refuses_every_write_is_not_asked_as_fast_as_it_answers():
    free = Stored(LeaseRecord(owner="before", epoch=3, beat=1, lease_ms=600, released=True), "7")
    for there in (None, free):

        def refuses(instruction: Instruction, there: Stored | None = there) -> Answer:
            return Found(there) if isinstance(instruction, Read) else Refused()

        lease = Lease("me", TIMES)
        assert 10 <= asked_within(1000, lease, refuses) <= 2 * 1000 / TIMES.look_ms + 4
        assert isinstance(lease.state, Watching)


def test_an_owner_whose_renewals_are_refused_asks_again_after_a_pause_and_goes_on_when_they_are_not():
    stored: list[Stored] = []
    refusing = False

    def store(instruction: Instruction) -> Answer:
        if isinstance(instruction, Read):
            return Found(stored[-1] if stored else None)
        if refusing:
            return Refused()
        stored.append(Stored(instruction.record, str(len(stored))))
        return Written(stored[-1].version)

    lease = Lease("me", TIMES)
    asked_within(300, lease, store)
    assert lease.held(300)
    refusing = True
    assert asked_within(1000, lease, store) <= 3 * 1000 / TIMES.look_ms + 4
    assert isinstance(lease.state, Owning)
    refusing = False
    asked_within(1100, lease, store)
    assert lease.held(1100)


# ---------------------------------------------------------------- a store that fails


class Broken(FileCell):
    """Without a byte left, from `full` on."""

    full = False

    def put(self, data, expected):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().put(data, expected)


def test_a_store_that_fails_is_told_of_and_named_as_the_cause(tmp_path, caplog):
    store = Broken(StorageLocation.parse(str(tmp_path)), "_lock")
    owner = LeaseKeeper(store, TIMES)
    owner.start()
    assert owner.wait(60) is Waited.HELD
    assert owner.trouble is None
    store.full = True
    end = time.monotonic() + 60
    while owner.held() and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(LeaseLostError, match=r"could not be renewed in time \(the store: OSError: .*No space left"):
        owner.check()
    (told,) = [text for text in caplog.messages if "No space left" in text]  # once in five seconds
    assert f"the lease in {tmp_path}/_lock cannot be read or written" in told
    owner.release()


def test_one_who_waits_for_a_lease_is_told_why_it_does_not_come(tmp_path, caplog):
    store = Broken(StorageLocation.parse(str(tmp_path)), "_lock")
    store.full = True
    waiting = LeaseKeeper(store, TIMES)
    waiting.start()
    end = time.monotonic() + 60
    while waiting.trouble is None and time.monotonic() < end:
        time.sleep(0.01)
    assert "No space left" in (waiting.trouble or "")
    assert "No space left" in caplog.text
    store.full = False
    assert waiting.wait(60) is Waited.HELD
    assert waiting.trouble is None
    waiting.release()


def test_what_fails_again_and_again_is_told_at_doubling_intervals():
    now = [0.0]
    failing = Failing(lambda: now[0])
    told = []
    for second in range(1000):
        now[0] = float(second)
        if failing.again():
            told.append(second)
    assert told == [0, 5, 10, 20, 40, 80, 160, 320, 640]
    now[0] = 2000.0  # a trouble of its own
    assert failing.again()


# ---------------------------------------------------------------- the thread


class Stalling:
    """A store whose answers can be held up."""

    def __init__(self, store) -> None:
        self._store = store
        self.where = store.where
        self.open = threading.Event()
        self.open.set()

    def read(self):
        self.open.wait()
        return self._store.read()

    def put(self, data, expected):
        self.open.wait()
        return self._store.put(data, expected)


def test_a_second_one_waits_until_the_first_gives_it_back(make_store):
    first, second = (LeaseKeeper(make_store(), TIMES) for _ in range(2))
    first.start()
    assert first.wait(5) is Waited.HELD
    second.start()
    assert second.wait(5) is Waited.RIVAL_IS_ALIVE
    assert not second.held()
    first.release()
    assert not first.held()
    end = time.monotonic() + 5
    while not second.held() and time.monotonic() < end:
        time.sleep(0.01)
    assert (second.held(), second.epoch) == (True, 2)
    second.release()


def test_an_owner_whose_store_hangs_stops_believing_before_another_begins(make_store):
    stalling = Stalling(make_store())
    first, second = LeaseKeeper(stalling, TIMES), LeaseKeeper(make_store(), TIMES)
    first.start()
    assert first.wait(5) is Waited.HELD
    stalling.open.clear()
    second.start()
    end = time.monotonic() + 10
    while not second.held() and time.monotonic() < end:
        time.sleep(0.005)
    assert second.held()
    assert not first.held()
    with pytest.raises(LeaseLostError, match="could not be renewed in time"):
        first.check()
    stalling.open.set()
    while not first.lost() and time.monotonic() < end:
        time.sleep(0.005)
    with pytest.raises(LeaseLostError, match="another run has taken it"):
        first.check()
    assert second.held()
    second.release()


def test_release_does_not_wait_for_a_store_that_hangs(make_store):
    stalling = Stalling(make_store())
    hanging = LeaseKeeper(stalling, TIMES)
    hanging.start()
    assert hanging.wait(5) is Waited.HELD
    stalling.open.clear()
    time.sleep(0.3)  # a renewal hangs
    hanging.release(within_s=0.2)
    stalling.open.set()


@pytest.mark.parametrize("asked_for", [True, False], ids=["gone", "zombie"])
def test_a_process_of_this_machine_that_is_dead_is_not_waited_for(tmp_path, asked_for):
    script = f"""
from tidegate.storage.leases.keeper import LeaseKeeper
from tidegate.storage.leases.cells import FileCell
from tidegate.storage.location import StorageLocation
import os
keeper = LeaseKeeper(FileCell(StorageLocation.parse({str(tmp_path)!r}), "_lock"))
keeper.start()
print(keeper.wait(10), flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "HELD" in process.stdout.read()
    if asked_for:
        process.wait()
    other = LeaseKeeper(FileCell(StorageLocation.parse(str(tmp_path)), "_lock"))  # a lease of 15 s
    other.start()
    assert other.wait(8) is Waited.HELD
    assert other.epoch == 2
    other.release()
    process.stdout.close()
    process.wait()


def test_a_clone_of_this_machine_is_another_machine(monkeypatch):
    """Machines that were cloned while they ran have the same boot id, and each its own processes."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    about = {"owner": "a", "epoch": 1, "beat": 1, "lease_ms": 600, "pid": process.pid, "machine": keeper.this_machine()}
    assert keeper._is_dead(LeaseRecord(**about, host=socket.gethostname()))
    assert not keeper._is_dead(LeaseRecord(**about, host="another"))


# ---------------------------------------------------------------- the lock of a job


class OnStore(FileSystemStorage):
    """With a lease where a job on a local disk has a lock of the operating system."""

    def __init__(self, directory: Path, store) -> None:
        super().__init__(str(directory), "job")
        self.store = store

    def _make_lock(self):
        return LeaseJobLock(self._location, self.store, TIMES)


def has_been_taken(storage: FileSystemStorage) -> bool:
    """As it knows when it has looked who owns the lease now."""
    with pytest.raises(LeaseLostError) as raised:
        storage.check_owned()
    return isinstance(raised.value, DirectoryTakenError)


def test_a_run_that_was_stalled_past_its_lease_writes_no_metadata(tmp_path, make_store):
    stalling = Stalling(make_store())
    first, second = OnStore(tmp_path / "c", stalling), OnStore(tmp_path / "c", make_store())
    first.open(0.0)
    first.write_metadata(checkpoint(1))
    with pytest.raises(ConfigurationError, match=f"already running, in process {os.getpid()}"):
        second.open(0.0)
    stalling.open.clear()
    second.open(0.0)
    second.write_metadata(checkpoint(2))
    stalling.open.set()
    with pytest.raises(LeaseLostError):
        first.write_metadata(checkpoint(3))
    end = time.monotonic() + 20
    while not has_been_taken(first) and time.monotonic() < end:
        time.sleep(0.01)
    assert has_been_taken(first)
    assert second.completed_checkpoints() == [1, 2]
    first.close()
    second.close()


def test_of_two_runs_that_start_at_once_one_is_refused(tmp_path, s3_server):
    endpoint, _ = s3_server
    runs = [FileSystemStorage(f"s3://bucket/{tmp_path.name}?endpoint_override={endpoint}", "job") for _ in range(2)]

    def start(run: FileSystemStorage) -> bool:
        try:
            run.open(0.0)
        except ConfigurationError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(start, runs)) == [False, True]
    for run in runs:
        run.close()
