"""What the API takes and refuses, at the call or before anything is started."""

from __future__ import annotations

import datetime
import io
import threading
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import Ticks, environment
from tests.unit.windows.test_window_functions import AllValues, Count, Elements
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.common.errors import ConfigurationError, JobGraphError, SerializationError
from tidegate.datastream import KeyedStream, OutputTag, ProcessFunction
from tidegate.datastream.connectors import NumberSequenceSource
from tidegate.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    CountWindowSerializer,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    GlobalWindowSerializer,
    MergingWindowAssigner,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowOperationDescriptor,
)
from tidegate.graph.picklability import check_picklable
from tidegate.testing.in_process_job import graph_of

sec = Time.seconds
STAMPED = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, t: v)


def keyed(strategy: WatermarkStrategy | None = STAMPED) -> KeyedStream:
    stream = environment().from_collection([1, 2, 3], Types.INT())
    if strategy is not None:
        stream = stream.assign_timestamps_and_watermarks(strategy)
    return stream.key_by(lambda v: v % 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingEventTimeWindows.of(sec(0)), "the size has to be more than 0"),
        (lambda: TumblingEventTimeWindows.of(sec(-1)), "the size must not be negative"),
        (lambda: TumblingProcessingTimeWindows.of(sec(1), sec(1)), r"offset \(1000 ms\) has to lie between"),
        (lambda: SlidingEventTimeWindows.of(sec(1), sec(0)), "the slide has to be more than 0"),
        (lambda: SlidingEventTimeWindows.of(sec(1), sec(-2)), "the slide must not be negative"),
        (lambda: SlidingEventTimeWindows.of(sec(1), sec(2)), r"the slide \(2000 ms\) is greater than the size"),
        (lambda: SlidingProcessingTimeWindows.of(sec(2), sec(1), sec(-1)), "has to lie between -1000 and 1000 ms"),
        (lambda: EventTimeSessionWindows.with_gap(sec(0)), "the gap has to be more than 0"),
        (lambda: ProcessingTimeSessionWindows.with_gap(sec(-1)), "the gap must not be negative"),
        (lambda: CountTumblingWindowAssigner.of(0), "the window size has to be more than 0"),
        (lambda: CountSlidingWindowAssigner.of(2, 3), r"the slide \(3\) is greater than the size \(2\)"),
        (lambda: CountTrigger.of(0), "at least 1"),
        (lambda: ContinuousEventTimeTrigger.of(sec(0)), "more than 0 ms"),
        (lambda: ContinuousProcessingTimeTrigger.of(sec(-1)), "must not be negative"),
        (lambda: keyed().window(TumblingEventTimeWindows.of(sec(1))).allowed_lateness(-1), "must not be negative"),
        (lambda: keyed().count_window(-1), "more than 0"),
        (
            lambda: keyed().window(EventTimeSessionWindows.with_gap(1)).trigger(NeverTrigger()),
            "cannot be used with the merging",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused_at_the_call(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keyed().window(TumblingEventTimeWindows), "takes a window assigner.*make one"),
        (lambda: keyed().window(5), "takes a window assigner"),
        (lambda: keyed().window_all("minute"), "window_all: takes a window assigner"),
        (lambda: keyed().count_window(2).trigger(CountTrigger), "trigger: takes a trigger"),
        (lambda: keyed().count_window(2).side_output_late_data("late"), "takes an OutputTag"),
        (
            lambda: keyed().count_window(2).process(AllValues()),
            "takes a ProcessWindowFunction, got the AllWindowFunction",
        ),
        (
            lambda: keyed().count_window(2).apply(Elements()),
            r"takes a WindowFunction.*use key_by\(...\).window\(...\).process",
        ),
        (lambda: keyed().count_window(2).aggregate(lambda a, b: a), "takes an AggregateFunction"),
        (lambda: keyed().count_window(2).reduce(Count()), "takes a ReduceFunction or a plain function"),
        (lambda: keyed().count_window(2).reduce(max, AllValues()), "the window function"),
        (lambda: keyed().window_all(GlobalWindows.create()).process(Elements()), "takes a ProcessAllWindowFunction"),
        (lambda: PurgingTrigger.of(CountTrigger), "takes a trigger"),
        (lambda: EventTimeSessionWindows.with_dynamic_gap(5), "takes a SessionWindowTimeGapExtractor"),
    ],
)
def test_functions_of_the_wrong_kind_are_refused_at_the_call(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_lengths_of_time_in_any_form() -> None:
    for minute in (Time.minutes(1), Duration.of_minutes(1), datetime.timedelta(minutes=1), 60_000):
        assert repr(TumblingEventTimeWindows.of(minute)) == "TumblingEventTimeWindows(60000, 0)"
    assert repr(TumblingEventTimeWindows.of(Time.days(1), datetime.timedelta(hours=-8))).endswith(", -28800000)")


def test_windows_are_compared_by_value_and_have_a_binary_form() -> None:
    assert TimeWindow(0, 10) == TimeWindow(0, 10) != TimeWindow(0, 11)
    assert TimeWindow(0, 10) < TimeWindow(0, 11) < TimeWindow(1, 2)
    assert TimeWindow(0, 10).intersects(TimeWindow(10, 20))
    assert not TimeWindow(0, 10).intersects(TimeWindow(11, 20))
    assert TimeWindow(5, 10).cover(TimeWindow(0, 7)) == TimeWindow(0, 10)
    assert TimeWindow.get_window_start_with_offset(-1, 0, 10) == -10
    assert TimeWindow.get_window_start_with_offset(7, -3, 10) == 7
    assert (TimeWindow(0, 10).max_timestamp(), GlobalWindow.get().max_timestamp()) == (9, 2**63 - 1)
    for serializer, window in (
        (TimeWindowSerializer(), TimeWindow(-5, 10**13)),
        (CountWindowSerializer(), CountWindow(7)),
        (GlobalWindowSerializer(), GlobalWindow.get()),
    ):
        stream = io.BytesIO()
        serializer.serialize(window, stream)
        stream.seek(0)
        back = serializer.deserialize(stream)
        assert (back, type(back)) == (window, type(window))


def test_merging_calls_back_for_groups_only() -> None:
    found: list[Any] = []

    class Callback(MergingWindowAssigner.MergeCallback[TimeWindow]):
        def merge(self, to_be_merged: Any, merge_result: TimeWindow) -> None:
            found.append((sorted(to_be_merged), merge_result))

    a, b, c, d = TimeWindow(0, 5), TimeWindow(5, 9), TimeWindow(20, 30), TimeWindow(40, 50)
    TimeWindow.merge_windows([c, b, a, c, d], Callback())
    assert found == [([a, b], TimeWindow(0, 9))]


def test_trigger_results() -> None:
    assert [(r.is_fire(), r.is_purge()) for r in (TriggerResult.FIRE, TriggerResult.PURGE)] == [
        (True, False),
        (False, True),
    ]
    assert TriggerResult.FIRE_AND_PURGE.is_fire()
    assert not TriggerResult.CONTINUE.is_purge()


def test_a_window_operation_describes_itself() -> None:
    assigner = TumblingEventTimeWindows.of(sec(1))
    operation = WindowOperationDescriptor(assigner, EventTimeTrigger(), 0, None, None, None, None)  # type: ignore[arg-type]
    assert operation.generate_op_name() == "TumblingEventTimeWindows"
    expected = "Window(TumblingEventTimeWindows(1000, 0), EventTimeTrigger, Sum)"
    assert operation.generate_op_desc("Window", "Sum") == expected


def test_a_windowed_stream_knows_where_it_comes_from() -> None:
    stream = keyed()
    windowed = stream.window(TumblingEventTimeWindows.of(sec(1)))
    assert windowed.get_execution_environment() is stream.get_execution_environment()
    assert windowed.get_input_type() == Types.INT()
    assert windowed.reduce(max).get_type() == Types.INT()
    assert windowed.reduce(max).get_name() == "TumblingEventTimeWindows"


def test_windows_of_a_whole_stream_run_in_one_subtask() -> None:
    env = environment(parallelism=4)
    source = env.from_source(NumberSequenceSource(1, 9), STAMPED, "n")
    source.window_all(TumblingEventTimeWindows.of(sec(1))).reduce(max).print()
    vertex = next(v for v in graph_of(env).vertices if "Tumbling" in v.name)
    assert vertex.parallelism == 1


# ---------------------------------------------------------------- before anything is started


def windows_of(stream: Any) -> Any:
    stream.key_by(lambda v: v).window(TumblingEventTimeWindows.of(sec(1))).reduce(max).name("per second").print()
    return stream


class Passes(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


NO_TIME = WatermarkStrategy.no_watermarks()
WITHOUT = WatermarkStrategy.for_monotonous_timestamps()


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda env: env.from_collection([1]), "Collection"),
        (lambda env: env.from_source(NumberSequenceSource(1, 9), NO_TIME, "n").map(lambda v: v), "'Source: n'"),
        (lambda env: env.from_source(NumberSequenceSource(1, 9), WITHOUT, "n").process(Passes()), "'Source: n'"),
        (lambda env: env.from_collection([1]).assign_timestamps_and_watermarks(WITHOUT), "Collection"),
        (lambda env: env.from_collection([1]).union(env.from_source(NumberSequenceSource(1, 2), NO_TIME, "n")), "and"),
    ],
)
def test_an_event_time_window_that_could_never_fire_is_refused(build: Any, named: str) -> None:
    env = environment()
    windows_of(build(env))
    with pytest.raises(
        JobGraphError, match=rf"window 'per second' never fires.*{named}.*assign_timestamps_and_watermarks"
    ):
        graph_of(env)


