"""What a task tells of itself: rates, and where its time goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.unit.taskmanager.small_jobs import counting
from tidegate.common.metric_values import (
    BACK_PRESSURED_MS,
    BUSY_MS,
    IDLE_MS,
    NUM_BYTES_IN,
    NUM_BYTES_OUT,
    NUM_RECORDS_IN_RATE,
    CounterValue,
    GaugeValue,
    MeterValue,
)
from tidegate.taskmanager.task_figures import TaskFigures
from tidegate.testing.in_process_job import InProcessJob


def figures() -> tuple[TaskFigures, Any]:
    task: Any = SimpleNamespace(
        can_send=True,
        records_in=0,
        inputs=[],
        out_channels=[],
        subtask=0,
        vertex=SimpleNamespace(vertex_id=0),
        time=SimpleNamespace(watermark=42),
        chain=SimpleNamespace(source=None, operators=[]),
    )
    return TaskFigures(task, 0.0), task


def values(of: TaskFigures) -> dict[str, Any]:
    return {r.name: r.value for r in of.reports()}


def test_a_second_is_split_into_busy_back_pressured_and_idle() -> None:
    told, task = figures()
    told.worked(0.0, 300.0)
    task.can_send = False
    told.waited(300.0)
    told.waited(400.0)
    task.can_send = True
    told.waited(500.0)
    task.records_in = 50
    told.refresh_if_due(999.0)
    assert BUSY_MS not in values(told)  # not before a whole second
    told.refresh_if_due(1000.0)
    found = values(told)
    assert found[BUSY_MS] == GaugeValue(300.0)
    assert found[BACK_PRESSURED_MS] == GaugeValue(200.0)
    assert found[IDLE_MS] == GaugeValue(500.0)
    assert found[NUM_RECORDS_IN_RATE] == MeterValue(50, 50.0)
    assert found["currentInputWatermark"] == GaugeValue(42.0)


def test_back_pressure_that_lasts_is_counted_in_every_second_of_it() -> None:
    told, task = figures()
    task.can_send = False
    told.waited(0.0)
    told.refresh_if_due(1000.0)
    assert values(told)[BACK_PRESSURED_MS] == GaugeValue(1000.0)
    told.refresh_if_due(3000.0)
    assert values(told)[BACK_PRESSURED_MS] == GaugeValue(1000.0)
    told.worked(3000.0, 3000.0)
    told.refresh_if_due(4000.0)
    assert values(told)[IDLE_MS] == GaugeValue(1000.0)


def test_bytes_are_counted_between_slots_and_sent_is_received() -> None:
    with InProcessJob(counting(parallelism=2)) as job:
        job.advance(3000)
        told = [r for slot in job.slots if slot.runtime is not None for r in slot.runtime.metrics]
    counts = {
        name: sum(r.value.count for r in told if r.name == name and isinstance(r.value, CounterValue))
        for name in (NUM_BYTES_IN, NUM_BYTES_OUT)
    }
    assert counts[NUM_BYTES_IN] == counts[NUM_BYTES_OUT] > 0
    rates = [r.value.rate for r in told if r.name == NUM_RECORDS_IN_RATE and isinstance(r.value, MeterValue)]
    assert max(rates) > 50
