"""PySpark's own Python data sources as sources. The class lives in the Spark layer and is loaded when it is used."""

from __future__ import annotations

from typing import Any

from tidegate.datastream.spark_bridge import spark_module

__all__ = ["PySparkSource"]  # noqa: F822 (by __getattr__)


def __getattr__(name: str) -> Any:
    if name != "PySparkSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    spark_module("versions").need_python_data_sources("PySparkSource", "read a DataFrame instead: env.from_spark()")
    return spark_module("dataframes.data_source").PySparkSource
