from __future__ import annotations

import concurrent.futures
import threading

import pytest

from tidegate.common import CompletableFuture, JobClient, JobExecutionResult, JobID, JobStatus
from tidegate.common.errors import ConfigurationError


def test_job_ids() -> None:
    job_id = JobID.generate()
    assert JobID.from_hex(str(job_id).upper()) == job_id
    assert len(str(job_id)) == 32
    assert JobID.generate() != job_id
    for wrong in ("", "xyz", "0" * 31, "g" * 32):
        with pytest.raises(ConfigurationError, match="32 hex digits"):
            JobID.from_hex(wrong)


def test_job_status() -> None:
    ended = {s for s in JobStatus if s.is_globally_terminal_state()}
    assert ended == {JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED}
    assert {s for s in JobStatus if s.is_terminal_state()} == ended | {JobStatus.SUSPENDED}


def test_job_execution_result() -> None:
    job_id = JobID.generate()
    result = JobExecutionResult(job_id, 1234, {"records": 5})
    assert result.get_job_id() == job_id
    assert result.get_net_runtime() == 1234
    assert result.get_accumulator_result("records") == 5
    assert result.get_accumulator_result("none") is None
    assert result.get_all_accumulator_results() == {"records": 5}
    assert result.is_job_execution_result()
    assert str(result) == f"Job {job_id} finished after 1234 ms.\n- records: 5"


def test_the_job_client_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        JobClient()  # type: ignore[abstract]


def test_a_future_is_completed_once() -> None:
    future: CompletableFuture[int] = CompletableFuture()
    seen: list[CompletableFuture[int]] = []
    future.add_done_callback(seen.append)
    assert not future.done()
    assert future.complete(5)
    assert not future.complete(6)
    assert not future.complete_exceptionally(ValueError())
    assert not future.cancel()
    assert (future.result(), future.exception(), future.done(), future.cancelled()) == (5, None, True, False)
    assert seen == [future]


def test_a_failed_future_raises_its_error() -> None:
    future = CompletableFuture.failed(ValueError("x"))
    assert isinstance(future.exception(), ValueError)
    with pytest.raises(ValueError, match="x"):
        future.result()
    assert "failed" in repr(future)


def test_a_cancelled_future_stays_cancelled() -> None:
    future: CompletableFuture[int] = CompletableFuture()
    assert future.cancel()
    assert not future.complete(1)
    assert future.cancelled()
    assert future.done()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()


def test_waiting_has_a_bound_and_sees_other_threads() -> None:
    future: CompletableFuture[int] = CompletableFuture()
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    thread = threading.Thread(target=future.complete, args=(7,))
    thread.start()
    assert future.result(timeout=10) == 7
    thread.join()
    assert CompletableFuture.completed(1).result() == 1
