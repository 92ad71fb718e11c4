"""Whose Spark a job runs on: the user's own, as it is, or one that Tidegate makes and may replace."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.programs import running
from tidegate.snapshots import list_states
from tidegate.spark.versions import has_python_data_sources

GOLDEN = Path(__file__).parents[1] / "golden" / "savepoint-v1"
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = """
    import json, os, threading, time
    from pyspark.sql import SparkSession
    from tidegate.common import JobStatus, WatermarkStrategy
    from tidegate.datastream import StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource, NumberSequenceSource

    def numbers(parallelism, count=10):
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
        return env.from_source(NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "Numbers")

    def collected(stream):
        try:
            return sorted(stream.execute_and_collect())
        except Exception as error:
            return str(error)

    def report(name, value):
        print("REPORT " + json.dumps({name: value}), flush=True)

    def die(n):
        with open(f"tries/{os.getpid()}", "w") as file:
            file.write("x")
        os._exit(1)

    def master():
        return SparkSession.getActiveSession().sparkContext.master

    os.makedirs("tries")
    theirs = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    theirs.sparkContext.setLogLevel("FATAL")
    report("their session", collected(numbers(2)))
    report("their session refuses", collected(numbers(3)))
    report("their session is alive", theirs.range(7).count())
    if hasattr(theirs, "dataSource"):  # Spark 4
        for thread in threading.enumerate():
            if thread.name == "tidegate-state-format":
                thread.join()
        report("states", theirs.read.format("tidegate-state").load(GOLDEN).count())
    started = time.time()
    report("lost worker", collected(numbers(1).map(die)))
    report("lost worker took", time.time() - started)
    report("runs of the lost worker", len(os.listdir("tries")))
    report("after the lost worker", collected(numbers(2)))
    theirs.stop()

    report("own session", collected(numbers(2)))
    first = master()
    slots = int(first[6:-1])
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    endless = DataGeneratorSource(lambda i: i, records_per_second=100)
    env.from_source(endless, WatermarkStrategy.no_watermarks(), "Endless").add_sink(lambda n: None)
    client = env.execute_async()
    while client.get_job_status().result() is not JobStatus.RUNNING:
        time.sleep(0.05)
    report("more slots while a job runs", collected(numbers(slots + 1)))
    report("status of the running job", client.get_job_status().result().name)
    client.cancel()
    client.get_job_execution_result().exception()
    report("more slots afterwards", collected(numbers(slots + 1)))
    report("grown", int(master()[6:-1]) == slots + 1)
    report("end", True)
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("sessions")
    script = folder / "program.py"
    script.write_text(f"GOLDEN = {str(GOLDEN)!r}\n" + textwrap.dedent(PROGRAM))
    own = os.path.dirname(sys.executable)
    path = os.pathsep.join(place for place in os.environ["PATH"].split(os.pathsep) if place != own)
    with running(script, folder, PATH=path) as program:  # the path's python3 is another one, as in a notebook
        program.process.wait(280)
        yield {**{n: v for report in program.reports() for n, v in report.items()}, "output": program.output}


def test_the_program_ends_well(outcome: dict[str, Any]) -> None:
    assert outcome.get("end"), outcome["output"]


def test_a_session_of_the_user_is_used_as_it_is(outcome: dict[str, Any]) -> None:
    assert outcome["their session"] == list(range(10))
    assert "needs 3 slots" in outcome["their session refuses"]
    assert "local[3]" in outcome["their session refuses"]
    assert outcome["their session is alive"] == 7


@pytest.mark.skipif(not has_python_data_sources(), reason="Spark has data sources in Python since 4.0")
def test_the_format_of_state_tables_is_known_in_a_session_of_the_user(outcome: dict[str, Any]) -> None:
    assert outcome["states"] == len(list_states(str(GOLDEN)))


def test_a_lost_worker_under_the_users_settings_is_a_failure_and_is_not_run_again(outcome: dict[str, Any]) -> None:
    """Spark would run the stage again by itself: what it starts is told to leave."""
    assert "worker" in outcome["lost worker"]
    assert outcome["lost worker took"] < 120
    assert outcome["runs of the lost worker"] == 1
    assert outcome["after the lost worker"] == list(range(10))


def test_a_session_of_ours_is_not_stopped_under_a_running_job(outcome: dict[str, Any]) -> None:
    assert outcome["own session"] == list(range(10))
    assert "slots" in outcome["more slots while a job runs"]
    assert outcome["status of the running job"] == "RUNNING"


def test_a_session_of_ours_grows_when_no_job_runs(outcome: dict[str, Any]) -> None:
    assert outcome["more slots afterwards"] == list(range(10))
    assert outcome["grown"]
