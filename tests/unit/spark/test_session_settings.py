"""The settings of a session that is made for a job: the configuration's, spark-submit's, ours."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tidegate.common import Configuration
from tidegate.spark.session import session_settings


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    for variable in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(variable, os.environ.get(variable, "x"))  # so that what is set here is undone


def settings(submitted: dict[str, str], **given: Any) -> dict[str, Any]:
    return session_settings(Configuration.from_dict({f"spark.{k}": v for k, v in given.items()}), 3, True, submitted)


def test_what_spark_submit_was_given_holds() -> None:
    """Before this a program that spark-submit had sent to a cluster ran on the driver's machine."""
    found = settings({"spark.master": "spark://head:7077", "spark.task.maxFailures": "4", "spark.app.name": "job.py"})
    assert found["spark.master"] == "spark://head:7077"
    assert found["spark.task.maxFailures"] == "4"
    assert found["spark.app.name"] == "job.py"
    assert found["spark.stage.maxConsecutiveAttempts"] == "1"
    assert "spark.driver.bindAddress" not in found


def test_the_configuration_goes_before_it() -> None:
    assert (
        settings({"spark.master": "spark://head:7077"}, master="spark://other:1")["spark.master"] == "spark://other:1"
    )


def test_spark_submit_without_a_master_gets_enough_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert settings({"spark.master": "local[*]"})["spark.master"] == "local[3]"
    assert settings({})["spark.master"] == "local[3]"
    monkeypatch.setenv("SPARK_MASTER", "spark://head:7077")
    assert settings({"spark.master": "local[*]"})["spark.master"] == "spark://head:7077"
