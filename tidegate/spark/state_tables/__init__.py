"""State of checkpoints and savepoints as DataFrames. Read `docs/state-as-tables.md` first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("tidegate-state")` known to this session. May be called twice.

    Only needed where Spark does not find it by itself and no environment has taken the session. ConfigurationError
    before Spark 4, which knows no data sources in Python."""
    from tidegate.spark.session import use_own_python
    from tidegate.spark.versions import need_python_data_sources

    need_python_data_sources('spark.read.format("tidegate-state")', "use tidegate.spark.state_tables.read(spark, path)")
    from tidegate.spark.state_tables.data_source import StateDataSource

    use_own_python(spark)
    spark.dataSource.register(StateDataSource)


def read(
    spark: SparkSession,
    path: str | None = None,
    operator: str | None = None,
    state: str | None = None,
    *,
    schema: Any = None,
    **options: Any,
) -> DataFrame:
    """The DataFrame that `spark.read.format("tidegate-state")` gives, on every version of Spark and without a format
    that has to be found. Without `operator` and `state`: the list of states. `options`: those of the format
    (`numPartitions=4`; `job="counts"` instead of the path). `schema`: a StructType or a DDL string, to
    choose columns and types."""
    from tidegate.spark.session import use_own_python
    from tidegate.spark.state_tables.frame import state_frame

    use_own_python(spark)
    wanted = {"path": path, "operator": operator, "state": state, **options}
    return state_frame(spark, {name: str(value) for name, value in wanted.items() if value is not None}, schema)
