"""What the version of Spark that is installed lacks, said in one sentence where it is used."""

from __future__ import annotations

import importlib.util

import pyspark

from tidegate.common.errors import ConfigurationError


def has_python_data_sources() -> bool:
    """Data sources written in Python: since Spark 4.0."""
    return importlib.util.find_spec("pyspark.sql.datasource") is not None


def need_python_data_sources(used: str, instead: str) -> None:
    """`used`: what the program has called; `instead`: what to do without it."""
    if not has_python_data_sources():
        raise ConfigurationError(
            f"{used} needs Spark 4.0 or newer, which has data sources in Python, and this is {pyspark.__version__}; "
            f"{instead}"
        )
