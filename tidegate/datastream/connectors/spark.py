"""PySpark's own Python data sources as sources. The class lives in the Spark layer and is loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.spark.dataframes.data_source import PySparkSource

__all__ = ["PySparkSource"]


def __getattr__(name: str) -> Any:
    if name != "PySparkSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidegate.spark.dataframes.data_source import PySparkSource

    return PySparkSource
