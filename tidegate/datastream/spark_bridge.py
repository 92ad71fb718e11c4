"""The one way from the API to the Spark layer, which stands above it: by name, when a program uses it, so that building
a job imports no Spark."""

from __future__ import annotations

import importlib
from typing import Any


def spark_module(name: str) -> Any:
    """`tidegate.spark.<name>`."""
    return importlib.import_module(f"tidegate.spark.{name}")
