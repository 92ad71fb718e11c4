"""A checkpoint that cannot be read for a while is waited for; only one that is proved to be damaged is passed over."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_jobs import environment, ticks

from tidegate.common.job_status import JobStatus
from tidegate.datastream import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.storage import calls, files
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.testing.in_process_job import InProcessJob

RECORDS = 300


class Count(KeyedProcessFunction):
    """State of 30 KB, so that it goes to files."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self._state.value() or (0,))[0] + 1
        self._state.update((count, os.urandom(30_000)))
        yield value, count


def make_job(folder: Path, backend: str, attempts: int = 1000) -> InProcessJob:
    env = environment(
        {
            "execution.checkpointing.interval": "100 ms",
            "execution.checkpointing.dir": str(folder / "checkpoints"),
            "execution.checkpointing.num-retained": "3",
            "state.backend.type": backend,
            "state.backend.rocksdb.localdir": str(folder / "local"),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(attempts),
            "restart-strategy.fixed-delay.delay": "100 ms",
        }
    )
    ticks(env, count=RECORDS).key_by(lambda _: 0).process(Count()).sink_to(CollectSink())
    return InProcessJob(env)


def fail_attempt(job: InProcessJob) -> None:
    """As if a worker was lost."""
    for slot in job.slots:
        slot.muted = True
    job.advance(8_100)


def exact(job: InProcessJob) -> bool:
    return job.results == [(n, n + 1) for n in range(RECORDS)]


def unreadable(
    monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool], newest_only: bool, job: InProcessJob
) -> None:
    """Reading fails as a disk or a network fails."""
    original = files._read_fully

    def read(file: Any, length: int) -> bytes:
        newest = f"c{job.completed[-1]}-" in file.name or f"chk-{job.completed[-1]}/" in file.name
        if until() or (newest_only and not newest):
            return original(file, length)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "_read_fully", read)


@pytest.mark.parametrize("newest_only", [False, True])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_storage_that_cannot_be_read_for_a_while_is_waited_for(tmp_path, monkeypatch, backend, newest_only):
    with make_job(tmp_path, backend) as job:
        job.advance(1_050)
        assert len(job.completed) == 3
        back_at = job.clock.now + 8_100 + 6_000
        unreadable(monkeypatch, lambda: job.clock.now >= back_at, newest_only, job)
        fail_attempt(job)
        assert job.run_to_end() is JobStatus.FINISHED
        assert exact(job)
        assert "Input/output error" in job.logged
        assert "falling back" not in job.logged


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("mount_point", [False, True])
@pytest.mark.parametrize("runs_on_for_ms", [0, 300])
def test_a_directory_that_is_away_for_a_while_is_waited_for(tmp_path, backend, mount_point, runs_on_for_ms):
    """`runs_on_for_ms`: checkpoints are tried while it is away, and must not make it anew."""
    checkpoints = tmp_path / "checkpoints"
    with make_job(tmp_path, backend) as job:
        job.advance(1_050)
        os.rename(checkpoints, tmp_path / "away")
        if mount_point:
            checkpoints.mkdir()
        job.advance(runs_on_for_ms)
        fail_attempt(job)
        job.advance(3_000)
        assert not list(checkpoints.glob("*"))
        if mount_point:
            checkpoints.rmdir()
        os.rename(tmp_path / "away", checkpoints)
        assert job.run_to_end() is JobStatus.FINISHED
        assert exact(job)
        assert "falling back" not in job.logged


def test_restarts_that_the_strategy_does_not_allow_are_not_made(tmp_path, monkeypatch):
    with make_job(tmp_path, "hashmap", attempts=3) as job:
        job.advance(1_050)
        unreadable(monkeypatch, lambda: False, True, job)
        fail_attempt(job)
        assert job.run_to_end() is JobStatus.FAILED
        assert "Input/output error" in job.failure
        assert "falling back" not in job.logged


def test_a_damaged_checkpoint_is_passed_over_and_the_log_says_what_that_means(tmp_path):
    with make_job(tmp_path, "hashmap") as job:
        job.advance(1_050)
        newest, before = job.completed[-1], job.completed[-2]
        for path in (tmp_path / "checkpoints").rglob(f"c{newest}-*"):
            path.unlink()
        fail_attempt(job)
        assert job.run_to_end() is JobStatus.FINISHED
        assert f"checkpoint {newest} is damaged" in job.logged
        assert f"falling back to checkpoint {before}" in job.logged
        assert "get those records twice" in job.logged


def test_a_full_local_disk_is_an_ordinary_failure(tmp_path, monkeypatch):
    with make_job(tmp_path, "rocksdb") as job:
        job.advance(1_050)
        full_until = job.clock.now + 8_100 + 6_000
        original = Path.open

        def open_or_fail(self: Path, mode: str = "r", *rest: Any) -> Any:
            if mode == "wb" and job.clock.now < full_until:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(self, mode, *rest)

        monkeypatch.setattr(Path, "open", open_or_fail)
        fail_attempt(job)
        assert job.run_to_end() is JobStatus.FINISHED
        assert exact(job)
        assert "No space left on device" in job.logged
        assert "falling back" not in job.logged


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_what_a_worker_waits_for_is_known_by_operator_and_file(tmp_path, monkeypatch, backend):
    """Looked at in the middle of the call, as the control thread of a worker does while it hangs."""
    seen: list[str] = []

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(*arguments: Any, **more: Any) -> Any:
            seen.extend(calls.overdue())
            return original(*arguments, **more)

        return look

    monkeypatch.setattr(files, "_read_fully", looking(files._read_fully))
    with make_job(tmp_path, backend) as job:
        monkeypatch.setattr(files, "make_directories", looking(files.make_directories))
        monkeypatch.setattr(calls, "WARN_AFTER_S", 0.0)
        job.advance(350)
        newest = job.completed[-1]
        written = next(text for text in seen if f"(subtask 0), writing checkpoint {newest}: write {tmp_path}" in text)
        assert written.startswith("Keyed Process")
        fail_attempt(job)
        assert job.run_to_end() is JobStatus.FINISHED
    text = f"operator 'Keyed Process' (subtask 0), restoring checkpoint {newest}: read {tmp_path}/checkpoints"
    assert any(text in one for one in seen)


def test_a_submission_that_waits_for_its_storage_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(calls, "WARN_AFTER_S", 0.05)
    original = files.make_directories

    def hang(*arguments: Any, **more: Any) -> None:
        end = time.monotonic() + 20
        while "has not answered" not in caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        original(*arguments, **more)

    monkeypatch.setattr(files, "make_directories", hang)
    with make_job(tmp_path, "hashmap"):
        pass
    assert f"waits: write {tmp_path}/checkpoints" in caplog.text


def test_a_run_whose_directory_another_one_has_taken_ends(tmp_path):
    """It would be restarted for ever, and its sinks would go on writing what the other run writes too."""
    with make_job(tmp_path, "hashmap") as job:
        job.advance(350)
        (lock,) = (tmp_path / "checkpoints").glob("*/_lock")
        lock.unlink()
        other = FileSystemStorage(str(tmp_path / "checkpoints"), lock.parent.name)
        other.open(0.0)
        assert job.run_to_end() is JobStatus.FAILED
        assert job.restarts == 0
        assert "another run has taken the checkpoint directory" in job.failure
        assert len(other.completed_checkpoints()) == 3
        other.close()
