"""A session that is stopped, a JVM that dies and a cluster that ends the application under a running job: the job fails
at once and says how to go on. Without the master of its cluster it runs on."""

from __future__ import annotations

import os
import signal
import textwrap
from itertools import product
from pathlib import Path

import psutil
import pytest

from tests.spark.micro_batch.needed import needs_micro_batch
from tests.spark.programs import Program, running
from tests.spark.standalone_cluster import standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
    import json, os, sys, time
    from tidegate.common import Configuration, JobStatus, WatermarkStrategy
    from tidegate.datastream import StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource
    from pyspark.sql import SparkSession

    def report(value):
        print("REPORT " + json.dumps(value), flush=True)

    mode = sys.argv[3]
    settings = {"execution.checkpointing.interval": "100 ms", "execution.checkpointing.dir": sys.argv[1]}
    if mode == "BATCH":  # a strategy without end
        settings = {"execution.runtime-mode": mode, "restart-strategy.type": "exponential-delay"}
        settings["restart-strategy.exponential-delay.initial-backoff"] = "100 ms"
    if mode == "MICRO_BATCH":
        settings = {"execution.runtime-mode": mode, "tidegate.micro-batch.checkpoint-location": sys.argv[1]}
        settings["tidegate.micro-batch.interval"] = "100 ms"
        settings["restart-strategy.type"] = "exponential-delay"
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings)).set_parallelism(1)
    source = DataGeneratorSource(lambda i: i, records_per_second=100, count=1_000_000)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").add_sink(lambda n: None)
    client = env.execute_async()
    while client.get_job_status().result() is not JobStatus.RUNNING:
        time.sleep(0.05)
    if mode != "BATCH":
        while not client.checkpoint_history():
            time.sleep(0.05)
    else:
        tracker = SparkSession.getActiveSession().sparkContext.statusTracker()
        while not any(tracker.getStageInfo(stage).numActiveTasks for stage in tracker.getActiveStageIds()):
            time.sleep(0.05)
    time.sleep(0.5)
    report("running")
    if sys.argv[2] == "master":
        while not os.path.exists("master-is-lost"):
            time.sleep(0.05)
        before = client.checkpoint_history()[-1].checkpoint_id
        while client.checkpoint_history()[-1].checkpoint_id < before + 20:
            time.sleep(0.05)
        report(client.get_job_status().result().name)
        client.cancel().result()
        sys.exit()
    if sys.argv[2] == "stop":
        SparkSession.getActiveSession().stop()
    report(str(client.get_job_execution_result().exception(timeout=120)))
    report(client.get_job_status().result().name)
"""


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        *product(["stop", "kill"], ["STREAMING", "BATCH"]),
        pytest.param("stop", "MICRO_BATCH", marks=[needs_micro_batch, pytest.mark.soak]),
        pytest.param("kill", "MICRO_BATCH", marks=needs_micro_batch),
    ],
)
def test_a_job_without_spark_fails_at_once(tmp_path: Path, how: str, mode: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    with running(script, tmp_path, str(tmp_path / "checkpoints"), how, mode) as program:
        program.wait_for_report()
        if how == "kill":
            (jvm,) = [p for p in psutil.Process(program.process.pid).children() if "java" in p.name()]
            os.kill(jvm.pid, signal.SIGKILL)
        check_end(program, mode, tmp_path)


@pytest.mark.soak
@pytest.mark.skipif("TIDEGATE_SOAK" not in os.environ, reason="takes a cluster of Spark")
@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_a_job_whose_application_the_cluster_ends_fails_at_once(tmp_path: Path, mode: str) -> None:
    """The master takes it its executors, and the session stops by itself."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    with standalone_cluster(tmp_path) as cluster:
        arguments = str(tmp_path / "checkpoints"), "application", mode
        with running(script, tmp_path, *arguments, **cluster.program_variables()) as program:
            program.wait_for_report()
            cluster.kill_application()
            check_end(program, mode, tmp_path)


@pytest.mark.soak
@pytest.mark.skipif("TIDEGATE_SOAK" not in os.environ, reason="takes a cluster of Spark")
def test_a_job_outlives_the_master(tmp_path: Path) -> None:
    """Spark waits for the master to come back, and its executors run on."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    with standalone_cluster(tmp_path) as cluster:
        arguments = str(tmp_path / "checkpoints"), "master", "STREAMING"
        with running(script, tmp_path, *arguments, **cluster.program_variables()) as program:
            program.wait_for_report()
            cluster.kill_host("master")
            (tmp_path / "master-is-lost").touch()
            assert program.wait_for_report(2) == "RUNNING"


def check_end(program: Program, mode: str, folder: Path) -> None:
    error = program.wait_for_report(2)
    assert program.wait_for_report(3) == "FAILED"
    assert "Spark is gone" in error
    if mode == "STREAMING":
        (metadata,) = (folder / "checkpoints").rglob("_metadata")
        assert f"tidegate run -s {metadata.parent} PROGRAM" in error
    if mode == "MICRO_BATCH":
        assert "the job can go on after batch" in error
        assert f"tidegate.micro-batch.checkpoint-location = {folder / 'checkpoints'}" in error
    assert "attempt 1" not in program.output, "it was not tried again"
