"""A bug in user code under checkpointing: its traceback is shown once, and the job does not restart for ever."""

from __future__ import annotations

import errno
import gzip
import http.client
import io
import shutil
import smtplib
import socket
import ssl
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from small_jobs import environment, ticks

from tidegate.common import JobStatus
from tidegate.common.ids import CheckpointId
from tidegate.jobmanager.recovery_policy import RepeatedFailures
from tidegate.protocol.instructions import Log
from tidegate.protocol.messages import FailureInfo
from tidegate.taskmanager.failure import may_pass
from tidegate.testing import InProcessJob


class ServiceTimeout(Exception):
    """As client libraries have them, without a common base class."""


class SomeLibrarysError(OSError):
    """As client libraries have them, too."""


class UnidentifiedImage(OSError):
    """As Pillow has it."""


def parse(n: int) -> int:
    if n == 5:
        raise ValueError(f"no number: {object()} at {n}")
    return n


def job(function: Any, keys: dict[str, Any] | None = None, count: int = 20) -> InProcessJob:
    env = environment({"execution.checkpointing.interval": "1 h", **(keys or {})}, 1)
    return InProcessJob.collecting(ticks(env, count=count).map(function).name("Parse"))


def test_a_bug_ends_the_job_when_it_has_come_three_times() -> None:
    with job(parse) as running:
        assert running.run_to_end() is JobStatus.FAILED
        assert running.ended is not None
        assert running.ended.failed_attempts == 3
        assert "the same failure has come 3 times" in running.ended.reason
        assert "tidegate.restart.stop-on-repeated-failure" in running.ended.reason
        assert "operator 'Parse' (subtask 0)" in running.failure


def test_the_traceback_is_logged_once_and_repetitions_are_counted() -> None:
    with job(parse) as running:
        running.run_to_end()
        told = [entry.text for entry in running.of(Log) if "failed" in entry.text]
    assert len(told) == 3
    assert "in parse" in told[0]
    assert 'raise ValueError(f"no number' in told[0]
    assert all("Traceback" not in text for text in told[1:])
    assert "for the 2nd time" in told[1]
    assert "for the 3rd time" in told[2]


ENDLESS = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "50",
    "restart-strategy.fixed-delay.delay": "1 s",
}


@pytest.mark.parametrize("keys", [{"tidegate.restart.stop-on-repeated-failure": "0"}, ENDLESS])
def test_it_goes_on_when_it_is_told_to(keys: dict[str, str]) -> None:
    with job(parse, keys) as running:
        running.advance(20_000)
        assert running.ended is None
        assert running.restarts > 3


def test_a_service_that_does_not_answer_is_waited_for() -> None:
    def look_up(n: int) -> int:
        raise ConnectionRefusedError("service:443")

    with job(look_up) as running:
        running.advance(20_000)
        assert running.ended is None
        assert running.restarts > 3


def test_a_checkpoint_in_between_is_progress() -> None:
    repeated, failure = RepeatedFailures(), FailureInfo(summary="x", cause="x")
    assert [repeated.again(failure, CheckpointId(1)) for _ in range(2)] == [1, 2]
    assert [repeated.again(failure, CheckpointId(2)) for _ in range(2)] == [1, 2]


def test_other_failures_in_between_do_not_hide_a_bug() -> None:
    repeated, failure = RepeatedFailures(), FailureInfo(summary="x", cause="x")
    assert repeated.again(failure, None) == 1
    assert repeated.again(FailureInfo(summary="a worker was lost"), None) == 0
    assert repeated.again(failure, None) == 2


