"""The jobs of this user on this machine that are running: a small file per job, which only the user can read.
(Machines may share the folder: files of another one are left alone, since only it knows what is running there.)

`<state>/tidegate/jobs/<job id>.json`, where <state> is $XDG_STATE_HOME or ~/.local/state. It holds the address of the
job's REST port and the token that opens it, and is removed when the job ends. A process that is killed leaves its file
behind: whoever reads the folder next recognises that and removes it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

import msgspec

from tidegate.common.decoding import UNREADABLE


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    job_name: str
    pid: int  # of the JobManager's process
    process_start: str  # when that process was started, in its own terms; "": not known here. Process ids are reused
    url: str  # of the REST port
    token: str  # that allows everything
    started_ms: int  # since the epoch
    host: str = ""  # the machine of that process
    read_token: str = ""  # that allows only to look
    authority: str = ""  # of an https url: a PEM file to check its certificate against; "": the system's authorities


def state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base and os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "tidegate"


def jobs_directory() -> Path:
    return state_directory() / "jobs"


def publish(record: JobRecord) -> Path:
    """Raises OSError when the folder cannot be written."""
    directory = jobs_directory()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".new-")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=2))
        path = directory / f"{record.job_id}.json"
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def withdraw(path: Path) -> None:
    """Never raises."""
    with contextlib.suppress(OSError):
        path.unlink()


def running_jobs() -> list[JobRecord]:
    """Oldest first. Files of processes that are gone are removed, as are those that hold no record; one that cannot be
    read stays: the reason may pass."""
    found = []
    try:
        paths = sorted(jobs_directory().glob("*.json"))
    except OSError:
        return []
    for path in paths:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=JobRecord)
        except OSError:
            continue  # it ended in this moment, or cannot be read just now: the file may be that of a job which runs
        except UNREADABLE:
            withdraw(path)
            continue
        if record.host not in ("", socket.gethostname()):
            continue
        if is_alive(record.pid, record.process_start):
            found.append(record)
        else:
            withdraw(path)
    return sorted(found, key=lambda record: record.started_ms)


def is_alive(pid: int, start: str) -> bool:
    if pid <= 0:
        return False  # not the id of a process: groups of them have such
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # there, but another user's
    now = process_start(pid)
    return not start or not now or now == start


def process_start(pid: int) -> str:
    """The start time of a process as the operating system counts it; "" where it does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
