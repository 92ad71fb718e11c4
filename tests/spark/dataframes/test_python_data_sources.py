"""A data source in Python, which Spark knows since 4.0, as a source of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tidegate.common import WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.spark import PySparkSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
Env = Callable[..., StreamExecutionEnvironment]


class Numbers(DataSource):
    def schema(self) -> str:
        return "n int, part string"

    def reader(self, schema: Any) -> DataSourceReader:
        return NumbersReader(int(self.options["count"]))


class NumbersReader(DataSourceReader):
    def __init__(self, count: int) -> None:
        self.count = count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(name) for name in "abc"]

    def read(self, partition: InputPartition) -> Any:
        for n in range(self.count):
            yield n, partition.value


def test_a_python_data_source_is_a_source(spark: Any, make_env: Env) -> None:
    source = PySparkSource(Numbers({"count": "1200"}))
    stream = make_env(2).from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    found = Counter((row.n, row.part) for row in stream.execute_and_collect())
    assert found == Counter((n, part) for n in range(1200) for part in "abc")
