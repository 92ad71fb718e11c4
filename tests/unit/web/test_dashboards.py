"""The dashboard and the alert rules are what Prometheus and Grafana can read, and name only metrics and labels that
there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.web.web_kit import sample_view
from tidegate.common.metric_values import INPUT_WATERMARK, GaugeValue, MetricReport
from tidegate.web.prometheus import text

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations"
VARIABLES = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}  # of Grafana, where a duration belongs


@cache
def exposed() -> dict[str, set[str]]:
    """Every metric with its labels."""
    timed = MetricReport(0, 0, INPUT_WATERMARK, GaugeValue(5.0))  # the sample has no event time
    view = msgspec.structs.replace(sample_view(), metrics=(*sample_view().metrics, timed))
    families = text_string_to_metric_families(text([view], view.started_ms).decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((OPERATIONS / "alerts.yml").read_text(encoding="utf-8"))
    assert list(content) == ["groups"]
    assert all(set(group) == {"name", "rules"} for group in content["groups"])
    return [rule for group in content["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return list(json.loads((OPERATIONS / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"])


def queries() -> Iterator[tuple[str, str]]:
    """Where it stands, and the PromQL."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for name, duration in VARIABLES.items():
                expression = expression.replace(name, duration)
            yield panel["title"], expression


def parsed() -> list[Any]:
    return [pytest.param(expression, id=where) for where, expression in queries()]


def nodes(expression: str) -> list[Any]:
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(expression), pre_visit=lambda node: found.append(node))
    return found


@pytest.mark.parametrize("expression", parsed())
def test_every_query_is_promql_of_metrics_and_labels_that_are_exposed(expression: str) -> None:
    every = nodes(expression)  # raises for what is none: also unknown functions, and arguments of a wrong type
    selected = [node for node in every if isinstance(node, promql_parser.VectorSelector)]
    assert selected
    labels: set[str] = set()
    for selector in selected:
        assert selector.name in exposed()
        labels |= exposed()[selector.name]
        assert {matcher.name for matcher in selector.matchers.matchers} <= exposed()[selector.name]
    for node in every:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            assert set(node.modifier.labels) <= labels


def test_rules_are_complete_and_say_only_what_their_result_has() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found) >= 6
    for rule in found:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        top = promql_parser.parse(rule["expr"])
        inner = top.lhs if isinstance(top, promql_parser.BinaryExpr) else top
        kept = {"job_id", "job_name"}
        if isinstance(inner, promql_parser.AggregateExpr):
            kept = set(inner.modifier.labels)
        said = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert "job_name" in said
        assert said <= kept


def test_the_dashboard_is_json_with_panels() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels()) >= 10
    assert all(panel["title"] and panel["targets"] for panel in panels())
