"""The files by which commands find running jobs, and the port that writes them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.web.web_kit import FakeJobs
from tidegate.web import registry
from tidegate.web.job_port import JobPort
from tidegate.web.registry import JobRecord, publish, running_jobs
from tidegate.web.rest_settings import RestSettings


@pytest.fixture
def jobs() -> FakeJobs:
    return FakeJobs()


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def record(job_id: str = "a" * 32, pid: int | None = None, started_ms: int = 5) -> JobRecord:
    pid = os.getpid() if pid is None else pid
    start = registry.process_start(pid)
    return JobRecord(
        job_id=job_id, job_name="n", pid=pid, process_start=start, url="http://x", token="t", started_ms=started_ms
    )


def test_the_file_of_a_job_can_be_read_by_its_user_only(state_home: Path) -> None:
    path = publish(record())
    assert path == state_home / "tidegate" / "jobs" / f"{'a' * 32}.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert running_jobs() == [record()]


def test_files_of_dead_processes_and_broken_ones_are_removed(state_home: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = publish(record("b" * 32, pid=gone.pid))
    reused = publish(JobRecord(**{**_fields(record("c" * 32)), "process_start": "1"}))
    broken = dead.with_name("broken.json")
    broken.write_text("{")
    elsewhere = publish(JobRecord(**{**_fields(record("e" * 32, pid=gone.pid)), "host": "another machine"}))
    alive = publish(record())
    assert [j.job_id for j in running_jobs()] == ["a" * 32]
    assert alive.exists()
    assert elsewhere.exists()
    assert not dead.exists()
    assert not reused.exists() or not registry.process_start(os.getpid())
    assert not broken.exists()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_file_that_cannot_be_read_just_now_stays(
    state_home: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    publish(record())

    def fails(path: Path) -> bytes:
        raise OSError(error, os.strerror(error), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fails)
        assert running_jobs() == []
    assert running_jobs() == [record()]


def _fields(of: JobRecord) -> dict[str, Any]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


def test_a_job_port_is_published_and_withdrawn(state_home: Path, jobs: FakeJobs) -> None:
    port = JobPort(jobs, "d" * 32, "name", 1.0)
    port.open()
    port._thread.join()
    (found,) = running_jobs()
    assert (found.job_id, found.url) == ("d" * 32, port.url)
    port.close()
    assert running_jobs() == []
    assert list((state_home / "tidegate" / "jobs").iterdir()) == []


def test_a_port_that_cannot_be_opened_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: FakeJobs, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    port = JobPort(jobs, "d" * 32, "name", 1.0)
    port.open()
    port.close()
    assert "cannot be reached by the tidegate command" in caplog.text


def two_in_a_row() -> tuple[socket.socket, socket.socket]:
    """On two ports of which the second is the next after the first."""
    for _ in range(100):
        one = socket.create_server(("127.0.0.1", 0))
        with contextlib.suppress(OSError, OverflowError):
            return one, socket.create_server(("127.0.0.1", one.getsockname()[1] + 1))
        one.close()
    raise AssertionError("no two ports in a row are free")


def test_a_port_that_is_in_use_gives_way_to_the_next_free_one(
    state_home: Path, jobs: FakeJobs, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = two_in_a_row()
    with one, other:
        taken = one.getsockname()[1]
        port = JobPort(jobs, "d" * 32, "name", 1.0, RestSettings(port=taken))
        port.open()
        port._thread.join()
        (found,) = running_jobs()
        assert found.url == port.url
        number = int(port.url.rpartition(":")[2])
        assert taken + 2 <= number < taken + 100
        assert f"job name: port {taken} is in use, {number} is taken instead" in caplog.text
        port.close()
