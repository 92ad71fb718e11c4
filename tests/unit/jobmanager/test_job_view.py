"""The published view of a job: what it holds, when it is replaced, and that it is JSON."""

from __future__ import annotations

from typing import Any

import pytest
from jobmanager_kit import Driver

from tests.unit.taskmanager.small_jobs import environment, ticks
from tidegate.common.ids import AttemptNumber, SlotIndex
from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import (
    NUM_RECORDS_IN,
    NUM_RECORDS_OUT,
    CounterValue,
    GaugeValue,
    HistogramValue,
    MeterValue,
    MetricReport,
    numbers_of,
)
from tidegate.datastream import MapFunction, RuntimeContext
from tidegate.datastream.connectors import CollectSink
from tidegate.jobmanager.job_publisher import JobPublisher, MasterPublisher
from tidegate.jobmanager.job_view import JobView
from tidegate.jobmanager.recent_warnings import RecentWarnings
from tidegate.jobmanager.restart_strategies import FixedDelay
from tidegate.protocol.instructions import Instruction
from tidegate.protocol.messages import FailureInfo, SlotHeartbeat, SlotWarning, TaskFailed
from tidegate.testing.in_process_job import InProcessJob


class Watched:
    """A JobMaster whose steps are published."""

    def __init__(self) -> None:
        self.driver = Driver(restart=FixedDelay(1, 0.0))
        self.publisher = JobPublisher(self.driver.graph, "STREAMING", self.driver.graph.num_slots, self.driver.now)
        self.published = MasterPublisher(self.publisher, self.driver.graph, self.driver.master)

    @property
    def view(self) -> JobView:
        return self.publisher.view

    def step(self, instructions: list[Instruction]) -> None:
        self.published.after_step(instructions, self.driver.now)


def running() -> Watched:
    job = Watched()
    job.step(job.driver.start())
    job.step(job.driver.run())
    return job


def heartbeat(job: Watched, slot: int, *metrics: MetricReport) -> None:
    job.step(job.driver.tell(SlotHeartbeat(attempt=job.driver.attempt, slot=SlotIndex(slot), metrics=metrics)))


def test_a_new_status_is_published_at_once_with_the_places_of_all_subtasks() -> None:
    job = Watched()
    assert (job.view.status, job.view.workers) == (JobStatus.CREATED, ())
    assert {s.pid for s in job.view.subtasks} == {0}
    job = running()
    assert job.view.status is JobStatus.RUNNING
    assert [w.slot for w in job.view.workers] == list(range(job.driver.graph.num_slots))
    pids = {w.slot: w.pid for w in job.view.workers}
    assert [(s.vertex, s.subtask) for s in job.view.subtasks] == list(job.driver.graph.all_tasks())
    assert all(s.slot is not None and s.pid == pids[s.slot] for s in job.view.subtasks)


def test_other_steps_wait_for_their_turn() -> None:
    job = running()
    before = job.view
    heartbeat(job, 0, MetricReport(0, 0, NUM_RECORDS_IN, CounterValue(7)))
    heartbeat(job, 1, MetricReport(0, 1, NUM_RECORDS_IN, CounterValue(8)))
    assert job.view is before
    due = job.published.next_deadline()
    assert due is not None
    job.published.publish_if_due(due - 1)
    assert job.view is before
    job.published.publish_if_due(due)
    assert job.view.total(NUM_RECORDS_IN, 0) == 15
    assert [w.records_in for w in job.view.workers[:2]] == [7, 8]
    assert job.published.next_deadline() is None
    assert before.total(NUM_RECORDS_IN, 0) == 0  # a view never changes


def test_a_failure_is_in_the_view_before_anybody_can_act_on_it() -> None:
    job = running()
    failed = TaskFailed(attempt=job.driver.attempt, slot=SlotIndex(0), failure=FailureInfo(summary="boom"))
    job.step(job.driver.tell(failed))
    assert job.view.status is JobStatus.FAILING
    assert [f.failure.summary for f in job.view.failures] == ["boom"]
    job.step(job.driver.exit())
    assert job.view.attempt == 1
    assert [c.status for c in job.view.status_history][-2:] == [JobStatus.FAILING, JobStatus.RESTARTING]
    assert job.view.status_history[-1].attempt == AttemptNumber(0)
    assert job.view.workers == ()


