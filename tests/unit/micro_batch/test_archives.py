"""Archives of a job in a worker of Spark that runs micro-batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark
import pytest

from tidegate.common import WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, DiscardingSink
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.micro_batch import task as task_module
from tidegate.spark.micro_batch.exchange import TICK
from tidegate.spark.micro_batch.plan import Limits, plan_job
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.testing.in_process_job import graph_of

stage = pytest.importorskip("tidegate.spark.micro_batch.stage", reason="Spark 4.1 has it")


def test_a_subtask_reads_archives_from_its_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the process is where it was before when the subtask is done, or has failed."""
    found: list[tuple[str, Any]] = []

    class Subtask:
        def __init__(self, plan: Any, *rest: Any) -> None:
            self._files = plan.settings.cached_files

        def run(self, payloads: list[bytes]) -> Iterator[tuple[int, bytes]]:
            yield 0, b"row"
            found.append((os.getcwd(), self._files))
            raise RuntimeError("of the subtask")

    class Context:
        attemptNumber = taskAttemptId = staticmethod(lambda: 1)

    monkeypatch.setattr(task_module, "MicroBatchTask", Subtask)
    monkeypatch.setattr("tidegate.spark.micro_batch.ticks.read_tick", lambda payload: None)
    monkeypatch.setattr(pyspark.TaskContext, "get", staticmethod(Context))
    monkeypatch.setattr(pyspark.SparkFiles, "getRootDirectory", classmethod(lambda cls: str(tmp_path)))
    env = StreamExecutionEnvironment.get_execution_environment()
    source = DataGeneratorSource(lambda i: i, count=1)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").sink_to(DiscardingSink())
    plan = plan_job(graph_of(env), RuntimeSettings(cached_files={"words": "words"}), Limits(10, 1))
    processor = stage.StageProcessor(CodeBundle(), cloudpickle.dumps(plan), 0, {3: 0}, None, 0)
    monkeypatch.setattr(stage, "worker_logging", lambda *args: contextlib.nullcontext())
    processor._own = processor._buckets = None
    before = os.getcwd()
    rows = processor.handleInputRows((3,), iter([pyspark.sql.Row(place=3, payload=bytearray(TICK))]), None)
    with pytest.raises(Exception, match="of the subtask"):
        list(rows)
    assert found == [(str(tmp_path), {"words": str(tmp_path / "words")})]
    assert os.getcwd() == before
