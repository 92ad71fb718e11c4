"""Exceptions whose text is half a character, or fifty megabytes: the user reads the cause, and nothing breaks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common import JobStatus
from tidegate.datastream.connectors import CollectSink
from tidegate.protocol.messages import MAX_SUMMARY, MAX_TRACEBACK, FailureInfo
from tidegate.testing.in_process_job import InProcessJob


def failed_with(text: str) -> FailureInfo:
    def broken(value: Any) -> Any:
        raise ValueError(text)

    env = environment()
    env.from_collection([1]).map(broken).name("broken").sink_to(CollectSink())
    with InProcessJob(env) as job:
        assert job.run_to_end() is JobStatus.FAILED
        return job.master.failures[0].failure


def test_half_of_a_surrogate_pair_is_shown_as_an_escape() -> None:
    failure = failed_with("half \ud83d of it")
    assert "ValueError: half \\ud83d of it" in failure.summary
    assert "half \\ud83d of it" in failure.traceback
    failure.summary.encode()


def test_a_huge_text_is_cut_and_goes_to_the_workers_log_in_full(caplog: pytest.LogCaptureFixture) -> None:
    text = "begin" + "x" * 5_000_000 + "the end"
    failure = failed_with(text)
    assert len(failure.summary) <= MAX_SUMMARY
    assert len(failure.traceback) <= MAX_TRACEBACK
    assert failure.summary.startswith("operator 'broken' (subtask 0) failed in")
    assert failure.summary.endswith("the end")
    assert "left out" in failure.summary
    assert text in caplog.text
