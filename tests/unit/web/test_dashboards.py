"""The dashboard and the alert rules name only metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.web.web_kit import sample_view
from tidegate.common.metric_values import INPUT_WATERMARK, GaugeValue, MetricReport
from tidegate.web.prometheus import text

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations"


@pytest.mark.parametrize("name", ["grafana-dashboard.json", "alerts.yml"])
def test_every_metric_is_one_that_is_exposed(name: str) -> None:
    content = (OPERATIONS / name).read_text(encoding="utf-8")
    timed = MetricReport(0, 0, INPUT_WATERMARK, GaugeValue(5.0))  # the sample has no event time
    view = msgspec.structs.replace(sample_view(), metrics=(*sample_view().metrics, timed))
    families = text_string_to_metric_families(text([view], view.started_ms).decode())
    exposed = {sample.name for family in families for sample in family.samples}
    used = set(re.findall(r"tidegate_(?:job|task|operator)_\w+", content))
    assert used
    assert used <= exposed


def test_the_dashboard_is_json_with_panels() -> None:
    dashboard = json.loads((OPERATIONS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) >= 10
