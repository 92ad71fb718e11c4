"""Keeps two runs of the same job id out of one job directory.

On a local file system an OS lock, which ends with the process however it dies. Elsewhere a best effort: an object with
host, process and a heartbeat; it counts as left over when the heartbeat is old or the process is known to be dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from typing import Protocol

import msgspec

from tidegate.common.errors import ConfigurationError, SnapshotError
from tidegate.storage.files import OWNER, PERMISSIONS, Files, Permissions, make_directories, storage_errors, write_file
from tidegate.storage.job_directory import LOCK

STALE_AFTER_MS = 60_000


class LockOwner(msgspec.Struct, frozen=True):
    """The content of the lock file, JSON."""

    host: str
    pid: int
    started_ms: float
    heartbeat_ms: float


class JobLock(Protocol):
    """acquire, heartbeat at least every STALE_AFTER_MS / 3, release."""

    def acquire(self, now_ms: float) -> None:
        """ConfigurationError when somebody else holds it."""

    def heartbeat(self, now_ms: float) -> None: ...

    def release(self) -> None:
        """Never raises."""


class LocalJobLock:
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

    def heartbeat(self, now_ms: float) -> None:
        """The OS knows."""

    def release(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


class RemoteJobLock:
    def __init__(self, files: Files) -> None:
        self._files = files
        self._owner: LockOwner | None = None

    def acquire(self, now_ms: float) -> None:
        if self._files.size(LOCK) is not None:
            owner = _decode(self._files.read(LOCK))
            if owner is not None and not _is_left_over(owner, now_ms):
                raise already_running(self._files.describe(""), owner)
        self._owner = _this_process(now_ms)
        write_file(self._files, LOCK, _encode(self._owner))

    def heartbeat(self, now_ms: float) -> None:
        if self._owner is not None and now_ms - self._owner.heartbeat_ms >= STALE_AFTER_MS / 4:
            self._owner = msgspec.structs.replace(self._owner, heartbeat_ms=now_ms)
            with contextlib.suppress(SnapshotError):  # tried again at the next heartbeat
                write_file(self._files, LOCK, _encode(self._owner))

    def release(self) -> None:
        if self._owner is not None:
            self._owner = None
            with contextlib.suppress(SnapshotError):
                self._files.delete_file(LOCK)


def already_running(directory: str, owner: LockOwner | None) -> ConfigurationError:
    who = f"process {owner.pid} on {owner.host}" if owner else "another process"
    return ConfigurationError(
        f"the job of the checkpoint directory {directory} is already running, in {who}; stop it first, or start this "
        "job under another job id"
    )


def _this_process(now_ms: float) -> LockOwner:
    return LockOwner(socket.gethostname(), os.getpid(), now_ms, now_ms)


def _encode(owner: LockOwner) -> bytes:
    return msgspec.json.encode(owner)


def _decode(data: bytes) -> LockOwner | None:
    try:
        return msgspec.json.decode(data, type=LockOwner)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _is_left_over(owner: LockOwner, now_ms: float) -> bool:
    if now_ms - owner.heartbeat_ms > STALE_AFTER_MS:
        return True
    return owner.host == socket.gethostname() and owner.pid != os.getpid() and not _is_alive(owner.pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
