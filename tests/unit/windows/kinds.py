"""The kinds of windows under test, each with its model; and the ways to evaluate a window, which all have to agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.unit.windows import reference_model as model
from tests.unit.windows.script_job import LATE, Record, Step
from tidegate.common import Time
from tidegate.datastream import (
    AggregateFunction,
    DataStream,
    ProcessWindowFunction,
    WindowedStream,
    WindowFunction,
)
from tidegate.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CountWindow,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Window,
    WindowAssigner,
)

ms = Time.milliseconds


class GapByValue(SessionWindowTimeGapExtractor):
    def extract(self, element: Record) -> int:
        return gap_by_value(first_value(element))


def gap_by_value(value: int) -> int:
    return 3 + value % 4 * 4


def first_value(element: Record) -> int:
    return element.value[0] if isinstance(element.value, tuple) else element.value


@dataclass(frozen=True)
class Kind:
    name: str
    assigner: Callable[[], WindowAssigner[Any, Any]]
    expected: Callable[[Sequence[Step]], model.Model]
    trigger: Any = None
    lateness: int = 0
    rest_ms: int = 0

    def windows(self, stream: DataStream, style: str) -> DataStream:
        if style in ("reduce", "reduce and process"):
            stream = stream.map(_as_tuple).set_parallelism(1)
        windowed = stream.key_by(_key).window(self.assigner()).allowed_lateness(self.lateness)
        windowed = windowed.side_output_late_data(LATE)
        if self.trigger is not None:
            windowed = windowed.trigger(self.trigger)
        return STYLES[style](windowed)


def span(window: Window) -> object:
    if isinstance(window, TimeWindow):
        return window.start, window.end
    return window.id if isinstance(window, CountWindow) else "global"


def _key(record: Record) -> str:
    return record.key


def _as_tuple(record: Record) -> Record:
    return record._replace(value=(record.value,))


def _together(a: Record, b: Record) -> Record:
    return Record(a.key, a.value + b.value, max(a.stamp, b.stamp))


class Values(AggregateFunction):
    """Keeps everything, in accumulators that it changes in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Record, accumulator: list[int]) -> list[int]:
        accumulator.append(value.value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        acc_a.extend(acc_b)
        return acc_a


class WithoutMerge(Values):
    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        raise NotImplementedError


class Process(ProcessWindowFunction[Any, Any, str, Window]):
    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterable[Any]:
        yield key, span(context.window()), [e.value for e in elements]


class Apply(WindowFunction[Any, Any, str, Window]):
    def apply(self, key: str, window: Window, inputs: Iterable[Record]) -> Iterable[Any]:
        return [(key, span(window), [e.value for e in inputs])]


class OfReduced(ProcessWindowFunction[Any, Any, str, Window]):
    def process(self, key: str, context: Any, elements: Iterable[Record]) -> Iterable[Any]:
        (only,) = elements
        yield key, span(context.window()), list(only.value)


class OfAggregated(WindowFunction[Any, Any, str, Window]):
    def apply(self, key: str, window: Window, inputs: Iterable[list[int]]) -> Iterable[Any]:
        (only,) = inputs
        yield key, span(window), list(only)


STYLES: dict[str, Callable[[WindowedStream], DataStream]] = {
    "process": lambda w: w.process(Process()),
    "apply": lambda w: w.apply(Apply()),
    "reduce and process": lambda w: w.reduce(_together, OfReduced()),
    "aggregate and apply": lambda w: w.aggregate(Values(), OfAggregated()),
}
WITHOUT_MERGE = {"aggregate without merge": lambda w: w.aggregate(WithoutMerge(), OfAggregated())}
STYLES |= WITHOUT_MERGE

EVENT_TIME = [
    Kind("tumbling", lambda: TumblingEventTimeWindows.of(ms(10)), lambda s: model.event_time(s, model.tumbling(10))),
    Kind(
        "tumbling with an offset",
        lambda: TumblingEventTimeWindows.of(ms(10), ms(-3)),
        lambda s: model.event_time(s, model.tumbling(10, -3)),
    ),
    Kind(
        "tumbling with lateness",
        lambda: TumblingEventTimeWindows.of(ms(10)),
        lambda s: model.event_time(s, model.tumbling(10), lateness=12),
        lateness=12,
    ),
    Kind(
        "sliding",
        lambda: SlidingEventTimeWindows.of(ms(12), ms(4)),
        lambda s: model.event_time(s, model.sliding(12, 4)),
    ),
    Kind(
        "sliding, slices shorter than the slide",
        lambda: SlidingEventTimeWindows.of(ms(10), ms(4), ms(1)),
        lambda s: model.event_time(s, model.sliding(10, 4, 1)),
    ),
    Kind(
        "sliding with lateness",
        lambda: SlidingEventTimeWindows.of(ms(10), ms(4), ms(1)),
        lambda s: model.event_time(s, model.sliding(10, 4, 1), lateness=9),
        lateness=9,
    ),
    Kind(
        "purging",
        lambda: TumblingEventTimeWindows.of(ms(10)),
        lambda s: model.event_time(s, model.tumbling(10), lateness=12, purge=True),
        trigger=PurgingTrigger.of(EventTimeTrigger.create()),
        lateness=12,
    ),
    Kind(
        "continuous",
        lambda: TumblingEventTimeWindows.of(ms(20)),
        lambda s: model.event_time(s, model.tumbling(20), interval=6),
        trigger=ContinuousEventTimeTrigger.of(ms(6)),
    ),
    Kind(
        "continuous and sliding, with lateness",
        lambda: SlidingEventTimeWindows.of(ms(20), ms(10)),
        lambda s: model.event_time(s, model.sliding(20, 10), lateness=7, interval=6),
        trigger=ContinuousEventTimeTrigger.of(ms(6)),
        lateness=7,
    ),
    Kind("sessions", lambda: EventTimeSessionWindows.with_gap(ms(5)), lambda s: model.sessions(s, lambda v: 5)),
    Kind(
        "sessions with lateness",
        lambda: EventTimeSessionWindows.with_gap(ms(5)),
        lambda s: model.sessions(s, lambda v: 5, lateness=10),
        lateness=10,
    ),
    Kind(
        "sessions with a gap per record",
        lambda: EventTimeSessionWindows.with_dynamic_gap(GapByValue()),
        lambda s: model.sessions(s, gap_by_value, lateness=3),
        lateness=3,
    ),
]
COUNTED = [
    Kind("count", lambda: CountTumblingWindowAssigner.of(3), lambda s: model.counts(s, 3, 3)),
    Kind("sliding count", lambda: CountSlidingWindowAssigner.of(4, 3), lambda s: model.counts(s, 4, 3)),
    Kind(
        "global, every third",
        lambda: GlobalWindows.create(),
        lambda s: model.every_nth(s, 3, purge=False),
        trigger=CountTrigger.of(3),
    ),
    Kind(
        "global, every third, purged",
        lambda: GlobalWindows.create(),
        lambda s: model.every_nth(s, 3, purge=True),
        trigger=PurgingTrigger.of(CountTrigger.of(3)),
    ),
    Kind("never", lambda: TumblingEventTimeWindows.of(ms(10)), lambda s: model.never(s, 10), trigger=NeverTrigger()),
]
# The clock of the scripts moves in even steps, so that nothing is due in the very moment in which a record comes.
PROCESSING_TIME = [
    Kind(
        "tumbling by the clock",
        lambda: TumblingProcessingTimeWindows.of(ms(10)),
        lambda s: model.processing_time(s, model.tumbling(10), rest_ms=13),
        rest_ms=13,
    ),
    Kind(
        "sliding by the clock",
        lambda: SlidingProcessingTimeWindows.of(ms(12), ms(4)),
        lambda s: model.processing_time(s, model.sliding(12, 4), rest_ms=9),
        rest_ms=9,
    ),
    Kind(
        "continuous by the clock",
        lambda: TumblingProcessingTimeWindows.of(ms(20)),
        lambda s: model.processing_time(s, model.tumbling(20), rest_ms=13, interval=6),
        trigger=ContinuousProcessingTimeTrigger.of(ms(6)),
        rest_ms=13,
    ),
    Kind(
        "sessions by the clock",
        lambda: ProcessingTimeSessionWindows.with_gap(ms(5)),
        lambda s: model.processing_time_sessions(s, lambda v: 5, rest_ms=4),
        rest_ms=4,
    ),
    Kind(
        "sessions by the clock with a gap per record",
        lambda: ProcessingTimeSessionWindows.with_dynamic_gap(GapByValue()),
        lambda s: model.processing_time_sessions(s, gap_by_value, rest_ms=4),
        rest_ms=4,
    ),
]
