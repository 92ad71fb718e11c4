"""A batch job as its user meets it: the client, names in Spark, cached streams, and the seams for bridges."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Configuration, JobStatus, WatermarkStrategy
from tidegate.common.accumulators import IntCounter
from tidegate.common.errors import ConfigurationError, JobCancelledError
from tidegate.connectors.discard import DiscardingSink
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import MapFunction, RuntimeContext, RuntimeExecutionMode, StreamExecutionEnvironment
from tidegate.datastream.connectors import NumberSequenceSource
from tidegate.datastream.connectors.base import Source, SourceContext, SourceSplit, SplitReader
from tidegate.graph.chaining import build_job_graph
from tidegate.spark.batch.progress import StageWatch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeEnv = Callable[..., StreamExecutionEnvironment]
BATCH = {"execution.runtime-mode": "BATCH"}


def numbers(env: StreamExecutionEnvironment, count: int) -> Any:
    return env.from_source(NumberSequenceSource(1, count), WatermarkStrategy.no_watermarks(), "Numbers")


class Counted(MapFunction):
    """Counts in an accumulator and a metric, and notes each task that begins."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def open(self, runtime_context: RuntimeContext) -> None:
        with open(self.path, "a") as file:
            file.write("begun\n")
        self.seen = IntCounter()
        runtime_context.add_accumulator("seen", self.seen)
        self.metric = runtime_context.get_metrics_group().counter("seen")

    def map(self, value: int) -> int:
        self.seen.add(1)
        self.metric.inc()
        return value


def test_a_stream_that_two_read_is_computed_once_and_all_is_reported(
    spark: Any, make_env: MakeEnv, tmp_path: Path
) -> None:
    env = make_env(2).set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    counted = numbers(env, 100).map(Counted(tmp_path / "begun")).name("Counted")
    counted.rebalance().map(str).sink_to(DiscardingSink())
    counted.key_by(lambda n: n % 3).sum().sink_to(DiscardingSink())
    client = env.execute_async("two readers")
    result = client.get_job_execution_result().result()
    assert result.get_accumulator_result("seen") == 100
    assert sum(v for name, v in client.metrics().items() if name.startswith("Counted.")) == 100
    assert (tmp_path / "begun").read_text().split() == ["begun"] * 2
    assert sum(read for (vertex, _), (read, _) in client.task_records().items() if vertex == 0) == 100
    tracker = spark.sparkContext.statusTracker()
    (job,) = tracker.getJobIdsForGroup(f"tidegate-{client.get_job_id()}")
    names = {tracker.getStageInfo(stage).name for stage in tracker.getJobInfo(job).stageIds}
    assert any("Source: Numbers -> Counted" in name for name in names)
    assert not spark.sparkContext._jsc.getPersistentRDDs()


def test_cancelling(make_env: MakeEnv) -> None:
    env = make_env(1, BATCH)
    numbers(env, 100).map(lambda n: time.sleep(1000)).print()
    client = env.execute_async("sleeps")
    while client.get_job_status().result() is not JobStatus.RUNNING:
        time.sleep(0.01)
    client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result()
    assert client.get_job_status().result() is JobStatus.CANCELED
    with pytest.raises(ConfigurationError, match=r"execution\.batch\.savepoint-path"):
        client.trigger_savepoint().result()


def test_cached_streams(make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(2, BATCH)
    cached = numbers(env, 10).map(Counted(tmp_path / "begun")).cache()
    assert sorted(cached.map(lambda n: -n).execute_and_collect()) == list(range(-10, 0))
    assert sorted(cached.execute_and_collect()) == list(range(1, 11))
    assert (tmp_path / "begun").read_text().split() == ["begun"] * 2
    env.close()


class InSpark(Source[int]):
    """Numbers that are in an RDD of pickled lists; nobody may ask it for splits."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def batch_rdd(self, session: Any) -> Any:
        from pyspark import RDD
        from pyspark.serializers import NoOpSerializer

        rows = session.sparkContext.parallelize(range(40), self.partitions)
        raw = rows.mapPartitions(lambda part: iter([pickle.dumps(list(part))]))
        raw._bypass_serializer = True
        return RDD(raw._jrdd, session.sparkContext, NoOpSerializer())

    def read_block(self, block: bytes) -> list[int]:
        return list(pickle.loads(block))

    def create_splits(self, parallelism: int) -> Sequence[SourceSplit]:
        raise AssertionError("asked for splits")

    def create_reader(self, split: SourceSplit, offset: Any | None, context: SourceContext) -> SplitReader[int]:
        raise AssertionError("asked for a reader")


def test_records_come_from_an_rdd_and_stay_in_one(spark: Any, make_env: MakeEnv) -> None:
    from tidegate.jobmanager.runtime import Submission
    from tidegate.spark.batch.compilation import collected_rdd

    for partitions in (1, 5):  # fewer and more than subtasks
        env = make_env(2, BATCH)
        stream = env.from_source(InSpark(partitions), WatermarkStrategy.no_watermarks(), "In Spark")
        squares = stream.rebalance().map(lambda n: n * n)
        assert sorted(squares.execute_and_collect()) == [n * n for n in range(40)]
        squares.sink_to(CollectSink())
        graph = build_job_graph(env._operators, env._graph_settings()).job_graph
        rdd = collected_rdd(Submission(graph, Configuration.from_dict(BATCH), spark))
        assert rdd.getNumPartitions() == 2
        assert sorted(v for block in rdd.collect() for v in pickle.loads(block)) == [n * n for n in range(40)]


def test_stages_are_none_when_spark_is_gone() -> None:
    class Tracker:
        def getJobIdsForGroup(self, group: str) -> list[int]:
            raise RuntimeError("the session is gone")

    class Context:
        def statusTracker(self) -> Tracker:
            return Tracker()

    published: list[Any] = []
    with StageWatch(Context(), "group", published.append):
        pass
    assert published == [()]
