"""What a micro-batch job shows of its work: over all batches what adds up, of the latest one what does not."""

from __future__ import annotations

from tidegate.common.metric_values import (
    BUSY_MS,
    IDLE_MS,
    NUM_RECORDS_IN_RATE,
    NUM_RECORDS_SEND,
    PENDING_RECORDS,
    CounterValue,
    GaugeValue,
    HistogramValue,
    MeterValue,
    MetricReport,
    MetricValue,
)
from tidegate.spark.micro_batch.progress import Totals
from tidegate.spark.micro_batch.report import BatchReport, TaskReport


def batch(number: int, records: int, took_ms: float, *metrics: MetricReport) -> BatchReport:
    task = TaskReport(0, 0, records, 0, records, False, True, took_ms=took_ms, metrics=metrics)
    return BatchReport(number, [task])


def of_function(name: str, value: MetricValue) -> MetricReport:
    return MetricReport(0, 0, name, value, "op", ("Map", "0"))


def values(totals: Totals) -> dict[str, MetricValue]:
    return {metric.name: metric.value for metric in totals.metrics()}


def test_functions_begin_anew_with_each_batch_and_their_metrics_do_not() -> None:
    totals = Totals()
    for number, (count, low, high) in enumerate([(2, 1.0, 9.0), (3, 4.0, 20.0)]):
        totals.add(
            batch(
                number,
                10,
                100,
                of_function("counted", CounterValue(count)),
                of_function("marked", MeterValue(count, 1e9)),
                of_function("sizes", HistogramValue(count, 12.0, low, high)),
                of_function("level", GaugeValue(float(count))),
            ),
            0,
            1000.0 * (number + 1),
        )
    found = values(totals)
    assert found["counted"] == CounterValue(5)
    assert found["marked"] == MeterValue(5, 3.0)  # three in the second since the batch before
    assert found["sizes"] == HistogramValue(5, 24.0, 1.0, 20.0)
    assert found["level"] == GaugeValue(3.0)


def test_rates_are_over_the_time_between_batches() -> None:
    totals = Totals()
    totals.add(batch(0, 50, 100), 800, 1000)
    assert values(totals)[NUM_RECORDS_IN_RATE] == MeterValue(50, 250.0)
    pending = MetricReport(0, 0, PENDING_RECORDS, GaugeValue(7.0))
    totals.add(batch(1, 10, 500, pending), 2500, 3000)
    found = values(totals)
    assert found[NUM_RECORDS_IN_RATE] == MeterValue(60, 5.0)
    assert (found[BUSY_MS], found[IDLE_MS]) == (GaugeValue(250.0), GaugeValue(750.0))
    assert (found[NUM_RECORDS_SEND], found[PENDING_RECORDS]) == (CounterValue(60), GaugeValue(7.0))
