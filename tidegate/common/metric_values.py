"""What a metric was worth at one moment: a value with its type, and where in the job it comes from.

They travel from the slots to the driver with the heartbeats and are part of the published view of a job.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

NUM_RECORDS_IN = "numRecordsIn"
NUM_RECORDS_OUT = "numRecordsOut"  # to other tasks; a record that goes to several counts as often
NUM_RECORDS_IN_RATE = "numRecordsInPerSecond"
NUM_RECORDS_OUT_RATE = "numRecordsOutPerSecond"
NUM_BYTES_IN = "numBytesIn"  # from other slots, as the next is to them: within a slot nothing is serialised
NUM_BYTES_OUT = "numBytesOut"
BUSY_MS = "busyTimeMsPerSecond"
BACK_PRESSURED_MS = "backPressuredTimeMsPerSecond"  # outputs that are full hold the task up
IDLE_MS = "idleTimeMsPerSecond"  # the rest of a second: no input, or the slot's thread was with its other tasks
INPUT_WATERMARK = "currentInputWatermark"  # of a source: what it has sent
PENDING_RECORDS = "pendingRecords"  # of a source: that wait outside, where its readers know
WATERMARK_LAG = "watermarkLag"  # of a source: by how much its watermark is behind the clock, in ms
SOURCE_PROGRESS = "sourceProgress"  # of a bounded source: share of its input that was read, from 0 to 1
INPUT_QUEUE = "inputQueueLength"  # batches and control elements
OUTPUT_QUEUE = "outputQueueLength"
NUM_RECORDS_SEND = "numRecordsSend"  # of tasks with sinks: records that these were given
NUM_RECORDS_SEND_RATE = "numRecordsSendPerSecond"


class CounterValue(msgspec.Struct, frozen=True, tag="counter"):
    count: int


class GaugeValue(msgspec.Struct, frozen=True, tag="gauge"):
    value: float | None  # None only in what was read from JSON, which has no NaN and no infinity


class MeterValue(msgspec.Struct, frozen=True, tag="meter"):
    count: int
    rate: float  # events per second


class HistogramValue(msgspec.Struct, frozen=True, tag="histogram"):
    count: int
    total: float = 0.0
    minimum: float | None = None  # None before the first value, as the maximum
    maximum: float | None = None


MetricValue = CounterValue | GaugeValue | MeterValue | HistogramValue


class MetricReport(msgspec.Struct, frozen=True):
    """One metric of one subtask."""

    vertex: int
    subtask: int
    name: str  # Flink's, where Flink has such a metric
    value: MetricValue
    operator: str = ""  # operator id; "": a metric of the whole task
    scope: tuple[str, ...] = ()  # of an operator's metric: operator name, subtask, then the user's groups


def added(one: MetricValue, other: MetricValue) -> MetricValue | None:
    """Both together, with the rate of both; None where there is no such thing: for gauges, and for two kinds."""
    match one, other:
        case CounterValue(count), CounterValue(more):
            return CounterValue(count + more)
        case MeterValue(count, rate), MeterValue(more, as_well):
            return MeterValue(count + more, rate + as_well)
        case HistogramValue(), HistogramValue():
            lowest = [v for v in (one.minimum, other.minimum) if v is not None]
            highest = [v for v in (one.maximum, other.maximum) if v is not None]
            return HistogramValue(
                one.count + other.count,
                one.total + other.total,
                min(lowest, default=None),
                max(highest, default=None),
            )
        case _:
            return None


def numbers_of(name: str, value: MetricValue) -> Iterator[tuple[str, float]]:
    """A value as plain numbers with a name each: `events` and `events.rate` of a meter, for example."""
    match value:
        case CounterValue(count):
            yield name, float(count)
        case GaugeValue(number):
            if number is not None:
                yield name, number
        case MeterValue(count, rate):
            yield name, float(count)
            yield f"{name}.rate", rate
        case HistogramValue(count, total, minimum, maximum):
            yield f"{name}.count", float(count)
            if minimum is not None and maximum is not None:
                yield f"{name}.sum", total
                yield f"{name}.min", minimum
                yield f"{name}.max", maximum
                yield f"{name}.mean", total / count
