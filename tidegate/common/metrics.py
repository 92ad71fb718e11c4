"""Metrics of user functions: counters, gauges, meters and distributions in groups. Public as `tidegate.metrics`.

A function gets its group from `RuntimeContext.get_metrics_group()`. The values travel with the heartbeats of the
workers; they begin anew when the job restarts.
"""

from __future__ import annotations

import abc
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tidegate.common.errors import ConfigurationError
from tidegate.common.metric_values import CounterValue, GaugeValue, HistogramValue, MeterValue, MetricValue

_MAX_METER_MARKS = 1024
_LARGEST = 2**63 - 1  # what every reader of our messages, of Prometheus and of OpenTelemetry can hold


class Metric(abc.ABC):
    """Base of all metrics."""

    @abc.abstractmethod
    def value(self) -> MetricValue | None:
        """What is reported; None when there is nothing to report now. May raise ArithmeticError or ValueError for what
        is no number."""


M = TypeVar("M", bound=Metric)


class Counter(Metric):
    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        self._count += n

    def dec(self, n: int = 1) -> None:
        self._count -= n

    def get_count(self) -> int:
        return self._count

    def value(self) -> CounterValue:
        return CounterValue(_reported(self._count))


class Gauge(Metric):
    """A function that is asked for the value, on the thread that runs the user's functions."""

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get = get

    def get_value(self) -> Any:
        return self._get()

    def value(self) -> GaugeValue | None:
        try:
            return GaugeValue(float(self._get()))
        except Exception:  # a gauge that has no number right now must not fail the job
            return None


class Meter(Metric):
    """Events, and their rate per second over the latest `time_span_in_seconds`."""

    def __init__(self, time_span_in_seconds: int = 60, now_s: Callable[[], float] = time.monotonic) -> None:
        self._span = time_span_in_seconds
        self._now = now_s
        self._count = 0
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MAX_METER_MARKS)  # (time, count before that time slice)
        self._slice = max(time_span_in_seconds / (_MAX_METER_MARKS // 2), 0.001)
        self._began = now_s()

    def mark_event(self, value: int = 1) -> None:
        now = self._now()
        if not self._marks or now - self._marks[-1][0] >= self._slice:
            self._marks.append((now, self._count))
        self._count += value

    def get_count(self) -> int:
        return self._count

    def get_rate(self) -> float:
        now = self._now()
        while len(self._marks) > 1 and self._marks[0][0] < now - self._span:
            self._marks.popleft()
        if not self._marks or self._marks[0][0] < now - self._span:
            return 0.0
        passed = min(max(now - self._began, self._slice), self._span)
        return (self._count - self._marks[0][1]) / passed

    def value(self) -> MeterValue:
        return MeterValue(_reported(self._count), self.get_rate())


class Distribution(Metric):
    """Count, sum, smallest and largest of the values so far."""

    def __init__(self) -> None:
        self._count = 0
        self._sum: float = 0
        self._min: float | None = None
        self._max: float | None = None

    def update(self, value: float) -> None:
        self._count += 1
        self._sum += value
        self._min = value if self._min is None else min(self._min, value)
        self._max = value if self._max is None else max(self._max, value)

    def value(self) -> HistogramValue:
        if self._min is None or self._max is None:
            return HistogramValue(self._count)
        return HistogramValue(self._count, float(self._sum), float(self._min), float(self._max))


class MetricGroup:
    """A named set of metrics and of further groups. The same name twice gives the same metric or group."""

    def __init__(self, scope: tuple[str, ...] = ()) -> None:
        self._scope = scope
        self._metrics: dict[str, Metric] = {}
        self._groups: dict[str, MetricGroup] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group below this one; with `extra` a group of that name below it (a key and its value)."""
        name = _checked(name, "group")
        group = self._groups.setdefault(name, MetricGroup((*self._scope, name)))
        return group if extra is None else group.add_group(extra)

    def counter(self, name: str) -> Counter:
        return self._metric(name, Counter, Counter)

    def gauge(self, name: str, obj: Callable[[], Any]) -> None:
        """`obj` is called for the value whenever it is reported."""
        if not callable(obj):
            raise ConfigurationError(f"gauge '{name}': takes a function that returns the value, got {obj!r}")
        self._metrics.pop(name, None)
        self._metric(name, Gauge, lambda: Gauge(obj))

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        if time_span_in_seconds <= 0:
            raise ConfigurationError(f"meter '{name}': the time span has to be positive, got {time_span_in_seconds}")
        return self._metric(name, Meter, lambda: Meter(time_span_in_seconds))

    def distribution(self, name: str) -> Distribution:
        return self._metric(name, Distribution, Distribution)

    def get_scope_components(self) -> list[str]:
        """The names from the operator and the subtask down to this group."""
        return list(self._scope)

    def get_metric_identifier(self, metric_name: str, delimiter: str = ".") -> str:
        """The full name under which a metric of this group is reported."""
        return delimiter.join((*self._scope, metric_name))

    def values(self) -> Iterator[tuple[tuple[str, ...], str, MetricValue]]:
        """Everything in this group and below: scope, name and value."""
        for name, metric in list(self._metrics.items()):
            try:
                value = metric.value()
            except (ArithmeticError, ValueError):  # as of a gauge: it must not fail the job
                continue
            if value is not None:
                yield self._scope, name, value
        for group in list(self._groups.values()):
            yield from group.values()

    def _metric(self, name: str, kind: type[M], make: Callable[[], M]) -> M:
        name = _checked(name, "metric")
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = make()
        if not isinstance(metric, kind):
            raise ConfigurationError(
                f"metric '{self.get_metric_identifier(name)}' is a {type(metric).__name__}, and was asked for as a "
                f"{kind.__name__}; give each metric a name of its own"
            )
        return metric


def _reported(count: int) -> int:
    """A count that travels: users also count in fractions and with numpy's numbers, and beyond 64 bits."""
    return max(-_LARGEST, min(int(count), _LARGEST))


def _checked(name: Any, what: str) -> str:
    if not isinstance(name, str) or not name:
        raise ConfigurationError(f"the name of a {what} has to be text, got {name!r}")
    return name
