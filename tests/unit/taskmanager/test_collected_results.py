"""Results of `execute_and_collect` that wait for their checkpoint: they count as no state, and they ask for it."""

from __future__ import annotations

from typing import Any

from small_jobs import Ticks, environment, ticks

from tidegate.common import WatermarkStrategy
from tidegate.common.job_status import JobStatus
from tidegate.datastream.connectors.base import SourceContext, SourceSplit, SplitReader
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


readers = 0


class SlowAtFirst(Ticks):
    """One record at a time before a restart, many afterwards: chunks of the same number are not the same chunks."""

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[int]:
        global readers
        readers += 1
        self.burst = 1 if readers == 1 else 20
        return super().create_reader(split, offset, context)


def test_without_checkpoints_a_restart_delivers_results_again_rather_than_too_few() -> None:
    env = environment({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 s"})
    ticks = env.from_source(SlowAtFirst(count=50), WatermarkStrategy.no_watermarks(), "ticks")
    with InProcessJob.collecting(ticks.map(lambda n: n).name("same"), [FailAt("same", 30)]) as job:
        assert job.run_to_end() is JobStatus.FINISHED, job.failure
        assert job.restarts == 1
        assert set(job.results) == set(range(50))


def test_waiting_results_survive_a_failure_once() -> None:
    env = environment({"execution.checkpointing.interval": "1 h"}, 1)
    stream = ticks(env, count=COUNT, burst=COUNT).map(lambda n: f"{n:01024}").name("widen")
    with InProcessJob.collecting(stream, [FailAt("widen", 20_000)]) as job:
        assert job.run_to_end() is JobStatus.FINISHED, job.failure
        assert job.restarts == 1
        assert [int(text) for text in job.results] == list(range(COUNT))
