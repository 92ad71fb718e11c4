"""Several attempts of one task: neither touches what the other wrote, and only one is in the report."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.common import Configuration, WatermarkStrategy
from tidegate.common.errors import InternalError, JobExecutionError
from tidegate.common.serialization import Encoder
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, FileSink
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader
from tidegate.graph.chaining import build_job_graph
from tidegate.graph.splits import make_splits
from tidegate.protocol.messages import FailureInfo
from tidegate.spark.batch.commits import commit_all, discard_leftovers
from tidegate.spark.batch.job import BatchJob
from tidegate.spark.batch.plan import BatchPlan, plan_job
from tidegate.spark.batch.report import JobReport
from tidegate.spark.batch.task import BatchTask
from tidegate.spark.batch.worker import told
from tidegate.spark.code_bundle import CodeBundle
from tidegate.taskmanager.deployment import RuntimeSettings


class Pages(Source[Any]):
    """Two splits; every second poll comes back empty, so that reading them in turn would mix them."""

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        return [SourceSplit("a"), SourceSplit("b")]

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[Any]:
        return PagesReader(split.split_id)


class PagesReader(SplitReader[Any]):
    def __init__(self, name: str) -> None:
        self.name, self.polls = name, 0

    def poll(self, max_records: int) -> list[str] | None:
        self.polls += 1
        if self.polls > 6:
            return None
        return [f"{self.name}{self.polls}"] if self.polls % 2 else []

    def offset(self) -> int:
        return self.polls

    def wake_at_ms(self) -> float:
        return 0.0


def written_by(folder: Path) -> BatchPlan:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    sink = FileSink.for_row_format(str(folder), Encoder.simple_string_encoder())
    pages = env.from_source(Pages(), WatermarkStrategy.no_watermarks(), "Pages")
    pages.sink_to(sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    graph = make_splits(build_job_graph(env._operators, env._graph_settings()).job_graph)
    return plan_job(graph, RuntimeSettings(), 1 << 20, None)


def run(plan: BatchPlan, attempt_id: str) -> list[bytes]:
    return list(BatchTask(plan.vertices[0], 0, 0, attempt_id).run(iter(())))[1::2]


def test_the_attempt_that_counts_is_committed_whatever_others_did_meanwhile(tmp_path: Path) -> None:
    plan = written_by(tmp_path)
    counts = run(plan, "1")
    half_done = BatchTask(plan.vertices[0], 0, 1, "2")
    half_done._chain.open()  # of an attempt that is killed before it can close anything
    half_done._chain.source.poll(10, 0.0)  # type: ignore[union-attr]
    run(plan, "3")  # finished too, but nobody used its output
    assert [f for f in tmp_path.iterdir() if not f.name.startswith(".")] == []
    report = JobReport.read(counts, {(0, 0)})
    assert list(commit_all(plan.graph, report.committables(), 0, 0.0).values()) == [1]
    discard_leftovers(plan.graph, plan.graph.job_id)
    (only,) = tmp_path.iterdir()
    assert only.read_text().split() == ["a1", "a3", "a5", "b1", "b3", "b5"]  # one split after the other


def test_two_attempts_or_none_in_the_report_are_a_bug(tmp_path: Path) -> None:
    plan = written_by(tmp_path)
    blocks = run(plan, "1")
    with pytest.raises(InternalError, match="two attempts"):
        JobReport.read(blocks * 2, {(0, 0)})
    with pytest.raises(InternalError, match="differ"):
        JobReport.read(blocks, {(0, 0), (0, 1)})


class _DeadContext:
    """Spark's JVM is gone: whatever one asks, the connection is refused."""

    def __getattr__(self, name: str) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_job_whose_spark_has_died_fails_and_does_not_hang(tmp_path: Path) -> None:
    plan = written_by(tmp_path)
    session: Any = SimpleNamespace(sparkContext=_DeadContext())
    job = BatchJob(session, plan, CodeBundle.collect([]), Configuration(), None)
    job.start()
    with pytest.raises(JobExecutionError, match="Connection refused"):
        job.client.get_job_execution_result().result(20)


def test_each_cause_of_a_retry_is_told_in_full_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also that the next run fails in the same way again, without its traceback."""

    def fail() -> list[bytes]:
        causes = ["first", "first", "second", "first"]
        if caused == len(causes):
            return [b"done"]
        cause = causes[caused]
        raise told(FailureInfo(summary=f"it is wrong ({cause})", traceback=f"Traceback of the {cause}", cause=cause))

    caused = -1

    def collect() -> list[bytes]:
        nonlocal caused
        caused += 1
        return fail()

    alive = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *args: None, _jsc=alive))
    monkeypatch.setattr("tidegate.spark.batch.job.StageWatch", lambda *args: contextlib.nullcontext())
    settings = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 ms"}
    settings["restart-strategy.fixed-delay.attempts"] = "10"
    job = BatchJob(session, written_by(tmp_path), CodeBundle(), Configuration.from_dict(settings), None)
    compiled: Any = SimpleNamespace(report=SimpleNamespace(collect=collect))
    assert job._until_done(compiled) == ([b"done"], "")
    failed = [r.getMessage().partition(" failed: ")[2] for r in caplog.records if " failed: " in r.getMessage()]
    assert failed == [
        "it is wrong (first)\nTraceback of the first",
        "it is wrong (first) (the same failure for the 2nd time)",
        "it is wrong (second)\nTraceback of the second",
        "it is wrong (first) (the same failure for the 3rd time)",
    ]
