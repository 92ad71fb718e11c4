"""Options whose effect only a real Spark shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.common import Configuration, WatermarkStrategy
from tidegate.common.errors import ConfigurationError, JobCancelledError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors import NumberSequenceSource
from tidegate.datastream.connectors.datagen import DataGeneratorSource
from tidegate.spark.session import _create

pytestmark = pytest.mark.spark

MakeEnv = Callable[..., StreamExecutionEnvironment]


def test_python_files_are_shipped_to_the_workers(make_env: MakeEnv, tmp_path: Path) -> None:
    (tmp_path / "shipped_by_an_option.py").write_text("def add(a):\n    return a + 1000\n")

    def add(value: int) -> int:
        import shipped_by_an_option  # type: ignore[import-not-found]

        return int(shipped_by_an_option.add(value))

    env = make_env(2, {"tidegate.python.files": str(tmp_path / "shipped_by_an_option.py")})
    numbers = env.from_source(NumberSequenceSource(1, 4), WatermarkStrategy.no_watermarks(), "numbers")
    with numbers.map(add).execute_and_collect() as results:
        assert sorted(results) == [1001, 1002, 1003, 1004]


def test_keys_of_spark_reach_the_session(spark: Any) -> None:
    assert spark.sparkContext.master == "local[4]"  # the session of these tests was made from `spark.master`
    again = _create(Configuration.from_dict({"spark.master": "local[4]", "spark.sql.shuffle.partitions": "7"}), 1, True)
    assert again.conf.get("spark.sql.shuffle.partitions") == "7"
    assert again.sparkContext is spark.sparkContext


def test_a_job_id_that_runs_already_is_refused_and_the_running_job_is_not_disturbed(
    make_env: MakeEnv, tmp_path: Path
) -> None:
    config = {
        "pipeline.job-id": "c0ffee" + "0" * 26,
        "execution.checkpointing.dir": str(tmp_path),
        "execution.checkpointing.interval": "50 ms",
    }

    def start() -> Any:
        env = make_env(1, config)
        source = DataGeneratorSource(lambda i: i, records_per_second=1000)
        env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").filter(lambda i: False).print()
        return env.execute_async()

    client = start()
    assert str(client.get_job_id()) == config["pipeline.job-id"]
    with pytest.raises(ConfigurationError, match="is already running"):
        start()
    deadline = time.monotonic() + 20
    while not list(tmp_path.rglob("_metadata")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result()
    second = start()
    second.cancel()
    with pytest.raises(JobCancelledError):
        second.get_job_execution_result().result()
