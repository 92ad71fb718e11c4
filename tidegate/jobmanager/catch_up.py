"""How long a job takes to be back where it was after a failure: the downtime, and then the catch-up (R5).

While the job was down its input went on. How far it is behind is told by its sources: by the records that wait outside
(`pendingRecords`), or, where no reader knows that, by how far event time is behind the clock (`watermarkLag`). It has
caught up when it is no further behind than it was before the failure; one that fails again before that has the first
failure still to make good, and the time of both is when it is back. Where the sources know neither there is no
telling. All of it is seen through the heartbeats, so to about a second.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidegate.common.metric_values import (
    NUM_RECORDS_IN_RATE,
    PENDING_RECORDS,
    WATERMARK_LAG,
    GaugeValue,
    MeterValue,
    MetricReport,
)

_KEPT = 20  # as many as failures are kept
_SLACK_MS = 1000.0


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far the sources are behind."""

    measure: str  # name of the metric
    value: float  # records, or ms
    slack: float  # so much more is no difference: what comes in about a second


class RecoveryView(msgspec.Struct, frozen=True, kw_only=True):
    """One failure and what came after it. Times are ms since the epoch."""

    attempt: int  # that failed
    failed_ms: float
    running_ms: float | None = None  # the job ran again, maybe after more failures; None: not yet, or never
    caught_up_ms: float | None = None  # it was where it was before; None: not yet, or there is no telling
    lag_before: Lag | None = None  # None: there is no telling

    @property
    def catch_up_ms(self) -> float | None:
        """Since it ran again. Failures that came before it was over, and their downtime, are part of it."""
        if self.running_ms is None or self.caught_up_ms is None:
            return None
        return self.caught_up_ms - self.running_ms


class RecoveryWatch:
    """The first recovery and the latest ones. `look` is called with what is about to be published, by one thread."""

    def __init__(self) -> None:
        self._kept: list[RecoveryView] = []  # oldest first, at most _KEPT, attempts strictly increasing
        self._before: Lag | None = None  # the latest while the job was where it belongs

    def look(
        self, failed: tuple[int, float] | None, running: bool, attempt: int, metrics: Iterable[MetricReport], now: float
    ) -> tuple[RecoveryView, ...]:
        """`failed`: the latest failure so far, its attempt and when; `attempt`: the current one."""
        if failed is not None and (not self._kept or self._kept[-1].attempt < failed[0]):
            self._kept.append(RecoveryView(attempt=failed[0], failed_ms=failed[1], lag_before=self._before))
            if len(self._kept) > _KEPT:
                del self._kept[1]
        latest = self._kept[-1] if self._kept else None
        if not running or (latest is not None and attempt <= latest.attempt):
            return tuple(self._kept)
        lag = lag_of(metrics)
        if latest is None or latest.caught_up_ms is not None or latest.lag_before is None:
            self._before = lag or self._before
        if latest is not None:
            self._kept = [_further(_running(recovery, now), lag, now) for recovery in self._kept]
        return tuple(self._kept)


def _running(recovery: RecoveryView, now: float) -> RecoveryView:
    return recovery if recovery.running_ms is not None else msgspec.structs.replace(recovery, running_ms=now)


def _further(recovery: RecoveryView, lag: Lag | None, now: float) -> RecoveryView:
    before = recovery.lag_before
    if recovery.caught_up_ms is not None or lag is None or before is None or lag.measure != before.measure:
        return recovery
    if lag.value > before.value + max(before.slack, lag.slack):
        return recovery
    return msgspec.structs.replace(recovery, caught_up_ms=now)


def lag_of(metrics: Iterable[MetricReport]) -> Lag | None:
    """Over all sources: the sum of what waits, or the largest distance to the clock."""
    pending: list[float] = []
    behind: list[float] = []
    rates: dict[tuple[int, int], float] = {}
    sources: set[tuple[int, int]] = set()
    for metric in metrics:
        value = metric.value
        if metric.operator:
            continue
        if isinstance(value, GaugeValue) and value.value is not None:
            if metric.name == PENDING_RECORDS:
                pending.append(value.value)
                sources.add((metric.vertex, metric.subtask))
            elif metric.name == WATERMARK_LAG:
                behind.append(value.value)
        elif isinstance(value, MeterValue) and metric.name == NUM_RECORDS_IN_RATE:
            rates[metric.vertex, metric.subtask] = value.rate
    if pending:
        return Lag(measure=PENDING_RECORDS, value=sum(pending), slack=sum(rates.get(s, 0.0) for s in sources))
    if behind:
        return Lag(measure=WATERMARK_LAG, value=max(behind), slack=_SLACK_MS)
    return None
