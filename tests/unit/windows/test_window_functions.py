"""What window functions, triggers and assigners of a program see: state, timers, contexts, timestamps, errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from tests.unit.windows.script_job import LATE, START, Mark, Record, Wait, run_script
from tidegate.common import JobStatus, Time, Types
from tidegate.datastream import (
    AggregateFunction,
    AllWindowFunction,
    KeyedProcessFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    TimeWindow,
    Trigger,
    TriggerResult,
    Window,
    WindowAssigner,
)
from tidegate.datastream.state import AggregatingStateDescriptor, ListStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import (
    CountSlidingWindowAssigner,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeWindowSerializer,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tidegate.testing.in_process_job import InProcessJob

ms = Time.milliseconds


def key(record: Record) -> str:
    return record.key


def values(records: Iterable[Record]) -> list[int]:
    return [r.value for r in records]


def total(a: Record, b: Record) -> Record:
    return Record(a.key, a.value + b.value, max(a.stamp, b.stamp))


class Stamps(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        yield value, ctx.timestamp()


def test_results_have_the_last_timestamp_of_their_window(backend: dict[str, Any]) -> None:
    steps = [Record("a", 1, 3), Record("a", 2, 12), Mark(40)]
    tumbling = TumblingEventTimeWindows.of(ms(10))
    outcome = run_script(
        steps, lambda s: s.key_by(key).window(tumbling).reduce(total).process(Stamps()), config=backend
    )
    assert outcome.results == [(Record("a", 1, 3), 9), (Record("a", 2, 12), 19)]


class Visits(ProcessWindowFunction[Any, Any, str, Window]):
    """How often the window has fired, and how often all windows of the key."""

    cleared: list[Any] = []

    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterable[Any]:
        of_window = context.window_state().get_state(ValueStateDescriptor("count", Types.INT()))
        of_key = context.global_state().get_state(ValueStateDescriptor("count", Types.INT()))
        of_window.update((of_window.value() or 0) + 1)
        of_key.update((of_key.value() or 0) + 1)
        yield key, context.window().start, of_window.value(), of_key.value(), context.current_watermark()

    def clear(self, context: Any) -> None:
        state = context.window_state().get_state(ValueStateDescriptor("count", Types.INT()))
        Visits.cleared.append((context.window().start, state.value()))
        state.clear()


@pytest.mark.parametrize("incremental", [False, True])
def test_state_per_window_and_per_key_and_clear(backend: dict[str, Any], incremental: bool) -> None:
    Visits.cleared = []
    steps = [Record("a", 1, 3), Record("a", 1, 13), Mark(9), Record("a", 2, 4), Mark(12), Record("a", 3, 5), Mark(30)]

    def windows(stream: Any) -> Any:
        windowed = stream.key_by(key).window(TumblingEventTimeWindows.of(ms(10))).allowed_lateness(5)
        return windowed.reduce(total, Visits()) if incremental else windowed.process(Visits())

    assert run_script(steps, windows, config=backend).results == [
        ("a", 0, 1, 1, 9),
        ("a", 0, 2, 2, 9),
        ("a", 0, 3, 3, 12),
        ("a", 10, 1, 4, 30),
    ]
    assert Visits.cleared == [(0, 3), (10, 1)]


@pytest.mark.parametrize(
    "assigner", [TumblingEventTimeWindows.of(ms(10)), SlidingEventTimeWindows.of(ms(10), ms(5))], ids=repr
)
def test_clear_is_called_once_for_every_window_that_is_aggregated_as_records_come(assigner: Any) -> None:
    Visits.cleared = []
    steps = [Record("a", 1, 3), Record("a", 1, 7), Record("a", 1, 33), Mark(100)]
    outcome = run_script(steps, lambda s: s.key_by(key).window(assigner).reduce(total, Visits()))
    fired = [(start, 1) for _, start, *_ in outcome.results]
    assert sorted(Visits.cleared) == sorted(fired)
    assert len(set(fired)) == len(fired)


def test_sessions_have_no_state_per_window() -> None:
    with pytest.raises(AssertionError, match=r"no state per window for windows that merge .* use global_state"):
        run_script(
            [Record("a", 1, 1)],
            lambda s: s.key_by(key).window(EventTimeSessionWindows.with_gap(ms(5))).process(Visits()),
        )


class AllValues(AllWindowFunction[Any, Any, Window]):
    def apply(self, window: Any, inputs: Iterable[Record]) -> Iterable[Any]:
        yield window.start, sorted(values(inputs))


class AllProcess(ProcessAllWindowFunction[Any, Any, Window]):
    def process(self, context: Any, elements: Iterable[Record]) -> Iterable[Any]:
        yield context.window().start, sorted(values(elements))


@pytest.mark.parametrize("how", ["apply", "process"])
def test_windows_of_a_whole_stream(how: str) -> None:
    steps = [Record("a", 1, 1), Record("b", 2, 2), Record("c", 3, 11)]
    function = AllValues() if how == "apply" else AllProcess()

    def windows(stream: Any) -> Any:
        windowed = stream.key_by(key).window_all(TumblingEventTimeWindows.of(ms(10)))
        return getattr(windowed, how)(function)

    assert sorted(run_script(steps, windows, parallelism=2).results) == [(0, [1, 2]), (10, [3])]


def test_the_whole_stream_reduced_needs_no_function() -> None:
    steps = [Record("a", 1, 1), Record("b", 2, 2), Record("c", 3, 11)]
    outcome = run_script(steps, lambda s: s.window_all(TumblingEventTimeWindows.of(ms(10))).reduce(total))
    assert values(outcome.results) == [3, 3]


def test_count_windows_are_dropped_when_they_are_full(backend: dict[str, Any]) -> None:
    Visits.cleared = []

    class Plain(ProcessWindowFunction[Any, Any, str, Window]):
        def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterable[Any]:
            yield values(elements)

        def clear(self, context: Any) -> None:
            Visits.cleared.append(context.window().id)

    steps = [Record("a", i) for i in range(7)]
    outcome = run_script(steps, lambda s: s.key_by(key).count_window(3, 2).process(Plain()), config=backend)
    assert outcome.results == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert Visits.cleared == [0, 1, 2]


def test_late_records_are_counted_when_nobody_takes_them() -> None:
    from tests.unit.taskmanager.small_jobs import environment
    from tests.unit.windows.script_job import MarkGenerator, Script
    from tidegate.common import WatermarkStrategy
    from tidegate.datastream.connectors import CollectSink

    env = environment()
    steps = [Record("a", 1, 1), Mark(50), Record("a", 2, 2), Record("a", 3, 49), Record("a", 4, 51), Wait(5)]
    source = env.from_source(Script(steps), WatermarkStrategy.no_watermarks(), "script")
    stream = source.assign_timestamps_and_watermarks(WatermarkStrategy.for_generator(MarkGenerator))
    windowed = stream.filter(lambda r: isinstance(r, Record)).key_by(key).window(TumblingEventTimeWindows.of(ms(10)))
    windowed.reduce(total).sink_to(CollectSink())
    with InProcessJob(env) as job:
        job.run()
        operator = next(o for t in job.slots[0].runtime.tasks for o in t.chain.operators if "Tumbling" in o.name)
        assert operator.runtime_context.get_metrics_group().counter("numLateRecordsDropped").get_count() == 2
        assert job.run_to_end() is JobStatus.FINISHED
        assert values(job.results) == [1, 4]


class ShortSession(EventTimeTrigger[Any]):
    """Fires at once when a session holds three elements; counts in an aggregating and a list state."""

    def __init__(self) -> None:
        self.count = AggregatingStateDescriptor("count", Count())
        self.seen = ListStateDescriptor("seen")

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        count: Any = ctx.get_partitioned_state(self.count)
        count.add(element)
        ctx.get_partitioned_state(self.seen).add(element.value)
        if count.get() >= 3:
            assert len(list(ctx.get_partitioned_state(self.seen).get())) == count.get()
            return TriggerResult.FIRE
        return super().on_element(element, timestamp, window, ctx)

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        super().on_merge(window, ctx)
        ctx.merge_partitioned_state(self.count)
        ctx.merge_partitioned_state(self.seen)

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        super().clear(window, ctx)
        ctx.get_partitioned_state(self.count).clear()
        ctx.get_partitioned_state(self.seen).clear()


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Elements(ProcessWindowFunction[Any, Any, str, Window]):
    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterable[Any]:
        yield tuple(context.window()), sorted(values(elements))


def test_state_of_a_trigger_is_merged_with_its_windows(backend: dict[str, Any]) -> None:
    steps = [Record("a", 1, 0), Record("a", 2, 20), Record("a", 3, 10)]  # the third joins the first two
    outcome = run_script(
        steps,
        lambda s: (
            s.key_by(key).window(EventTimeSessionWindows.with_gap(ms(10))).trigger(ShortSession()).process(Elements())
        ),
        config=backend,
    )
    assert outcome.results == [((0, 30), [1, 2, 3]), ((0, 30), [1, 2, 3])]


class EvenAndOdd(WindowAssigner[Any, TimeWindow]):
    """Odd values are in no window."""

    def assign_windows(self, element: Record, timestamp: int, context: Any) -> Collection[TimeWindow]:
        return (
            [] if element.value % 2 else [TimeWindow(timestamp, timestamp + 10), TimeWindow(timestamp, timestamp + 20)]
        )

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger()

    def get_window_serializer(self) -> Any:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


def test_an_assigner_of_the_programs_own() -> None:
    steps = [Record("a", 1, 1), Record("a", 2, 2), Mark(5), Record("a", 3, 4), Record("a", 3, 7)]
    outcome = run_script(
        steps,
        lambda s: s.key_by(key).window(EvenAndOdd()).side_output_late_data(LATE).process(Elements()),
        with_late=True,
    )
    assert outcome.results == [((2, 12), [2]), ((2, 22), [2])]
    assert outcome.late == [Record("a", 3, 4)]  # in no window, and too old for any


class LoudReduce(ReduceFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.opened = True

    def reduce(self, value1: Record, value2: Record) -> Record:
        assert self.opened
        return total(value1, value2)


def test_both_functions_of_an_incremental_window_are_opened() -> None:
    steps = [Record("a", 1, 1), Record("a", 2, 2)]
    outcome = run_script(
        steps, lambda s: s.key_by(key).window(TumblingEventTimeWindows.of(ms(10))).reduce(LoudReduce(), Elements())
    )
    assert outcome.results == [((0, 10), [3])]


def test_what_is_open_when_bounded_input_ends() -> None:
    """Event-time windows fire; processing-time and count windows do not, as in Flink."""
    steps = [Record("a", 1, 1), Record("a", 2, 2)]

    def results(windows: Any, trigger: Any = None) -> list[Any]:
        def build(stream: Any) -> Any:
            windowed = stream.key_by(key).window(windows)
            return (windowed if trigger is None else windowed.trigger(trigger)).process(Elements())

        return run_script(steps, build).results

    assert results(TumblingEventTimeWindows.of(ms(10))) == [((0, 10), [1, 2])]
    assert results(TumblingProcessingTimeWindows.of(ms(10))) == []
    assert results(CountSlidingWindowAssigner(3, 1)) == []
    assert results(GlobalWindows.create(), CountTrigger.of(3)) == []
    assert results(GlobalWindows.create(), EventTimeTrigger.create()) == [((), [1, 2])]


def test_processing_time_trigger_on_event_time_windows() -> None:
    steps = [Record("a", 1, 1), Record("a", 2, START + 3), Wait(30), Record("b", 1, 1)]
    outcome = run_script(
        steps,
        lambda s: (
            s.key_by(key)
            .window(TumblingEventTimeWindows.of(ms(10)))
            .trigger(PurgingTrigger.of(ProcessingTimeTrigger.create()))
            .process(Elements())
        ),
        rest_ms=1,
    )
    assert outcome.results == [((0, 10), [1]), ((START, START + 10), [2]), ((0, 10), [1])]


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        (
            lambda w: w.reduce(lambda a, b: a.nothing),
            r"'TumblingEventTimeWindows' .*on record Record\(key='a', value=2",
        ),
        (
            lambda w: w.trigger(BadTrigger()).reduce(total),
            r"trigger BadTrigger returned None instead of a TriggerResult",
        ),
        (lambda w: w.process(BadProcess()), r"failed in process\(\)"),
    ],
)
def test_errors_say_where(windows: Any, message: str) -> None:
    steps = [Record("a", 1, 1), Record("a", 2, 2)]
    with pytest.raises(AssertionError, match=message):
        run_script(steps, lambda s: windows(s.key_by(key).window(TumblingEventTimeWindows.of(ms(10)))))


class BadTrigger(EventTimeTrigger[Any]):
    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        return None


class BadProcess(ProcessWindowFunction[Any, Any, str, Window]):
    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterable[Any]:
        raise ValueError("no")


class LateTimer(KeyedProcessFunction):
    """A timer far ahead for every record."""

    def process_element(self, value: Record, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(1000 + value.value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp
