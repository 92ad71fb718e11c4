"""Results of `execute_and_collect` that wait for their checkpoint: they count as no state, and they ask for it."""

from __future__ import annotations

from small_jobs import environment, ticks

from tidegate.common.job_status import JobStatus
from tidegate.testing import FailAt, InProcessJob

COUNT = 30_000  # of a kilobyte each: many times what the JobManager's memory takes as the state of a task


def test_results_are_no_state_for_the_limit_of_the_memory_storage() -> None:
    """All wait for the same checkpoint, the last one, as the interval is longer than the job."""
    env = environment({"execution.checkpointing.interval": "1 h"}, 1)
    stream = ticks(env, count=7_000, burst=7_000).map(lambda n: f"{n:01024}")
    with InProcessJob.collecting(stream) as job:
        assert job.run_to_end() is JobStatus.FINISHED, job.failure
        assert job.restarts == 0
        assert [int(text) for text in job.results] == list(range(7_000))


def test_many_waiting_results_do_not_wait_for_the_interval() -> None:
    """Also when the sink is a task of its own, with records in its channels before the barrier."""
    env = environment({"execution.checkpointing.interval": "1 h"}, 1)
    stream = ticks(env, count=COUNT, burst=COUNT).map(lambda n: f"{n:01024}").rebalance().map(lambda text: text)
    with InProcessJob.collecting(stream) as job:
        job.run()
        assert len(job.results) > COUNT // 2, "what waits is bounded"
        assert job.run_to_end() is JobStatus.FINISHED, job.failure
        assert [int(text) for text in job.results] == list(range(COUNT))


def test_waiting_results_survive_a_failure_once() -> None:
    env = environment({"execution.checkpointing.interval": "1 h"}, 1)
    stream = ticks(env, count=COUNT, burst=COUNT).map(lambda n: f"{n:01024}").name("widen")
    with InProcessJob.collecting(stream, [FailAt("widen", 20_000)]) as job:
        assert job.run_to_end() is JobStatus.FINISHED, job.failure
        assert job.restarts == 1
        assert [int(text) for text in job.results] == list(range(COUNT))
