"""Metrics of user functions, under PyFlink's names."""

from __future__ import annotations

from tidegate.common.metrics import Counter, Distribution, Gauge, Meter, Metric, MetricGroup

__all__ = ["Counter", "Distribution", "Gauge", "Meter", "Metric", "MetricGroup"]
