"""Keeps two runs of the same job id out of one job directory.

On a local file system an OS lock, which ends with the process however it dies. Elsewhere a lease (`storage.leases`):
on S3 with conditional writes, on other stores as a best effort, which a warning says.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
from typing import Protocol

import msgspec

from tidegate.common.decoding import UNREADABLE
from tidegate.common.errors import ConfigurationError
from tidegate.storage.files import OWNER, PERMISSIONS, Permissions, make_directories, storage_errors
from tidegate.storage.job_directory import LOCK
from tidegate.storage.leases.cells import Cell, open_cell
from tidegate.storage.leases.keeper import DirectoryTakenError, LeaseKeeper, LeaseLostError, Waited
from tidegate.storage.leases.lease import LeaseTimes
from tidegate.storage.location import StorageLocation

log = logging.getLogger("tidegate.storage")

_PATIENCE_S = 10.0  # with a store that is slow to answer, on top of the time that a lease takes to run out


class LockOwner(msgspec.Struct, frozen=True):
    """The content of a local lock file, JSON: for people."""

    host: str
    pid: int
    started_ms: float


class JobLock(Protocol):
    """acquire, check before everything that is written or deleted, release."""

    ends_with_its_owner: bool
    """Nobody else gets it while a write of the process that holds it may be under way."""

    def acquire(self, now_ms: float) -> None:
        """ConfigurationError when somebody else holds it."""

    def check(self) -> None:
        """LeaseLostError when it is not ours any more, or nobody can be sure; DirectoryTakenError when another run is
        known to hold it."""

    def release(self) -> None:
        """Never raises."""


class LocalJobLock:
    ends_with_its_owner = True

    def __init__(self, job_directory: str, permissions: Permissions = PERMISSIONS[OWNER]) -> None:
        self._directory = job_directory
        self._permissions = permissions
        self._path = os.path.join(job_directory, LOCK)
        self._fd = -1

    def acquire(self, now_ms: float) -> None:
        with storage_errors("lock", self._path):
            make_directories(self._directory, self._directory, self._permissions.directory)
            while True:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT, self._permissions.file)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    owner = _decode(os.pread(fd, 4096, 0))
                    os.close(fd)
                    raise already_running(self._directory, owner) from None
                except BaseException:
                    os.close(fd)
                    raise
                if _same_file(fd, self._path):
                    break
                os.close(fd)  # the holder before us deleted it just now
            os.ftruncate(fd, 0)
            os.pwrite(fd, _encode(_this_process(now_ms)), 0)
            self._fd = fd

    def check(self) -> None:
        with storage_errors("look at", self._path):
            ours = _same_file(self._fd, self._path)
            other = None if ours else _holder(self._path)
        if other is not None:
            raise DirectoryTakenError(
                f"nothing is written below {self._directory}: its lock is held by process {other.pid} on {other.host}, "
                "which has taken the directory after the lock of this run was deleted or moved away"
            )
        if not ours:
            raise LeaseLostError(
                f"nothing is written below {self._directory}: the lock of this run, {self._path}, was deleted or moved "
                "away, so that another run may be using the directory"
            )

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


class LeaseJobLock:
    ends_with_its_owner = False  # a write that hangs for longer than the lease comes to its end in the next run's time

    def __init__(self, location: StorageLocation, store: Cell | None = None, times: LeaseTimes | None = None) -> None:
        """`store`: instead of the one that belongs to the location."""
        self._location = location
        self._store = store
        self._times = times or LeaseTimes()
        self._keeper: LeaseKeeper | None = None

    def acquire(self, now_ms: float) -> None:
        with storage_errors("lock", self._location.uri):
            store = self._store or open_cell(self._location, LOCK, conditional=False, request_s=self._times.request_s)
        keeper = LeaseKeeper(store, self._times)
        keeper.start()
        lease_s = self._times.lease_ms * (1 + self._times.drift) / 1000.0
        outcome = keeper.wait(2 * self._times.look_ms / 1000.0)
        if outcome is Waited.TIMEOUT:
            log.warning("%s: another run was here; waiting up to %.0f s to see if it is alive", keeper.where, lease_s)
            outcome = keeper.wait(lease_s + _PATIENCE_S)
        if outcome is Waited.HELD:
            self._keeper = keeper
            return
        rival = keeper.rival
        keeper.release()
        if outcome is Waited.RIVAL_IS_ALIVE:
            raise already_running(self._location.uri, LockOwner(rival.host, rival.pid, 0.0) if rival else None)
        raise ConfigurationError(
            f"{keeper.where} could not be locked within {lease_s + _PATIENCE_S:.0f} s: the storage does not answer, or "
            "others try the same; see that it can be read and written, and try again"
        )

    def check(self) -> None:
        if self._keeper is not None:
            self._keeper.check()

    def release(self) -> None:
        if self._keeper is not None:
            self._keeper.release()
            self._keeper = None


def already_running(directory: str, owner: LockOwner | None) -> ConfigurationError:
    who = f"process {owner.pid} on {owner.host}" if owner else "another process"
    return ConfigurationError(
        f"the job of the checkpoint directory {directory} is already running, in {who}; stop it first, or start this "
        "job under another job id"
    )


def _this_process(now_ms: float) -> LockOwner:
    return LockOwner(socket.gethostname(), os.getpid(), now_ms)


def _encode(owner: LockOwner) -> bytes:
    return msgspec.json.encode(owner)


def _decode(data: bytes) -> LockOwner | None:
    try:
        return msgspec.json.decode(data, type=LockOwner)
    except UNREADABLE:
        return None


def _holder(path: str) -> LockOwner | None:
    """Who holds the lock file that lies there; None when nobody does, or there is none."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _decode(os.pread(fd, 4096, 0))
    finally:
        os.close(fd)
    return None


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
