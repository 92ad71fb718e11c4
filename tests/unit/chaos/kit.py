"""Programs under chaos in one process: the same rewriting, recording and comparison; faults by `tidegate.testing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidegate.chaos.rewriting import Rewritten, rewrite
from tidegate.chaos.rounds import Run
from tidegate.chaos.segment import Segment, SegmentResult
from tidegate.common import JobStatus
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.interception import intercept
from tidegate.jobmanager.published_client import PublishedJobClient
from tidegate.jobmanager.runtime import Submission
from tidegate.testing import Fault, InProcessJob


class Rewrites:
    """An interceptor that only rewrites."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.rewritten: Rewritten | None = None

    def submission(self, submission: Submission) -> Submission:
        self.rewritten = rewrite(submission, self._segment)
        return self.rewritten.submission

    def started(self, client: PublishedJobClient) -> None: ...


def run_in_process(
    folder: Path,
    build: Callable[[StreamExecutionEnvironment], Any],
    faults: Sequence[Fault] = (),
    **segment: Any,
) -> Run:
    """One run of the program that `build` makes, at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(20)
    build(env)
    rewrites = Rewrites(Segment(folder=str(folder), **segment))
    intercept(rewrites)
    try:
        job = InProcessJob(env, faults)
    finally:
        intercept(None)
    assert rewrites.rewritten is not None
    with job:
        assert job.run_to_end() is JobStatus.FINISHED, job.failure
    result = SegmentResult(
        job_id=job.graph.job_id,
        operators=rewrites.rewritten.operators,
        notes=rewrites.rewritten.notes,
        status="FINISHED",
        restarts=job.restarts,
        checkpoints=rewrites.rewritten.checkpoints,
        at_least_once=rewrites.rewritten.at_least_once,
    )
    struck: list[dict[str, object]] = [
        {"kind": "exception", "at_ms": 0.0} for fault in faults if fault not in job.faults.left
    ]
    return Run(folder.name, str(folder), [result], struck)