def test_warnings_are_in_the_view_bounded_and_counted_by_kind() -> None:
    job = running()

    def warn(text: str) -> None:
        job.step(job.driver.tell(SlotWarning(attempt=job.driver.attempt, slot=SlotIndex(0), text=text)))

    for number in range(3):
        warn(f"commit {number} failed\nand a traceback")
    warn("the disk is nearly full")
    failed = TaskFailed(attempt=job.driver.attempt, slot=SlotIndex(0), failure=FailureInfo(summary="boom"))
    job.step(job.driver.tell(failed))
    assert [(w.text, w.times) for w in job.view.warnings] == [("commit 2 failed", 3), ("the disk is nearly full", 1)]
    job.step(job.driver.exit())
    assert not any("boom" in w.text for w in job.view.warnings)
    kept = RecentWarnings()
    for number in range(1_000):
        kept.add("x" * number, float(number))
    assert (len(kept.latest), max(len(w.text) for w in kept.latest)) == (30, 500)


class Counting(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group()
        self.seen = group.counter("seen")
        group.add_group("parser").gauge("nan", lambda: float("nan"))

    def map(self, value: int) -> int:
        self.seen.inc()
        return value


def view_of(job: InProcessJob) -> JobView:
    publisher = JobPublisher(job.graph, "STREAMING", job.graph.num_slots, 1.0)
    MasterPublisher(publisher, job.graph, job.master).publish(job.clock.now)
    return publisher.view


def test_a_view_of_a_job_with_checkpoints_comes_back_from_json(tmp_path: Any) -> None:
    env = environment(parallelism=2)
    env.enable_checkpointing(100)
    ticks(env, count=None, burst=10).rebalance().map(Counting()).name("count").uid("c").sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.advance(3000)
        view = view_of(job)
    assert [o.uid for v in view.vertices for o in v.operators if o.name == "count"] == ["c"]
    assert [e.partitioning for e in view.edges] == ["rebalance"]
    assert view.checkpoints.completed >= 5
    done = [c for c in view.checkpoints.history if c.ended_ms is not None]
    assert all(len(c.acknowledged) == c.tasks and c.reason is None for c in done)
    assert set(done[0].subtasks) == set(job.graph.all_tasks())
    assert view.checkpoints.summary["duration_ms"].maximum >= 0
    counts = [m for m in view.metrics if m.name == "seen"]
    assert [(m.subtask, m.scope, type(m.value)) for m in counts] == [
        (0, ("count", "0"), CounterValue),
        (1, ("count", "1"), CounterValue),
    ]
    counted = next(v.vertex for v in view.vertices if any(o.name == "count" for o in v.operators))
    assert {m.vertex for m in counts} == {counted}
    assert view.total(NUM_RECORDS_IN, counted) >= sum(
        m.value.count for m in counts if isinstance(m.value, CounterValue)
    )
    sent = {v.vertex: view.total(NUM_RECORDS_OUT, v.vertex) for v in view.vertices}
    assert sent[0] >= view.total(NUM_RECORDS_IN, counted) > 0
    assert sent[counted] == 0  # its records end in the sink of its own chain
    read = JobView.from_json(view.to_json())
    assert read.checkpoints == view.checkpoints
    assert (read.status, read.vertices, read.failures) == (view.status, view.vertices, view.failures)
    assert [m.value for m in read.metrics if m.name == "nan"] == [GaugeValue(None)] * 2  # JSON has no NaN
    assert b'"status":"RUNNING"' in view.to_json()


def test_checkpoints_that_have_ended_are_made_into_views_once() -> None:
    env = environment(parallelism=1)
    env.enable_checkpointing(100)
    ticks(env, count=None, burst=10).sink_to(CollectSink())
    with InProcessJob(env) as job:
        publisher = JobPublisher(job.graph, "STREAMING", 1, 1.0)
        published = MasterPublisher(publisher, job.graph, job.master)
        job.advance(1000)
        published.publish(job.clock.now)
        before = {c.checkpoint_id: c for c in publisher.view.checkpoints.history if c.ended_ms is not None}
        job.advance(1000)
        published.publish(job.clock.now)
        after = {c.checkpoint_id: c for c in publisher.view.checkpoints.history}
    assert len(after) > len(before) >= 3
    assert all(after[n] is c for n, c in before.items())


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        (CounterValue(3), {"m": 3.0}),
        (GaugeValue(0.5), {"m": 0.5}),
        (GaugeValue(None), {}),
        (MeterValue(4, 2.0), {"m": 4.0, "m.rate": 2.0}),
        (HistogramValue(0), {"m.count": 0.0}),
        (HistogramValue(2, 6.0, 1.0, 5.0), {"m.count": 2, "m.sum": 6, "m.min": 1, "m.max": 5, "m.mean": 3}),
    ],
)
def test_every_kind_of_metric_as_numbers(value: Any, numbers: dict[str, float]) -> None:
    assert dict(numbers_of("m", value)) == numbers