@pytest.mark.parametrize(
    "build",
    [
        lambda env: env.from_collection([1]).assign_timestamps_and_watermarks(STAMPED).map(lambda v: v),
        lambda env: env.from_source(NumberSequenceSource(1, 9), STAMPED, "n"),
        lambda env: env.from_source(Ticks(count=3), NO_TIME, "may have its own"),
        lambda env: env.from_collection([1]).union(env.from_source(NumberSequenceSource(1, 2), STAMPED, "n")),
        lambda env: env.from_collection([1]).key_by(lambda v: v).count_window(1).reduce(max),
    ],
)
def test_an_event_time_window_whose_records_may_have_timestamps_is_not_refused(build: Any) -> None:
    env = environment()
    windows_of(build(env))
    graph_of(env)


def test_windows_without_event_time_need_no_timestamps() -> None:
    env = environment()
    env.from_collection([1]).key_by(lambda v: v).window(TumblingProcessingTimeWindows.of(sec(1))).reduce(max).print()
    graph_of(env)


def test_a_global_window_without_a_trigger_is_pointed_out() -> None:
    with pytest.warns(UserWarning, match=r"GlobalWindows\(\) without a trigger never emits anything"):
        keyed().window(GlobalWindows.create()).reduce(max)


def test_what_cannot_be_shipped_is_named() -> None:
    class Locked(EventTimeTrigger[Any]):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    env = environment()
    stream = env.from_source(NumberSequenceSource(1, 9), STAMPED, "n").key_by(lambda v: v)
    windowed = stream.window(TumblingEventTimeWindows.of(sec(1))).trigger(Locked())
    windowed.side_output_late_data(OutputTag("late")).reduce(max).print()
    with pytest.raises(SerializationError, match=r"its trigger .*Locked.* 'lock'"):
        check_picklable(graph_of(env))
