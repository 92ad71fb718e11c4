"""A component that is missing is no failure on a developer's machine, and one on CI."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from tests.connectors.components import REQUIRED, missing, needs_module, provided
from tests.connectors.zookeeper import zookeeper


@pytest.fixture(params=["", "1"], ids=["here", "on CI"])
def outcome(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[BaseException]:
    monkeypatch.setenv(REQUIRED, request.param)
    return pytest.fail.Exception if request.param else pytest.skip.Exception


def test_what_is_missing_is_said(outcome: type[BaseException]) -> None:
    with pytest.raises(outcome, match="no broker here"):
        missing("no broker here")


def test_a_module_that_is_there_is_no_failure(outcome: type[BaseException]) -> None:
    needs_module("kazoo")
    with pytest.raises(outcome, match=r"pip install kazoo\.nowhere"):
        needs_module("kazoo.nowhere")


def test_a_zookeeper_that_cannot_be_started(
    outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)  # that brings no ZooKeeper along
    monkeypatch.setattr(pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))
    with pytest.raises(outcome, match="brings no ZooKeeper along"), provided(), zookeeper(tmp_path / "zookeeper"):
        pass
