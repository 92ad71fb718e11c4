"""The average temperature of each sensor over the last minute, every twenty seconds, with late readings on the side.

Run it:  python examples/windowed_average.py
Readings come out of order by up to ten seconds; one comes far too late for its windows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegate.common import Duration, Time, WatermarkStrategy
from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput
from tidegate.datastream import (
    AggregateFunction,
    DataStream,
    OutputTag,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    TimeWindow,
)
from tidegate.datastream.window import SlidingEventTimeWindows

OUT_OF_ORDER = Duration.of_seconds(10)
LATE = OutputTag("late")


class Reading(NamedTuple):
    sensor: str
    time: int  # ms
    degrees: float


class Average(AggregateFunction):
    """(sum, count). `merge` is what lets a reading be stored once, though it is in three windows."""

    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: Reading, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value.degrees, accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] / accumulator[1], accumulator[1]

    def merge(self, acc_a: tuple[float, int], acc_b: tuple[float, int]) -> tuple[float, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Report(ProcessWindowFunction[tuple[float, int], str, str, TimeWindow]):
    """Gets the average of a window, and says whose and when."""

    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple[float, int]]
    ) -> Iterator[str]:
        ((average, count),) = elements
        window = context.window()
        yield f"{window.start // 1000:4} s to {window.end // 1000:4} s  {key}: {average:5.1f} degrees, {count} readings"


class BehindTheNewest(WatermarkGenerator):
    """What `WatermarkStrategy.for_bounded_out_of_orderness` does, but at every reading rather than every 200 ms: in a
    stream as short as this one nothing would ever be late."""

    def on_event(self, event: Reading, event_timestamp: int, output: WatermarkOutput) -> None:
        output.emit_watermark(event_timestamp - OUT_OF_ORDER.to_milliseconds() - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


def readings() -> list[Reading]:
    chance = random.Random(7)
    all_readings = [
        Reading(sensor, second * 1000, round(chance.gauss(mean, 1.0), 1))
        for second in range(0, 120, 5)
        for sensor, mean in (("kitchen", 21.0), ("garden", 9.0))
    ]
    all_readings.sort(key=lambda reading: reading.time + chance.randrange(9000))
    return [*all_readings, Reading("garden", 3000, 99.9)]


def build(env: StreamExecutionEnvironment) -> DataStream[str]:
    strategy = WatermarkStrategy.for_generator(BehindTheNewest).with_timestamp_assigner(lambda reading, _: reading.time)
    averages = (
        env.from_collection(readings())
        .assign_timestamps_and_watermarks(strategy)
        .key_by(lambda reading: reading.sensor)
        .window(SlidingEventTimeWindows.of(Time.minutes(1), Time.seconds(20)))
        .side_output_late_data(LATE)
        .aggregate(Average(), Report())
        .uid("averages")
    )
    too_late = averages.get_side_output(LATE).map(lambda reading: f"too late: {reading}")
    return averages.union(too_late)


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    for line in sorted(build(env).execute_and_collect("Windowed average")):
        print(line)


if __name__ == "__main__":
    main()
