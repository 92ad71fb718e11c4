"""A parallelism far above the cores: refused or warned of before the processes are started."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from tidegate.common import Configuration
from tidegate.common.errors import ResourceError
from tidegate.spark import session as sessions


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(getActiveSession=lambda: None, _instantiatedSession=None, builder=None)
    monkeypatch.setattr(sessions, "SparkSession", nothing)  # a session that is asked for all the same fails the test
    monkeypatch.setattr(sessions.os, "cpu_count", lambda: 2)
    monkeypatch.delenv("SPARK_MASTER", raising=False)


def test_a_gang_far_above_the_cores_is_refused_before_a_session_is_made() -> None:
    with pytest.raises(ResourceError, match=r"needs 100 slots.*2 cores.*at most 64.*spark.master to local\[100\]"):
        sessions.obtain_session(Configuration(), None, 100, gang=True)


@pytest.mark.parametrize(
    ("configuration", "gang", "slots"),
    [({}, True, 64), ({}, False, 100), ({"spark.master": "local[100]"}, True, 100)],
    ids=["few", "not all at once", "asked for"],
)
def test_what_is_meant_is_not_refused(configuration: dict[str, str], gang: bool, slots: int) -> None:
    with pytest.raises(AttributeError, match="config"):  # it came to the builder
        sessions.obtain_session(Configuration.from_dict(configuration), None, slots, gang=gang)


@pytest.mark.parametrize(
    ("master", "slots", "warned"),
    [("local[100]", 17, True), ("local[100]", 16, False), ("local", 1, False), ("spark://host:7077", 100, False)],
)
def test_a_session_with_many_slots_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, master: str, slots: int, warned: bool
) -> None:
    monkeypatch.setattr(sessions, "_slots", lambda context: 1000)
    with caplog.at_level(logging.WARNING, "tidegate.spark"):
        sessions.check_slots(SimpleNamespace(sparkContext=SimpleNamespace(master=master)), slots)  # type: ignore[arg-type]
    assert [str(slots) in record.getMessage() for record in caplog.records] == [True] * warned
