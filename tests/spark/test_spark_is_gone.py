"""A session that is stopped and a JVM that dies under a running job: the job fails at once and says how to go on."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.spark.programs import running

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
    import json, sys, time
    from tidegate.common import Configuration, JobStatus, WatermarkStrategy
    from tidegate.datastream import StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource
    from pyspark.sql import SparkSession

    def report(value):
        print("REPORT " + json.dumps(value), flush=True)

    settings = {"execution.checkpointing.interval": "100 ms", "execution.checkpointing.dir": sys.argv[1]}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings)).set_parallelism(1)
    source = DataGeneratorSource(lambda i: i, records_per_second=100)
    env.from_source(source, WatermarkStrategy.no_watermarks(), "Endless").add_sink(lambda n: None)
    client = env.execute_async()
    while client.get_job_status().result() is not JobStatus.RUNNING or not client.checkpoint_history():
        time.sleep(0.05)
    time.sleep(0.5)
    report("running")
    if sys.argv[2] == "stop":
        SparkSession.getActiveSession().stop()
    report(str(client.get_job_execution_result().exception(timeout=60)))
    report(client.get_job_status().result().name)
"""


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_job_without_spark_fails_at_once(tmp_path: Path, how: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    with running(script, tmp_path, str(tmp_path / "checkpoints"), how) as program:
        program.wait_for_report()
        started = time.monotonic()
        if how == "kill":
            (jvm,) = [p for p in psutil.Process(program.process.pid).children() if "java" in p.name()]
            os.kill(jvm.pid, signal.SIGKILL)
        error = program.wait_for_report(2)
        took = time.monotonic() - started
        assert program.wait_for_report(3) == "FAILED"
    assert "Spark is gone" in error
    assert took < 20
    (metadata,) = (tmp_path / "checkpoints").rglob("_metadata")
    assert f"tidegate run -s {metadata.parent} PROGRAM" in error
