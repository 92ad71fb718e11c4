"""What `from_spark` and `from_spark_stream` are given, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import DataFrame

from tidegate.common.errors import ConfigurationError
from tidegate.spark.dataframes.bounded import DataFrameSource
from tidegate.spark.session import use_own_python

if TYPE_CHECKING:
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
    from tidegate.spark.dataframes.streaming import SparkStreamSource

_OUTPUT_MODES = ("append", "update", "complete")


def dataframe_source(environment: StreamExecutionEnvironment, df: Any) -> DataFrameSource:
    _check(environment, df, "from_spark")
    if df.isStreaming:
        raise ConfigurationError(
            "from_spark: this is a streaming DataFrame, and it has no end; use from_spark_stream() for it"
        )
    return DataFrameSource(df, environment._configuration)


def streaming_source(
    environment: StreamExecutionEnvironment,
    sdf: Any,
    name: str,
    staging: str | None,
    output_mode: str,
    trigger: str | None,
) -> SparkStreamSource:
    from tidegate.spark.dataframes.streaming import QuerySettings, SparkStreamSource

    _check(environment, sdf, "from_spark_stream")
    if not sdf.isStreaming:
        raise ConfigurationError(
            "from_spark_stream: this DataFrame is not a streaming one; use from_spark() for it, or make it with "
            "spark.readStream"
        )
    if output_mode not in _OUTPUT_MODES:
        raise ConfigurationError(
            f"from_spark_stream: output_mode has to be one of {', '.join(_OUTPUT_MODES)}, got {output_mode!r}"
        )
    if staging is not None and (not isinstance(staging, str) or not staging.strip()):
        raise ConfigurationError(f"from_spark_stream: staging has to be a path or a URI, got {staging!r}")
    return SparkStreamSource(sdf, environment._configuration, QuerySettings(staging, output_mode, trigger), name)


def _check(environment: StreamExecutionEnvironment, df: Any, where: str) -> None:
    if not isinstance(df, DataFrame):
        raise TypeError(f"{where}: takes a DataFrame of pyspark.sql, got {type(df).__name__}")
    if not hasattr(df, "_jdf"):
        raise ConfigurationError(
            f"{where}: this DataFrame is one of Spark Connect; jobs run on a classic session "
            "(SparkSession.builder.master(...).getOrCreate())"
        )
    _check_schema(df, where)
    session = df.sparkSession
    if environment._spark is None:
        environment._spark = session
    elif environment._spark.sparkContext is not session.sparkContext:
        raise ConfigurationError(f"{where}: the DataFrame belongs to another Spark application than the environment")
    use_own_python(session)


def _check_schema(df: DataFrame, where: str) -> None:
    try:
        _ = df.schema
    except Exception as error:  # Spark 3.5 does not know its own calendar intervals in Python
        raise ConfigurationError(
            f"{where}: PySpark {pyspark.__version__} cannot say which columns the DataFrame has ({error}); leave out, "
            "or cast to string, those of types that it does not know, such as intervals"
        ) from error
