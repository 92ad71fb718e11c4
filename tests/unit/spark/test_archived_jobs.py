"""A job that leaves checkpoints leaves its last view beside them; one that leaves none leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.spark.job_on_threads import start_job, until
from tests.unit.taskmanager.small_jobs import Count, environment, ticks
from tidegate.common.errors import JobCancelledError
from tidegate.datastream.connectors import CollectSink
from tidegate.web.all_jobs import AllJobs
from tidegate.web.history import History


@pytest.mark.parametrize("retention", ["RETAIN_ON_CANCELLATION", "DELETE_ON_CANCELLATION"])
def test_a_cancelled_job_is_found_by_its_checkpoint_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    directory = tmp_path / "checkpoints"
    env = environment(
        {
            "execution.checkpointing.interval": "50 ms",
            "execution.checkpointing.dir": str(directory),
            "execution.checkpointing.externalized-checkpoint-retention": retention,
            "rest.enabled": "false",
        }
    )
    ticks(env, burst=10).key_by(lambda i: i % 3).process(Count()).uid("count").sink_to(CollectSink())
    manager = start_job(env, monkeypatch)
    until(lambda: manager.client.view().checkpoints.completed, "checkpoint")
    manager.client.cancel()
    with pytest.raises(JobCancelledError):
        manager.client.get_job_execution_result().result(30)
    manager.join(10)
    found = AllJobs(History(str(directory))).summaries()
    if retention.startswith("DELETE"):
        assert found == []
        assert list(directory.iterdir()) == []
    else:
        assert [(job["job_id"], job["status"]) for job in found] == [(manager.client.view().job_id, "CANCELED")]
    assert [job["status"] for job in AllJobs(History()).summaries()] == ["CANCELED"]  # in the user's own, as ever
