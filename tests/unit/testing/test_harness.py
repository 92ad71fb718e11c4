"""Functions under the harness: state, timers, side outputs, two inputs, recovery."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.common import Types
from tidegate.datastream import (
    CoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
)
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing import EPOCH, Harness, Record, TwoInputHarness

LATE = OutputTag("late")
BACKENDS = ["hashmap", "rocksdb"]


class Totals(KeyedProcessFunction):
    """The running total by key, and a timer that tells it again a minute of event time later."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        stamp = ctx.timestamp()
        if stamp is not None and stamp < ctx.timer_service().current_watermark():
            yield LATE, value
            return
        self.total.update((self.total.value() or 0) + value[1])
        if stamp is not None:
            ctx.timer_service().register_event_time_timer(stamp + 60_000)
        yield value[0], self.total.value()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), "timer", self.total.value()


def totals(stream: Any) -> Any:
    return stream.key_by(lambda v: v[0]).process(Totals())


def test_results_come_record_by_record() -> None:
    with Harness(totals) as harness:
        assert harness.process(("a", 1)).output() == [("a", 1)]
        assert harness.process_all(("a", 2), ("b", 5)).output() == [("a", 3), ("b", 5)]
        assert harness.output() == []


def test_event_time_timers_side_outputs_and_timestamps() -> None:
    with Harness(totals, side_outputs=[LATE]) as harness:
        harness.process(("a", 1), 1_000)
        assert harness.records() == [Record(("a", 1), 1_000)]
        assert harness.watermark(60_999).output() == []
        assert harness.watermark(61_000).records() == [Record(("a", "timer", 1), 61_000)]
        harness.process(("a", 9), 5_000)
        assert harness.side_output(LATE) == [("a", 9)]
        with pytest.raises(ValueError, match="side output 'other' is not read"):
            harness.side_output(OutputTag("other"))


class Alarm(KeyedProcessFunction):
    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> None:
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + 5_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp - int(EPOCH)


def test_the_wall_clock_moves_when_the_test_says_so() -> None:
    with Harness(lambda stream: stream.key_by(lambda v: v).process(Alarm())) as harness:
        harness.process("a")
        started = harness.now_ms
        assert harness.advance_time(4_000).output() == []
        [(key, fired)] = harness.advance_time(1_000).output()
        assert key == "a"
        assert fired + int(EPOCH) <= harness.now_ms == started + 5_000


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restart_goes_on_from_the_last_snapshot(backend: str) -> None:
    with Harness(totals, configuration={"state.backend.type": backend}) as harness:
        harness.process(("a", 1), 1_000)
        snapshot = harness.snapshot()
        harness.process(("a", 2), 2_000)
        assert harness.output() == [("a", 1), ("a", 3)]
        harness.restart()
        assert harness.output() == [("a", 3)], "what was fed since the snapshot comes again"
        assert harness.watermark(61_000).output() == [("a", "timer", 3)]
        with Harness(totals, restore=snapshot) as other:
            other.process(("a", 10), 3_000)
            assert other.output() == [("a", 11)]


class Attribute(ProcessFunction):
    def __init__(self) -> None:
        self.count = 0

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[int]:
        self.count += 1
        yield self.count


def test_what_is_kept_in_attributes_is_gone_after_a_restart() -> None:
    with Harness(lambda stream: stream.process(Attribute())) as harness:
        harness.process_all("x", "y")
        harness.snapshot()
        harness.process("z")
        assert harness.output() == [1, 2, 3]
        assert harness.restart().output() == [1]


def test_the_functions_own_exception_comes_out() -> None:
    def fails(value: int) -> int:
        return 1 // value

    with Harness(lambda stream: stream.map(fails)) as harness:
        assert harness.process(1).output() == [1]
        with pytest.raises(ZeroDivisionError):
            harness.process(0)


class Gate(CoProcessFunction):
    def __init__(self) -> None:
        self.open_for: set[str] = set()

    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        if value in self.open_for:
            yield value

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> None:
        self.open_for.add(value)


def test_two_inputs() -> None:
    with TwoInputHarness(lambda left, right: left.connect(right).process(Gate())) as harness:
        assert harness.process("a").output() == []
        harness.process_second("a")
        assert harness.process("a").output() == ["a"]


def test_the_end_of_input_closes_windows_of_event_time() -> None:
    with Harness(totals) as harness:
        harness.process(("a", 1), 1_000)
        assert harness.end_of_input().output() == [("a", 1), ("a", "timer", 1)]


def test_a_builder_that_returns_no_stream_is_told() -> None:
    with pytest.raises(TypeError, match="returns a DataStream"):
        Harness(lambda stream: None)  # type: ignore[arg-type,return-value]
