"""A slow consumer slows its producers down; memory does not grow."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

from tests.spark.programs import wait_until
from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]
MB = 1 << 20


def fast_source(env: StreamExecutionEnvironment) -> DataStream:
    """A kilobyte per record: without back-pressure this fills hundreds of megabytes per second."""
    source = DataGeneratorSource(lambda i: (i, b"x" * 1000 + bytes([i % 256])))
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "Fast")


def slow(record: object) -> None:
    time.sleep(0.001)


@pytest.mark.parametrize("exchange", ["rebalance", "key_by"])
def test_memory_of_a_fast_source_into_a_slow_sink_is_flat(make_env: MakeEnv, exchange: str) -> None:
    from tidegate.jobmanager.running_jobs import running_jobs_of
    from tidegate.spark.streaming.job_manager import JobManager

    env = make_env(2)
    stream = fast_source(env)
    between = stream.rebalance() if exchange == "rebalance" else stream.key_by(lambda r: r[0] % 50)
    between.map(lambda r: r).add_sink(slow)
    client = env.execute_async()
    try:
        wait_until(lambda: client.get_job_status().result() is JobStatus.RUNNING)
        manager = next(m for m in running_jobs_of(JobManager) if m.master.status is JobStatus.RUNNING)
        processes = [psutil.Process(), *[psutil.Process(member.pid) for member in manager.master.members]]
        time.sleep(1.5)
        before = [p.memory_info().rss for p in processes]
        time.sleep(3.0)
        after = [p.memory_info().rss for p in processes]
        grown = [(b - a) / MB for a, b in zip(before, after, strict=True)]
        assert max(grown) < 20, f"grown by {grown} MB in 3 s"
        assert client.get_job_status().result() is JobStatus.RUNNING
    finally:
        client.cancel()
        client.get_job_execution_result().exception(timeout=120)


def test_a_slow_branch_does_not_starve_the_other_inputs_forever(make_env: MakeEnv) -> None:
    """Two sources, one exchange: the slow consumer of one leaves credits of the other channels alone."""
    env = make_env(2)
    fast_source(env).rebalance().map(lambda r: r).name("Slow path").add_sink(slow)
    numbers = DataGeneratorSource(lambda i: i, records_per_second=200)
    other = env.from_source(numbers, WatermarkStrategy.no_watermarks(), "Other").rebalance().map(str)
    assert len(other.execute_and_collect(limit=100)) == 100
