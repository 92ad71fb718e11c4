"""When the format `tidegate-state` is registered in a session that somebody else has made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tidegate.spark.state_tables as state_tables
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.spark.state_tables import discovery


class SparkSession:
    """Known by its name."""


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions that it was registered in. The Python of the path is another one."""
    found: list[Any] = []
    monkeypatch.setattr(state_tables, "register", found.append)
    monkeypatch.setattr(discovery, "has_python_data_sources", lambda: True)
    for variable in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    return found


def taken(session: Any) -> None:
    thread = discovery.make_known(session)
    if thread is not None:
        thread.join()


def test_once_for_each_session(registered: list[Any]) -> None:
    one, other = SparkSession(), SparkSession()
    for session in (one, other, one):
        taken(session)
    assert registered == [one, other]


def test_when_an_environment_takes_a_session(registered: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(discovery, "make_known", seen.append)
    session = SparkSession()
    StreamExecutionEnvironment.get_execution_environment(spark=session)
    StreamExecutionEnvironment.get_execution_environment()
    assert seen == [session]


@pytest.mark.parametrize("variable", ["PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PATH"])
def test_not_where_spark_finds_it_by_itself(
    registered: list[Any], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    folder = str(Path(sys.executable).parent)
    monkeypatch.setenv(variable, folder if variable == "PATH" else sys.executable)
    taken(SparkSession())
    assert registered == []


def test_not_before_spark_4(registered: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "has_python_data_sources", lambda: False)
    taken(SparkSession())
    assert registered == []


def test_a_session_that_is_stopped_meanwhile_is_no_error(
    registered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: Any) -> None:
        raise RuntimeError("stopped")

    monkeypatch.setattr(state_tables, "register", fail)
    taken(SparkSession())
