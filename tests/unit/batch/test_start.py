"""BATCH jobs that start from a savepoint of a streaming job. All modes and kinds of state: tests/unit/micro_batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.batch.test_tasks import Engine
from tidegate.common import Configuration, Time, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError
from tidegate.contracts.collect_sink import CollectSink
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource
from tidegate.datastream.window import TumblingEventTimeWindows
from tidegate.spark.batch.plan import plan_job
from tidegate.spark.batch.runtime import _start_of
from tidegate.spark.start_points import initial_point
from tidegate.taskmanager.deployment import RuntimeSettings
from tidegate.testing.in_process_job import InProcessJob, graph_of

TIMES = [10, 100, 11, 200, 12, 210]  # the third and the fifth are late once the watermark is where the others are


def numbers(savepoint: str | None = None, source: type[DataGeneratorSource] = DataGeneratorSource) -> DataStream:
    config = {"tidegate.network.batch-size": "1", "pipeline.auto-watermark-interval": "1 ms"}
    config |= {} if savepoint is None else {"execution.state-recovery.path": savepoint}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config)).set_parallelism(1)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda time, _: time)
    made = source(lambda i: TIMES[i], count=len(TIMES), records_per_second=1000)
    return env.from_source(made, times, "Numbers").uid("numbers")


def windows(stream: DataStream) -> DataStream:
    keyed = stream.key_by(lambda time: "key", Types.STRING())
    windowed = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(50)))
    return windowed.reduce(lambda a, b: a + b).uid("windows")


def summed(stream: DataStream) -> DataStream:
    return stream.key_by(lambda time: time % 2, Types.INT()).reduce(lambda a, b: a + b).uid("sums")


def savepoint_after_two(stream: DataStream, target: Path) -> list[Any]:
    """What the streaming job has emitted before."""
    with InProcessJob.collecting(stream) as running:
        running.advance(1.5).stop(target)
        running.run_to_end()
        return running.results


def batch_results(stream: DataStream) -> list[Any]:
    stream.sink_to(CollectSink())
    env = stream.get_execution_environment()
    point = initial_point(env._configuration, "BATCH")
    assert point is not None
    graph = graph_of(env)
    start = _start_of(graph, point, env._configuration)
    return Engine(plan_job(graph, RuntimeSettings(), 1 << 20, None, start)).run()


def test_what_would_have_been_late_is_late(tmp_path: Path) -> None:
    assert savepoint_after_two(windows(numbers()), tmp_path / "savepoint") == [10]
    assert batch_results(windows(numbers(str(tmp_path / "savepoint")))) == [100, 410]


def test_a_reduce_goes_on_with_what_it_has(tmp_path: Path) -> None:
    assert savepoint_after_two(summed(numbers()), tmp_path / "savepoint") == [10, 110]
    assert sorted(batch_results(summed(numbers(str(tmp_path / "savepoint"))))) == [11, 532]


class Growing(DataGeneratorSource):
    discovery_interval_ms = 5.0


class OfSpark(DataGeneratorSource):
    def batch_rdd(self, session: Any) -> Any: ...

    def read_block(self, block: bytes) -> Any: ...


@pytest.mark.parametrize(("source", "reason"), [(Growing, "finds its splits"), (OfSpark, "reads a DataFrame")])
def test_sources_whose_state_cannot_be_matched_are_refused(tmp_path: Path, source: Any, reason: str) -> None:
    savepoint_after_two(summed(numbers()), tmp_path / "savepoint")
    with pytest.raises(ConfigurationError, match=rf"(?s)execution.state-recovery.path: .*{reason}.*another uid"):
        batch_results(summed(numbers(str(tmp_path / "savepoint"), source)))
