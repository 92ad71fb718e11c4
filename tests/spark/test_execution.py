"""Running jobs: execute, execute_async and the JobClient, execute_and_collect, sinks, plans, sessions."""

from __future__ import annotations

import glob
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.cases.single import numbers
from tests.spark.programs import wait_until
from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.common.errors import JobCancelledError, JobExecutionError
from tidegate.datastream import (
    DataStream,
    MapFunction,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.connectors.base import Committer, Sink, SinkContext, SinkWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]


def endless(env: StreamExecutionEnvironment, rate: float | None = 2000) -> DataStream:
    source = DataGeneratorSource(lambda i: i, records_per_second=rate)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "Endless")


def lines_under(folder: Any) -> list[str]:
    found: list[str] = []
    for path in glob.glob(os.path.join(folder, "*")):
        with open(path, encoding="utf-8") as file:
            found += file.read().split()
    return sorted(found)


# ---------------------------------------------------------------- sinks


class FileSinkFunction(SinkFunction):
    """A file per subtask; says in another that it was closed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self.path = f"{self.folder}/{runtime_context.get_index_of_this_subtask()}"
        self.file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115

    def invoke(self, value: Any, context: SinkFunction.Context) -> None:
        assert context.timestamp() is None
        self.file.write(f"{value}\n")

    def close(self) -> None:
        self.file.write("closed\n")
        self.file.close()


class CommittingSink(Sink[Any, Any]):
    """Writes to a part file; the commit renames it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def create_writer(self, context: SinkContext) -> PartWriter:
        return PartWriter(f"{self.folder}/part-{context.subtask}-of-{context.parallelism}")

    def create_committer(self) -> Renamer:
        return Renamer()


class PartWriter(SinkWriter[Any, Any]):
    def __init__(self, path: str) -> None:
        self.path = path
        self.file = open(f"{path}.pending", "w", encoding="utf-8")  # noqa: SIM115

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self.file.writelines(f"{value}\n" for value in values)

    def flush(self, end_of_input: bool) -> None:
        self.file.flush()

    def prepare_commit(self) -> list[Any]:
        return [self.path]

    def close(self) -> None:
        self.file.close()


class Renamer(Committer[Any]):
    def commit(self, committables: list[Any]) -> list[Any]:
        for path in committables:
            os.replace(f"{path}.pending", path)
        return []


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_add_sink_gets_every_record_and_is_closed(make_env: MakeEnv, tmp_path: Any, parallelism: int) -> None:
    env = make_env(parallelism)
    numbers(env, 12).add_sink(FileSinkFunction(str(tmp_path))).name("Files").uid("files")
    result = env.execute("files")
    assert lines_under(tmp_path) == sorted([str(n) for n in range(12)] + ["closed"] * parallelism)
    assert result.get_net_runtime() > 0
    assert result.get_job_id() is not None


def test_add_sink_takes_a_plain_function(make_env: MakeEnv, tmp_path: Any) -> None:
    env = make_env(2)
    folder = str(tmp_path)

    def append(value: int) -> None:
        with open(f"{folder}/{value}", "w", encoding="utf-8") as file:
            file.write(str(value))

    numbers(env, 6).add_sink(append)
    env.execute()
    assert lines_under(tmp_path) == [str(n) for n in range(6)]


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_sink_to_writes_and_commits_at_the_end(make_env: MakeEnv, tmp_path: Any, parallelism: int) -> None:
    env = make_env(parallelism)
    numbers(env, 20).sink_to(CommittingSink(str(tmp_path)))
    env.execute()
    assert sorted(os.listdir(tmp_path)) == [f"part-{i}-of-{parallelism}" for i in range(parallelism)]
    assert lines_under(tmp_path) == sorted(str(n) for n in range(20))


def test_a_sink_with_its_own_parallelism_gets_all(make_env: MakeEnv, tmp_path: Any) -> None:
    env = make_env(4)
    numbers(env, 20).sink_to(CommittingSink(str(tmp_path))).set_parallelism(1)
    env.execute()
    assert os.listdir(tmp_path) == ["part-0-of-1"]
    assert len(lines_under(tmp_path)) == 20


