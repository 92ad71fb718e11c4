"""Which Spark can run micro-batches, and what the others are told."""

from __future__ import annotations

import importlib.util

import pyspark
import pytest

from tidegate.common.errors import ConfigurationError
from tidegate.spark.micro_batch.query import check_spark


@pytest.mark.parametrize("version", ["3.5.0", "4.0.5"])
def test_a_spark_without_stateful_operators_in_python_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ConfigurationError, match=f"MICRO_BATCH needs Spark 4.1 or newer.*this is {version}"):
        check_spark()


@pytest.mark.parametrize("version", ["4.1.0", "4.3.0", "4.10.0.dev1", "5.0.0"])
def test_newer_ones_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    check_spark()


@pytest.mark.parametrize("error", [None, ModuleNotFoundError("google")])
def test_a_missing_protobuf_is_named(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(pyspark, "__version__", "4.1.0")
    monkeypatch.setattr(importlib.util, "find_spec", missing)
    with pytest.raises(ConfigurationError, match="needs the package protobuf"):
        check_spark()
