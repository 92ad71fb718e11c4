"""Micro-batches on Spark, at length: anything is killed at any time, and savepoints move over all pairs of modes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.micro_batch.kills import a_batch_more, kill
from tests.spark.micro_batch.needed import needs_micro_batch
from tests.spark.micro_batch.program import KEYS, CountPerKey, build, expected, output, settings
from tests.spark.programs import spark_installation
from tests.unit.micro_batch import test_savepoints as savepoints
from tidegate.common import Encoder, JobStatus, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, FileSink
from tidegate.jobmanager.running_jobs import running_jobs
from tidegate.spark.micro_batch.task_state import load_bucket, load_own
from tidegate.state.heap.backend import HeapKeyedStateBackend
from tidegate.storage.reader import InlineStateSource

pytestmark = [needs_micro_batch, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

MakeEnv = Callable[..., StreamExecutionEnvironment]
RECORDS = 20_000


# ---------------------------------------------------------------- kills


@pytest.mark.parametrize(
    ("master", "victims"),
    [
        ("local[2]", ("worker", "worker", "driver", "jvm")),
        ("local-cluster[2,2,1024]", ("executor", "worker", "executor", "driver")),
    ],
)
def test_whoever_is_killed_the_output_is_exact(tmp_path: Path, master: str, victims: tuple[str, ...]) -> None:
    draw = random.Random(len(master))
    command = [sys.executable, "-m", "tests.spark.micro_batch.program", str(tmp_path), str(RECORDS), "2000", master]
    left, killed = list(victims), 0
    with open(tmp_path / "log", "wb") as log:
        for _ in range(2 + len(victims)):
            driver = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | spark_installation())
            while left and a_batch_more(tmp_path, driver):
                time.sleep(draw.random())
                killed += kill(driver.pid, left.pop(0))
            if driver.wait(240) == 0:
                break
    assert driver.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    assert killed >= len(victims) - 1
    assert output(tmp_path) == expected(RECORDS)


# ---------------------------------------------------------------- savepoints

MODES = ("STREAMING", "MICRO_BATCH", "BATCH")
PAIRS = [(before, after) for before in MODES for after in MODES]


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_a_savepoint_moves(make_env: MakeEnv, tmp_path: Path, before: str, after: str) -> None:
    """With windows, timers, every kind of keyed state, time to live and operator state, at another parallelism. What
    both jobs have written is together exact."""
    savepoint = _first_part(make_env, tmp_path, before)
    written = len(_lines(tmp_path))
    assert written < len(savepoints.expected())
    client = _start(make_env, tmp_path, after, 3, {"execution.state-recovery.path": savepoint})
    client.get_job_execution_result().result(240)
    found = _lines(tmp_path)
    assert len(found) > written
    assert found == sorted(map(repr, savepoints.expected()))


def _start(make_env: MakeEnv, folder: Path, mode: str, parallelism: int, more: dict[str, str], rate: float = 0) -> Any:
    config = settings(folder, 1000, f"location-{mode}-{parallelism}") | {"execution.runtime-mode": mode} | more
    env = make_env(parallelism, config)
    source = DataGeneratorSource(_event, count=len(savepoints.EVENTS), records_per_second=rate or None)
    events = env.from_source(source, WatermarkStrategy.no_watermarks(), "Events").uid("events").set_parallelism(1)
    sink = FileSink.for_row_format(str(folder / "out"), Encoder.simple_string_encoder()).build()
    savepoints.every_kind(events).map(repr).uid("text").sink_to(sink).uid("files")
    return env.execute_async("every kind of state")


def _event(i: int) -> tuple[str, int]:
    return savepoints.EVENTS[i]


def _first_part(make_env: MakeEnv, folder: Path, mode: str) -> str:
    if mode == "BATCH":  # all is read; what is not due yet is left
        path = str(folder / "savepoint")
        client = _start(make_env, folder, mode, 2, {"execution.batch.savepoint-path": path})
        client.get_job_execution_result().result(300)
        return path
    client = _start(make_env, folder, mode, 2, {}, rate=3)
    deadline = time.monotonic() + 60
    while client.view().total("numRecordsIn", 0) < 20 and time.monotonic() < deadline:
        time.sleep(0.1)
    path = client.stop_with_savepoint(False, str(folder / "savepoints")).result(300)
    client.get_job_execution_result().result(60)
    assert client.view().status is JobStatus.FINISHED
    return str(path)


def _lines(folder: Path) -> list[str]:
    files = [path for path in (folder / "out").rglob("part-*") if not path.name.startswith(".")]
    return sorted(line for path in files for line in path.read_text().splitlines())


# ---------------------------------------------------------------- Spark beside it


def test_a_streaming_dataframe_comes_in_exactly_once(make_env: MakeEnv, spark: Any, tmp_path: Path) -> None:
    """Through a staging folder, over a stop with a savepoint in between."""
    spark.range(500).repartition(5).write.parquet(str(tmp_path / "in"))
    found: list[str] = []
    more: dict[str, str] = {}
    for run, upto in enumerate((500, 900)):
        if run:
            spark.range(500, 900).repartition(3).write.mode("append").parquet(str(tmp_path / "in"))
        env = make_env(2, settings(tmp_path, 100, f"location-{run}") | more)
        files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
        rows = env.from_spark_stream(files, staging=str(tmp_path / "staging")).uid("rows")
        sink = FileSink.for_row_format(str(tmp_path / "out"), Encoder.simple_string_encoder()).build()
        rows.map(lambda row: str(row[0])).uid("text").sink_to(sink).uid("files")
        client: Any = env.execute_async("rows")
        deadline = time.monotonic() + 300
        while len(found) < upto and time.monotonic() < deadline:
            time.sleep(0.2)
            found = _lines(tmp_path) if (tmp_path / "out").exists() else []
        more = {
            "execution.state-recovery.path": client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(300)
        }
        client.get_job_execution_result().result(60)
    assert sorted(map(int, _lines(tmp_path))) == list(range(900))


def test_sparks_own_reader_reads_the_state(make_env: MakeEnv, spark: Any, tmp_path: Path) -> None:
    env = make_env(2, settings(tmp_path, 1000))
    build(env, tmp_path, 3000, CountPerKey())
    env.execute("counting")
    reader = spark.newSession()
    reader.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")  # it looks for format 1 otherwise

    def read(variable: str) -> Any:
        options = {"operatorId": "0", "stateVarName": variable}  # Spark counts from the end of the query
        return reader.read.format("statestore").options(**options).load(str(tmp_path / "location"))

    tasks, buckets = read("task"), read("buckets").collect()
    assert tasks.count() == 2  # a blob of each subtask of the second vertex
    assert all(load_own(bytes(row.value.blob)).ended for row in tasks.collect())
    counts: dict[Any, int] = {}
    for row in buckets:
        (snapshot,) = load_bucket(bytes(row.user_map_value.blob)).values()
        backend = HeapKeyedStateBackend("count", (0, 128), 128)
        backend.restore([snapshot], InlineStateSource())
        (table,) = [table for table in backend.tables() if table.info.name == "count"]
        assert not counts.keys() & table.base.keys()
        counts |= table.base
    assert counts == dict.fromkeys(range(KEYS), 3000 // KEYS)


def test_a_batch_of_many_large_rows_reaches_its_subtasks_whole(make_env: MakeEnv) -> None:
    """More rows for one subtask than Spark hands to Python at once."""
    env = make_env(1, {"execution.runtime-mode": "MICRO_BATCH"})
    source = DataGeneratorSource(lambda i: (i, b"x" * 300_000), count=800)
    large = env.from_source(source, WatermarkStrategy.no_watermarks(), "Large").rebalance()
    with large.map(lambda record: (record[0], len(record[1]))).execute_and_collect("large") as results:
        assert sorted(results) == [(i, 300_000) for i in range(800)]


def test_what_spark_has_run_for_a_batch_is_known_by_its_group(make_env: MakeEnv, spark: Any, tmp_path: Path) -> None:
    """That is where it is looked whether a stage was run twice."""
    env = make_env(1, settings(tmp_path, 10))
    build(env, tmp_path, None, CountPerKey())
    client: Any = env.execute_async("counting")
    deadline = time.monotonic() + 300
    while client.view().checkpoints.completed < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    (group,) = [group for job in running_jobs() for group in job.spark_groups]
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    client.cancel().result(60)
    assert len([job for job in jobs if job.status == "SUCCEEDED"]) >= 3
