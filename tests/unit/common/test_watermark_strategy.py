from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from tidegate.common import Duration, TimestampAssigner, WatermarkGenerator, WatermarkStrategy
from tidegate.common.errors import ConfigurationError
from tidegate.common.watermark_strategy import AlignmentGroup, AssignerWithPeriodicWatermarksWrapper, WatermarkKind


class Output:
    def __init__(self) -> None:
        self.watermarks: list[int] = []

    def emit_watermark(self, timestamp: int) -> None:
        self.watermarks.append(timestamp)

    def mark_idle(self) -> None: ...

    def mark_active(self) -> None: ...


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def test_builders_return_new_strategies() -> None:
    base = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    built = (
        base.with_timestamp_assigner(SecondField())
        .with_idleness(Duration.of_minutes(1))
        .with_watermark_alignment("group", Duration.of_seconds(10))
    )
    assert base == WatermarkStrategy(WatermarkKind.BOUNDED_OUT_OF_ORDERNESS, out_of_orderness_ms=5000)
    assert built.out_of_orderness_ms == 5000
    assert built.idleness_ms == 60_000
    assert built.alignment == AlignmentGroup("group", 10_000, 1000)
    assert built.timestamp_assigner is not None
    assert built.timestamp_assigner.extract_timestamp(("a", 7), -1) == 7


def test_a_callable_is_an_assigner() -> None:
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda value, ts: value + ts)
    assert strategy.timestamp_assigner is not None
    assert strategy.timestamp_assigner.extract_timestamp(1, 2) == 3


def test_bounded_and_monotonous_watermarks() -> None:
    for strategy, wanted in (
        (WatermarkStrategy.for_bounded_out_of_orderness(10), 89),
        (WatermarkStrategy.for_monotonous_timestamps(), 99),
    ):
        generator, output = strategy.create_generator(), Output()
        generator.on_periodic_emit(output)
        assert output.watermarks == []
        for timestamp in (50, 100, 70):
            generator.on_event("e", timestamp, output)
        generator.on_periodic_emit(output)
        assert output.watermarks == [wanted]


def test_no_watermarks() -> None:
    generator, output = WatermarkStrategy.no_watermarks().create_generator(), Output()
    generator.on_event("e", 5, output)
    generator.on_periodic_emit(output)
    assert output.watermarks == []


class Punctuated(WatermarkGenerator):
    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        if event == "end":
            output.emit_watermark(event_timestamp)

    def on_periodic_emit(self, output: Any) -> None: ...


def test_a_generator_of_ones_own() -> None:
    strategy = cloudpickle.loads(cloudpickle.dumps(WatermarkStrategy.for_generator(Punctuated)))
    generator, output = strategy.create_generator(), Output()
    generator.on_event("x", 1, output)
    generator.on_event("end", 2, output)
    assert output.watermarks == [2]


def test_the_old_style_assigner() -> None:
    class Periodic:
        highest = None

        def extract_timestamp(self, value: int, record_timestamp: int) -> int:
            self.highest = value
            return value

        def get_current_watermark(self) -> int | None:
            return self.highest

    strategy = AssignerWithPeriodicWatermarksWrapper(Periodic()).to_watermark_strategy()
    strategy = cloudpickle.loads(cloudpickle.dumps(strategy))
    generator, output = strategy.create_generator(), Output()
    generator.on_periodic_emit(output)
    strategy.timestamp_assigner.extract_timestamp(5, -1)
    generator.on_periodic_emit(output)
    assert output.watermarks == [5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: WatermarkStrategy.for_bounded_out_of_orderness(-1),
        lambda: WatermarkStrategy.for_bounded_out_of_orderness("5 s"),  # type: ignore[arg-type]
        lambda: WatermarkStrategy.no_watermarks().with_idleness(0),
        lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(3),  # type: ignore[arg-type]
        lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("g", 1, 0),
        lambda: WatermarkStrategy.for_generator(3),  # type: ignore[arg-type]
        lambda: AssignerWithPeriodicWatermarksWrapper(object()),
    ],
)
def test_wrong_arguments_are_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()
