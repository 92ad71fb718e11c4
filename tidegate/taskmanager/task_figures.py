"""What a task tells of itself: how much it has taken and given, its rates, and where its time goes.

Kept on the mailbox thread, two readings of the clock per slice of work and nothing per record; read by the control
thread, which sends it with the heartbeats.
"""

from __future__ import annotations

from tidegate.common.metric_values import (
    BACK_PRESSURED_MS,
    BUSY_MS,
    IDLE_MS,
    INPUT_QUEUE,
    INPUT_WATERMARK,
    NUM_BYTES_IN,
    NUM_BYTES_OUT,
    NUM_RECORDS_IN,
    NUM_RECORDS_IN_RATE,
    NUM_RECORDS_OUT,
    NUM_RECORDS_OUT_RATE,
    NUM_RECORDS_SEND,
    NUM_RECORDS_SEND_RATE,
    OUTPUT_QUEUE,
    PENDING_RECORDS,
    SOURCE_PROGRESS,
    WATERMARK_LAG,
    CounterValue,
    GaugeValue,
    MeterValue,
    MetricReport,
    MetricValue,
)
from tidegate.network.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.taskmanager.operators.source import SourceOperator
from tidegate.taskmanager.task import Task

_PERIOD_MS = 1000.0  # over which rates and shares are taken


class TaskFigures:
    """After each turn of the task `worked` or `waited`; `refresh_if_due` now and then."""

    def __init__(self, task: Task, now_ms: float) -> None:
        self._task = task
        self.bytes_in = 0
        self._busy_ms = 0.0  # in this period, as the next
        self._blocked_ms = 0.0
        self._blocked_since: float | None = None  # its outputs are full since then
        self._period_began = now_ms
        self._records = (0, 0, 0)  # in, out and to the outside, when the period began
        self._shares: dict[str, MetricValue] = {}  # of the period before; replaced, never changed

    def worked(self, began_ms: float, now_ms: float) -> None:
        self._busy_ms += now_ms - began_ms
        self._unblock(began_ms)

    def waited(self, now_ms: float) -> None:
        """It had nothing to do, or could not."""
        if self._task.can_send:
            self._unblock(now_ms)
        elif self._blocked_since is None:
            self._blocked_since = now_ms

    def _unblock(self, now_ms: float) -> None:
        if self._blocked_since is not None:
            self._blocked_ms += now_ms - self._blocked_since
            self._blocked_since = None

    def refresh_if_due(self, now_ms: float) -> None:
        passed = now_ms - self._period_began
        if passed < _PERIOD_MS:
            return
        if self._blocked_since is not None:
            self._blocked_ms += now_ms - self._blocked_since
            self._blocked_since = now_ms
        busy = min(1000.0, self._busy_ms * 1000 / passed)
        blocked = min(1000.0 - busy, self._blocked_ms * 1000 / passed)
        taken, sent, given = self._task.records_in, self._sent, records_given(self._task)
        before = self._records
        self._shares = {
            NUM_RECORDS_IN_RATE: MeterValue(taken, (taken - before[0]) * 1000 / passed),
            NUM_RECORDS_OUT_RATE: MeterValue(sent, (sent - before[1]) * 1000 / passed),
            BUSY_MS: GaugeValue(round(busy, 1)),
            BACK_PRESSURED_MS: GaugeValue(round(blocked, 1)),
            IDLE_MS: GaugeValue(round(1000.0 - busy - blocked, 1)),
        }
        if given is not None:
            self._shares[NUM_RECORDS_SEND_RATE] = MeterValue(given, (given - before[2]) * 1000 / passed)
        self._shares |= self._of_source(now_ms)
        self._period_began, self._records = now_ms, (taken, sent, given or 0)
        self._busy_ms = self._blocked_ms = 0.0

    def _of_source(self, now_ms: float) -> dict[str, MetricValue]:
        source = self._task.chain.source
        return {} if source is None else figures_of_source(source, now_ms)

    @property
    def _sent(self) -> int:
        return sum(channel.records_out for channel in self._task.out_channels)

    def reports(self) -> list[MetricReport]:
        """From any thread."""
        task = self._task
        values: dict[str, MetricValue] = {
            NUM_RECORDS_IN: CounterValue(task.records_in),
            NUM_RECORDS_OUT: CounterValue(self._sent),
            NUM_BYTES_IN: CounterValue(self.bytes_in),
            NUM_BYTES_OUT: CounterValue(sum(channel.bytes_out for channel in task.out_channels)),
            INPUT_QUEUE: GaugeValue(float(sum(len(channel.queue) for channel in task.inputs))),
            OUTPUT_QUEUE: GaugeValue(float(sum(len(channel.queue) for channel in task.out_channels))),
            **self._shares,
        }
        given = records_given(task)
        if given is not None:
            values[NUM_RECORDS_SEND] = CounterValue(given)
        values |= event_time_of(task)
        return [MetricReport(task.vertex.vertex_id, task.subtask, name, value) for name, value in values.items()]


def records_given(task: Task) -> int | None:
    """To the outside, by its sinks; None when it has none."""
    given = [operator.given for operator in task.chain.operators if operator.given is not None]
    return sum(given) if given else None


def event_time_of(task: Task) -> dict[str, MetricValue]:
    watermark = task.time.watermark
    return {INPUT_WATERMARK: GaugeValue(float(watermark))} if watermark > MIN_WATERMARK else {}


def figures_of_source(source: SourceOperator, now_ms: float) -> dict[str, MetricValue]:
    """How far it has read, as far as it knows."""
    progress, pending = source.figures()
    found: dict[str, MetricValue] = {}
    if progress is not None:
        found[SOURCE_PROGRESS] = GaugeValue(round(progress, 4))
    if pending is not None:
        found[PENDING_RECORDS] = GaugeValue(float(pending))
    if MIN_WATERMARK < source.current_watermark < MAX_WATERMARK:
        found[WATERMARK_LAG] = GaugeValue(round(now_ms - source.current_watermark, 1))
    return found
