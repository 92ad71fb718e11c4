"""Results that wait for their checkpoint, when the subtasks of the collect sink become fewer or more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_jobs import environment, ticks

from tidegate.common.job_status import JobStatus
from tidegate.contracts.collect_sink import CollectSink
from tidegate.testing.in_process_job import InProcessJob

RECORDS = 40


def job(parallelism: int, keys: dict[str, Any]) -> Any:
    env = environment({"execution.checkpointing.interval": "1 h", **keys}, parallelism)
    ticks(env, count=RECORDS).rebalance().sink_to(CollectSink("out")).uid("out")
    return env


@pytest.mark.parametrize(("before", "after"), [(3, 1), (3, 2), (2, 3)])
def test_all_waiting_results_arrive(tmp_path: Path, before: int, after: int) -> None:
    """Each subtask has numbered its results for itself: one that takes over those of several must not mix them up."""
    with InProcessJob(job(before, {})) as saved:
        saved.advance(100)
        saved.savepoint(tmp_path / "sp").run().cancel()
        assert saved.results == []
    with InProcessJob(job(after, {"execution.state-recovery.path": str(tmp_path / "sp")})) as resumed:
        assert resumed.run_to_end() is JobStatus.FINISHED, resumed.failure
        assert sorted(resumed.results) == list(range(RECORDS))