def test_several_sinks_of_one_job(make_env: MakeEnv, tmp_path: Any) -> None:
    env = make_env(2)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    stream = numbers(env, 10)
    stream.filter(lambda n: n < 3).sink_to(CommittingSink(str(tmp_path / "a")))
    stream.sink_to(CommittingSink(str(tmp_path / "b")))
    env.execute()
    assert lines_under(tmp_path / "a") == ["0", "1", "2"]
    assert len(lines_under(tmp_path / "b")) == 10


# ---------------------------------------------------------------- open and close


class Lifecycle(MapFunction):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self.path = f"{self.folder}/{runtime_context.get_index_of_this_subtask()}"
        self._note("open")

    def map(self, value: Any) -> Any:
        self._note("record")
        return value

    def close(self) -> None:
        self._note("close")

    def _note(self, what: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_open_and_close_are_called_once_per_subtask(make_env: MakeEnv, tmp_path: Any, parallelism: int) -> None:
    assert len(list(numbers(make_env(parallelism), 4).map(Lifecycle(str(tmp_path))).execute_and_collect())) == 4
    for subtask in range(parallelism):
        calls = (tmp_path / str(subtask)).read_text().split()
        assert calls == ["open", *["record"] * (4 // parallelism), "close"]


def test_close_is_called_when_the_job_is_cancelled_and_when_it_fails(make_env: MakeEnv, tmp_path: Any) -> None:
    def fail_at_5(n: int) -> int:
        if n == 5:
            raise ValueError("five")
        return n

    with pytest.raises(JobExecutionError):
        list(endless(make_env(1)).map(Lifecycle(str(tmp_path))).map(fail_at_5).execute_and_collect())
    assert (tmp_path / "0").read_text().split()[-1] == "close"
    (tmp_path / "0").unlink()
    assert len(endless(make_env(1)).map(Lifecycle(str(tmp_path))).execute_and_collect(limit=3)) == 3
    assert (tmp_path / "0").read_text().split()[-1] == "close"


# ---------------------------------------------------------------- execute_async, JobClient


def test_execute_async_runs_beside_the_program(make_env: MakeEnv, tmp_path: Any) -> None:
    env = make_env(2)
    numbers(env, 5).sink_to(CommittingSink(str(tmp_path)))
    client = env.execute_async("beside")
    result = client.get_job_execution_result().result(timeout=120)
    assert client.get_job_status().result() is JobStatus.FINISHED
    assert result.get_job_id() == client.get_job_id()
    assert len(lines_under(tmp_path)) == 5


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_cancel(make_env: MakeEnv, parallelism: int) -> None:
    env = make_env(parallelism)
    endless(env).key_by(lambda n: n % 3).reduce(max).add_sink(lambda n: None)
    client = env.execute_async()
    wait_until(lambda: client.get_job_status().result() is JobStatus.RUNNING)
    started = time.monotonic()
    client.cancel().result(timeout=120)
    with pytest.raises(JobCancelledError, match="cancelled"):
        client.get_job_execution_result().result(timeout=120)
    assert time.monotonic() - started < 120
    assert client.get_job_status().result() is JobStatus.CANCELED
    client.cancel().result(timeout=1)  # again: nothing happens
    assert client.get_job_status().result() is JobStatus.CANCELED


def test_cancel_before_the_workers_are_there(make_env: MakeEnv) -> None:
    env = make_env(4)
    endless(env).add_sink(lambda n: None)
    client = env.execute_async()
    client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result(timeout=120)
    assert sorted(numbers(make_env(4), 5).execute_and_collect()) == [0, 1, 2, 3, 4]  # the slots are free again


def test_a_function_that_sleeps_is_cancelled_within_seconds(make_env: MakeEnv) -> None:
    def stuck(n: int) -> int:
        time.sleep(1000)
        return n

    env = make_env(2)
    endless(env).map(stuck).add_sink(lambda n: None)
    client = env.execute_async()
    wait_until(lambda: client.get_job_status().result() is JobStatus.RUNNING)
    time.sleep(0.5)
    started = time.monotonic()
    client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result(timeout=120)
    assert time.monotonic() - started < 120
    assert sorted(numbers(make_env(4), 5).execute_and_collect()) == [0, 1, 2, 3, 4]


def test_the_result_of_a_failed_job_raises(make_env: MakeEnv) -> None:
    env = make_env(1)
    numbers(env, 5).map(lambda n: n // 0).name("Divide").add_sink(lambda n: None)
    client = env.execute_async()
    with pytest.raises(JobExecutionError, match="Divide"):
        client.get_job_execution_result().result(timeout=120)
    assert client.get_job_status().result() is JobStatus.FAILED


def test_two_jobs_at_once_on_one_session(make_env: MakeEnv) -> None:
    env, other = make_env(2), make_env(2)
    endless(env).add_sink(lambda n: None)
    client = env.execute_async()
    try:
        wait_until(lambda: client.get_job_status().result() is JobStatus.RUNNING)
        assert sorted(numbers(other, 50).execute_and_collect()) == list(range(50))
        assert client.get_job_status().result() is JobStatus.RUNNING
    finally:
        client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result(timeout=120)


def test_one_environment_runs_one_job_after_another(make_env: MakeEnv) -> None:
    env = make_env(2)
    for count in (3, 5):
        assert sorted(numbers(env, count).execute_and_collect()) == list(range(count))


# ---------------------------------------------------------------- execute_and_collect


def test_results_come_while_the_job_runs(make_env: MakeEnv) -> None:
    with endless(make_env(2), 500).execute_and_collect() as results:
        assert len(list(itertools.islice(results, 20))) == 20
        assert results.next() >= 0


def test_collect_with_a_limit_cancels_the_job(make_env: MakeEnv) -> None:
    found = endless(make_env(1)).execute_and_collect(limit=7)
    assert found == [0, 1, 2, 3, 4, 5, 6]
    assert numbers(make_env(4), 3).execute_and_collect(limit=10) is not None


def test_a_limit_above_the_number_of_records_gives_all(make_env: MakeEnv) -> None:
    assert sorted(numbers(make_env(2), 4).execute_and_collect(limit=100)) == [0, 1, 2, 3]


def test_close_early_frees_the_slots(make_env: MakeEnv) -> None:
    results = endless(make_env(4), None).execute_and_collect()
    assert next(results) >= 0
    started = time.monotonic()
    results.close()
    results.close()
    assert list(results) == []
    assert time.monotonic() - started < 120
    assert sorted(numbers(make_env(4), 4).execute_and_collect()) == [0, 1, 2, 3]


def test_many_results_through_a_slow_reader(make_env: MakeEnv) -> None:
    """The sink waits for the client: no more than a bounded number of results is on its way."""
    found = []
    for value in numbers(make_env(2), 200_000).execute_and_collect():
        if len(found) % 50_000 == 0:
            time.sleep(0.1)
        found.append(value)
    assert sorted(found) == list(range(200_000))


def test_results_that_wait_for_a_checkpoint_are_no_state(make_env: MakeEnv) -> None:
    """Eight MB of them, where the state of a task may have five. Once, the job restarted for ever."""
    env = make_env(1).enable_checkpointing(3_600_000)  # so that all wait for the last one
    texts = numbers(env, 8_000).map(lambda n: f"{n:01024}")
    with texts.execute_and_collect() as results:
        assert [int(text) for text in results] == list(range(8_000))


# ---------------------------------------------------------------- the environment


def test_execution_plan_names_operators_and_exchanges(make_env: MakeEnv) -> None:
    env = make_env(2)
    numbers(env).map(str).name("Text").key_by(len).reduce(max).print()
    plan = json.loads(env.get_execution_plan())
    assert [(n["type"], n["parallelism"]) for n in plan["nodes"]] == [
        ("Source: Numbers", 2),
        ("Text", 2),
        ("Reduce", 2),
        ("Sink: Print to Std. Out", 2),
    ]
    assert [p["ship_strategy"] for n in plan["nodes"] for p in n.get("predecessors", [])] == [
        "FORWARD",
        "HASH",
        "FORWARD",
    ]


def test_the_active_session_is_used_when_none_is_given(spark: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    assert sorted(numbers(env, 3).execute_and_collect()) == [0, 1, 2]
    assert spark.sparkContext._jsc is not None  # still the same, not stopped
    assert spark.range(5).count() == 5


def test_nothing_of_a_finished_job_is_left_in_the_driver(make_env: MakeEnv) -> None:
    assert len(list(numbers(make_env(2), 3).execute_and_collect())) == 3
    wait_until(lambda: not [t.name for t in threading.enumerate() if t.name.startswith("tidegate")])
