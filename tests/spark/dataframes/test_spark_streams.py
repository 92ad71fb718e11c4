"""Structured Streaming DataFrames as a source: exactly once through killed workers, a new driver and a failed query."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.recovery_kit import completed, file_sink, kill, until, visible_lines, with_checkpoints
from tidegate.common import RestartStrategies, Types
from tidegate.common.errors import ConfigurationError, JobCancelledError, JobExecutionError, ResourceError
from tidegate.datastream import StreamExecutionEnvironment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
Env = Callable[..., StreamExecutionEnvironment]
PER_FILE = 50


class Feed:
    """A folder that Spark reads as a stream, a file per micro-batch."""

    def __init__(self, spark: Any, path: Path) -> None:
        self._spark = spark
        self._path = path
        self._files = 0
        path.mkdir()

    def add(self, count: int = 1) -> None:
        for _ in range(count):
            hidden = self._path / f".{self._files}"
            first = self._files * PER_FILE
            hidden.write_text("".join(f"{n}\n" for n in range(first, first + PER_FILE)))
            hidden.rename(self._path / f"{self._files}.txt")
            self._files += 1

    def dataframe(self) -> Any:
        return self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._path))

    def expected(self) -> Counter[str]:
        return Counter(str(n) for n in range(self._files * PER_FILE))


def start(env: StreamExecutionEnvironment, sdf: Any, out: Path, **options: Any) -> Any:
    stream = env.from_spark_stream(sdf, **options).uid("source")
    stream.map(lambda row: row.value, Types.STRING()).uid("text").sink_to(file_sink(out, True)).uid("sink")
    return env.execute_async("spark stream")


def test_a_stream_of_spark_is_read_exactly_once(spark: Any, make_env: Env, tmp_path: Path) -> None:
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    out.mkdir()
    feed = Feed(spark, tmp_path / "in")
    feed.add(3)
    client = start(with_checkpoints(make_env(2), checkpoints, 200), feed.dataframe(), out)
    for attempt in range(2):
        until(lambda: visible_lines(out), "output")
        feed.add()
        until(lambda a=attempt: completed(client, a), "a checkpoint")
        kill(client.workers()[attempt].pid, signal.SIGKILL)
        feed.add()
        until(lambda a=attempt: client.attempt() > a, "a restart")
    until(lambda: visible_lines(out) == feed.expected(), "all lines, once")
    (staging,) = checkpoints.glob("spark-stream-*")
    until(lambda: len(list((staging / "data").iterdir())) == 1, "what was read is deleted")

    # Another driver goes on: same folder, from a savepoint; and only with the same folder.
    savepoint = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result()
    until(lambda: not spark.streams.active, "the query has ended with the job")
    feed.add(2)
    env = with_checkpoints(make_env(1, {"execution.state-recovery.path": savepoint}), checkpoints, 200)
    client = start(env, feed.dataframe(), out, staging=str(staging))
    until(lambda: visible_lines(out) == feed.expected(), "all lines, once")
    client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result()
    until(lambda: not spark.streams.active, "cancelling the job stops the query")
    assert staging.exists()

    env = make_env(1, {"execution.state-recovery.path": savepoint}).set_restart_strategy(RestartStrategies.no_restart())
    client = start(env, feed.dataframe(), out)
    with pytest.raises(JobExecutionError, match=f"go on with from_spark_stream.*staging='{staging}'"):
        client.get_job_execution_result().result()


def test_a_query_that_fails_fails_the_job_and_is_started_again_with_it(
    spark: Any, make_env: Env, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    feed = Feed(spark, tmp_path / "in")
    feed.add(2)
    spark.conf.set("spark.sql.ansi.enabled", "true")
    (tmp_path / "in" / "poison.txt").write_text("not a number\n")
    sdf = feed.dataframe().selectExpr("cast(cast(value as int) as string) value")
    env = with_checkpoints(make_env(1), tmp_path / "checkpoints", 200, restarts=1)
    client = start(env, sdf, out)
    with pytest.raises(JobExecutionError, match=r"the Spark query that feeds this source failed: .*not a number"):
        client.get_job_execution_result().result()
    assert client.attempt() == 1  # the restart strategy has had its try
    assert visible_lines(out) <= feed.expected()
    until(lambda: not spark.streams.active, "no query is left")
    until(lambda: not list((tmp_path / "checkpoints").glob("spark-stream-*")), "nothing is left")


def test_bad_input(spark: Any, make_env: Env, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load()
    env = make_env(4)
    env.from_spark_stream(rate).print()
    with pytest.raises(ResourceError, match="takes 4 slots, and the query that feeds it needs at least one more"):
        env.execute()
    env = make_env(1)
    counts = rate.groupBy("value").count()
    env.from_spark_stream(counts).print()
    with pytest.raises(ConfigurationError, match=r"Spark does not start the query.*[Aa]ppend"):
        env.execute()
    with pytest.raises(ConfigurationError, match="output_mode has to be one of"):
        env.from_spark_stream(rate, output_mode="whole")
    assert not spark.streams.active
