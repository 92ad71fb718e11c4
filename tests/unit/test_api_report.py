"""The coverage of PyFlink's names does not fall."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "api_report.py"


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["api_report"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_no_name_has_gone(report: ModuleType) -> None:
    found = report.reports()
    missing = {r.name: r.missing for r in found if r.missing}
    assert not report.below_floor(report.coverage(found)), missing


def test_fewer_names_than_before_are_noticed(report: ModuleType, tmp_path: Path) -> None:
    floor = tmp_path / "floor.json"
    report.raise_floor({"classes": 5, "methods": 9}, floor)
    assert report.below_floor({"classes": 5, "methods": 10}, floor) == []
    assert report.below_floor({"classes": 5, "methods": 8}, floor) == ["methods: 8, there were 9"]
    report.raise_floor({"classes": 6, "methods": 8}, floor)
    assert json.loads(floor.read_text()) == {"classes": 6, "methods": 9}


@pytest.mark.parametrize(
    "module",
    [
        "datastream.async_data_stream",
        "datastream.connectors.hybrid_source",
        "datastream.connectors.jdbc",
        "datastream.connectors.kafka",
        "datastream.data_stream",
        "datastream.functions",
        "datastream.slot_sharing_group",
        "datastream.state",
        "datastream.stream_execution_environment",
    ],
)
def test_modules_that_are_complete_stay_so(report: ModuleType, module: str) -> None:
    assert report.report_module(module, report.read_names()[module]).missing == []