@pytest.mark.parametrize(
    "keys", [{}, {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}]
)
def test_a_job_without_spark_says_what_it_can_go_on_from(tmp_path: Path, keys: dict[str, str]) -> None:
    """Also when its settings would have its checkpoints deleted: it was not the job that failed."""
    with job(str, {"execution.checkpointing.dir": str(tmp_path), **keys}) as running:
        running.advance(50).checkpoint()
        running.do(lambda now: running.master.on_engine_gone(running.master.attempt, "its JVM has died", now))
        assert running.ended is not None
        assert running.ended.status is JobStatus.FAILED
    (metadata,) = tmp_path.rglob("_metadata")
    assert f"tidegate run -s {metadata.parent} PROGRAM" in running.ended.reason
    assert "execution.state-recovery.path" in running.ended.reason
    goes_on = {"execution.checkpointing.dir": str(tmp_path), "execution.state-recovery.path": str(metadata.parent)}
    with job(str, goes_on) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED
        assert resumed.results == [str(n) for n in range(20)]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ValueError("x"), False),
        (KeyError("x"), False),
        (OSError("x"), False),
        (OSError("the header of block 7 is damaged"), False),
        (gzip.BadGzipFile("Not a gzipped file (b'ab')"), False),
        (shutil.SameFileError("a and b are the same file"), False),
        (io.UnsupportedOperation("not readable"), False),
        (FileNotFoundError(), False),
        (OSError(errno.EXDEV, "Invalid cross-device link"), False),
        (OSError(errno.ENOEXEC, "Exec format error"), False),
        (UnidentifiedImage("cannot identify image file"), False),
        (SomeLibrarysError("failed"), True),  # nobody knows of what
        (OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 6"), True),
        (OSError("the service answered 503"), True),
        (OSError("connection to broker lost"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (urllib.error.URLError("unknown url type: x"), True),
        (urllib.error.URLError(ConnectionRefusedError()), True),
        (smtplib.SMTPServerDisconnected("x"), True),
        (ssl.SSLError("x"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True),
        (http.client.RemoteDisconnected("x"), True),
        (TimeoutError("x"), True),
        (ServiceTimeout("x"), True),
        (MemoryError(), True),
        (OSError(errno.ENOSPC, "x"), True),
        (FileNotFoundError("model.bin"), False),
        (PermissionError("x"), False),
        (IsADirectoryError("x"), False),
        (NotADirectoryError("x"), False),
        (FileExistsError("x"), False),
        (OSError(errno.ENAMETOOLONG, "x"), False),
    ],
)
def test_what_may_pass(error: BaseException, passes: bool) -> None:
    assert may_pass(error) is passes
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = error
    assert may_pass(wrapped) is passes


def test_what_a_library_makes_of_a_lost_connection_may_pass() -> None:
    error = OSError("cannot read the file")
    error.__cause__ = ConnectionResetError("x")
    assert may_pass(error)


def test_a_file_that_cannot_be_read_ends_the_job_when_it_was_tried_three_times() -> None:
    def unpack(n: int) -> bytes:
        return gzip.decompress(b"no gzip" if n == 5 else gzip.compress(b"x"))

    with job(unpack) as running:
        assert running.run_to_end() is JobStatus.FAILED
        assert running.ended is not None
        assert running.ended.failed_attempts == 3
        assert "BadGzipFile" in running.failure


def met_while_handling(first: Exception, second: Exception) -> Exception:
    try:
        try:
            raise first
        except Exception:
            raise second  # noqa: B904
    except Exception as error:
        return error


def test_a_bug_that_is_met_while_a_lost_connection_is_handled_stays() -> None:
    assert not may_pass(met_while_handling(ConnectionError("x"), NameError("name 'retires' is not defined")))
    assert not may_pass(met_while_handling(TimeoutError("x"), KeyError("x")))
    assert may_pass(met_while_handling(ConnectionError("x"), RuntimeError("the service is down")))
    assert may_pass(met_while_handling(KeyError("x"), ConnectionError("not in the cache, so asked for")))


def test_a_missing_file_ends_the_job_when_it_has_come_three_times() -> None:
    def load(n: int) -> int:
        return len(open("/nowhere/model.bin").read())

    with job(load) as running:
        assert running.run_to_end() is JobStatus.FAILED
        assert running.ended is not None
        assert running.ended.failed_attempts == 3
        assert "/nowhere/model.bin" in running.failure
