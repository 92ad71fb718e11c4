"""State of checkpoints and savepoints as DataFrames. Read `docs/state-as-tables.md` first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("tidegate-state")` known to this session. May be called twice.

    Only needed where Spark does not find it by itself: it does when its Python workers have Tidegate installed."""
    from tidegate.spark.session import use_own_python
    from tidegate.spark.state_tables.data_source import StateDataSource

    use_own_python(spark)
    spark.dataSource.register(StateDataSource)
