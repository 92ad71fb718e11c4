"""BATCH mode under faults: what is done stays done, and every output is there once."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.common.errors import JobExecutionError
from tidegate.common.serialization import Encoder
from tidegate.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors import BucketAssigner, FileSink, NumberSequenceSource
from tidegate.datastream.state import ValueStateDescriptor

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeEnv = Callable[..., StreamExecutionEnvironment]
BATCH = {"execution.runtime-mode": "BATCH"}
RETRIES = BATCH | {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "3",
    "restart-strategy.fixed-delay.delay": "10 ms",
}


def once(path: str) -> bool:
    """True for the first process that asks."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class NoteOpened(MapFunction):
    """Writes a line for every task that is begun."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def open(self, runtime_context: RuntimeContext) -> None:
        with open(self.path, "a") as file:
            file.write(f"{runtime_context.get_index_of_this_subtask()}\n")

    def map(self, value: int) -> int:
        return value


class CountPerKey(KeyedProcessFunction):
    """Kills its process, or raises, once, in the middle of its input."""

    def __init__(self, marker: Path, how: str) -> None:
        self.marker, self.how = str(marker), how

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.seen = 0

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.seen += 1
        if self.seen == 300 and once(self.marker):
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("planned")
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.get_current_key(), count


EXPECTED = Counter((key, n) for key in range(20) for n in range(1, 101))


def counts(env: StreamExecutionEnvironment, folder: Path, how: str) -> Any:
    numbers = env.from_source(NumberSequenceSource(0, 1999), WatermarkStrategy.no_watermarks(), "Numbers")
    noted = numbers.map(NoteOpened(folder / "opened")).name("First stage")
    return noted.key_by(lambda n: n % 20).process(CountPerKey(folder / "marker", how)).name("Second stage")


def stages_run(spark: Any, job_id: str) -> list[list[tuple[str, int]]]:
    """By Spark's own record: for each job of ours, name and number of completed tasks of the stages that ran."""
    tracker = spark.sparkContext.statusTracker()
    jobs = []
    for job in sorted(tracker.getJobIdsForGroup(f"tidegate-{job_id}")):
        infos = [tracker.getStageInfo(i) for i in sorted(tracker.getJobInfo(job).stageIds)]
        jobs.append(
            [(i.name, i.numCompletedTasks) for i in infos if i is not None and i.numCompletedTasks + i.numFailedTasks]
        )
    return jobs


def test_a_killed_worker_in_the_second_stage_leaves_the_first_as_it_is(
    spark: Any, make_env: MakeEnv, tmp_path: Path
) -> None:
    """Without a restart strategy: Spark itself forgives lost workers too."""
    env = make_env(4, BATCH)
    counts(env, tmp_path, "kill").sink_to(_files(tmp_path))
    client = env.execute_async("killed")
    client.get_job_execution_result().result()
    assert client.attempt() == 1
    assert "exited unexpectedly" in client.failures()[0].failure.summary
    assert "was killed by SIGKILL (9)" in client.failures()[0].failure.summary
    assert re.search(r"; it ran 'Second stage.*' \(subtask \d\)", client.failures()[0].failure.summary)
    assert sorted((tmp_path / "opened").read_text().split()) == ["0", "1", "2", "3"]
    first, second = stages_run(spark, str(client.get_job_id()))
    assert [tasks for name, tasks in first if "First stage" in name] == [4]
    assert not any("First stage" in name for name, _ in second)
    assert any("Second stage" in name for name, _ in second)
    assert Counter(_written(tmp_path)) == EXPECTED
    assert [s.status for s in client.status_history()] == [
        JobStatus.RUNNING,
        JobStatus.RESTARTING,
        JobStatus.RUNNING,
        JobStatus.FINISHED,
    ]


def test_an_attempt_that_fails_after_writing_leaves_nothing_behind(make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(2, RETRIES)
    counts(env, tmp_path, "raise").sink_to(_files(tmp_path))
    env.execute("fails once")
    assert Counter(_written(tmp_path)) == EXPECTED


def test_without_a_strategy_an_exception_ends_the_job_and_nothing_is_visible(make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(2, BATCH)
    counts(env, tmp_path, "raise").sink_to(_files(tmp_path))
    with pytest.raises(JobExecutionError) as failed:
        env.execute("fails")
    message = str(failed.value)
    for part in ("operator 'Second stage' (subtask ", "process_element()", "on record ", "ValueError: planned"):
        assert part in message
    assert "restart-strategy.type" in message
    assert "org.apache" not in message
    assert _written(tmp_path) == []


def _files(folder: Path) -> FileSink:
    encoder = Encoder.simple_string_encoder()
    sink = FileSink.for_row_format(str(folder / "out"), encoder)
    return sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()


def _written(folder: Path) -> list[Any]:
    """All records that are visible. There must be nothing hidden beside them."""
    out = folder / "out"
    if not out.exists():
        return []
    assert not [name for name in os.listdir(out) if name.startswith(".")]
    return [eval(line) for file in out.iterdir() for line in file.read_text().splitlines()]
