"""Event time: timestamps, timers of every kind of keyed function, windows of every kind, triggers, sessions.

The watermark strategies here lag so far behind that event time moves only at the end of the input, once: then the
results are the same whatever the schedule, and whoever runs the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tests.spark.cases.case import ApiCase
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import (
    AggregateFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TimeDomain,
)
from tidegate.datastream.state import MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.window import (
    ContinuousEventTimeTrigger,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    DynamicEventTimeSessionWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    WindowAssigner,
)

Env = StreamExecutionEnvironment
MIN_WATERMARK, MAX_WATERMARK = -(2**63), 2**63 - 1
EVENTS = [("a", 1), ("b", 4), ("a", 12), ("a", 7), ("b", 31), ("a", 58), ("c", 20), ("a", 13)]  # (key, time)
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Stamp(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def stamped(stream: DataStream) -> DataStream:
    late = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_days(1))
    stream.get_execution_environment().get_config().set_auto_watermark_interval(0)  # on a slow machine one would come
    return stream.assign_timestamps_and_watermarks(late.with_timestamp_assigner(Stamp()))


def events(env: Env) -> KeyedStream:
    return stamped(env.from_collection(EVENTS)).key_by(lambda e: e[0])


# -------------------------------------------------------------------- timers
class Reminders(KeyedProcessFunction):
    """A timer a minute after each record; of the records before 10 it is taken back, of 12 it is set twice."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        timers = ctx.timer_service()
        assert timers.current_watermark() == MIN_WATERMARK
        due = ctx.timestamp() + 60  # type: ignore[operator]
        timers.register_event_time_timer(due)
        if value[1] == 12:
            timers.register_event_time_timer(due)
        if value[1] < 10:
            timers.delete_event_time_timer(due)
        timers.register_processing_time_timer(timers.current_processing_time() + 10**9)
        timers.delete_processing_time_timer(timers.current_processing_time() - 1)
        self.count.update((self.count.value() or 0) + 1)
        yield "seen", value[0], value[1]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        if ctx.time_domain() is TimeDomain.EVENT_TIME:  # the others are left over at the end
            assert ctx.timer_service().current_watermark() == MAX_WATERMARK
            assert ctx.timestamp() == timestamp
            yield f"due with {self.count.value()}", ctx.get_current_key(), timestamp


class Pairing(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self._add(value[1], ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self._add(value[1] * 100, ctx)

    def _add(self, value: int, ctx: Any) -> None:
        self.sum.update((self.sum.value() or 0) + value)
        ctx.timer_service().register_event_time_timer(1000)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.sum.value()


class Watch(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.most = runtime_context.get_state(ValueStateDescriptor("most", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> None:
        self.most.update(max(self.most.value() or 0, value[1]))
        ctx.timer_service().register_event_time_timer(1000)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put_all([value])

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Any]:
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        limit = ctx.get_broadcast_state(RULES).get("limit")
        yield ctx.get_current_key(), self.most.value() > limit


def co_process(env: Env) -> DataStream:
    return events(env).connect(events(env)).process(Pairing())


def watch(env: Env) -> DataStream:
    rules = stamped(env.from_collection([("limit", 25)])).broadcast(RULES)
    return events(env).connect(rules).process(Watch())


TIMERS = [
    ApiCase(
        "event_time_timers",
        lambda env: events(env).process(Reminders()),
        [("seen", *e) for e in EVENTS]
        + [("due with 5", "a", 72), ("due with 5", "a", 118), ("due with 5", "a", 73)]
        + [("due with 2", "b", 91), ("due with 1", "c", 80)],
        parallelisms=(2,),
    ),
    ApiCase(
        "timers_of_a_co_process_function",
        co_process,
        [("a", 1000, 91 * 101), ("b", 1000, 35 * 101), ("c", 1000, 20 * 101)],
        parallelisms=(2,),
    ),
    ApiCase("timers_of_a_keyed_broadcast_function", watch, [("a", True), ("b", True), ("c", False)], parallelisms=(2,)),
]


# -------------------------------------------------------------------- windows
class Contents(ProcessWindowFunction[Any, Any, str, Any]):
    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        window = context.window()
        begin = window.start if isinstance(window, TimeWindow) else None
        assert context.current_watermark() in (MIN_WATERMARK, MAX_WATERMARK)
        yield key, begin, sorted(e[1] for e in elements)


class Latest(AggregateFunction):
    def create_accumulator(self) -> tuple[str, int]:
        return "", -1

    def add(self, value: Any, accumulator: Any) -> Any:
        return max(value, accumulator, key=lambda v: v[1])

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return max(acc_a, acc_b, key=lambda v: v[1])


class GapOfKey(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return 10 if element[0] == "a" else 100


class Halves(WindowAssigner[Any, TimeWindow]):
    """The user's own: everything before 15, everything after."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        return [TimeWindow(0, 15) if timestamp < 15 else TimeWindow(15, 1000)]

    def get_default_trigger(self, env: Any) -> Trigger[Any, TimeWindow]:
        return EventTimeTrigger.create()

    def get_window_serializer(self) -> TimeWindowSerializer:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


class AtTheEndOfPairs(Trigger[Any, TimeWindow]):
    """The user's own: at every second record, and at the end."""

    COUNT = ValueStateDescriptor("pairs", Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        count = ctx.get_partitioned_state(self.COUNT)
        count.update((count.value() or 0) + 1)
        return TriggerResult.FIRE_AND_PURGE if count.value() % 2 == 0 else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window: TimeWindow, ctx: Any) -> None: ...

    def clear(self, window: TimeWindow, ctx: Any) -> None:
        ctx.get_partitioned_state(self.COUNT).clear()


def windowed(assigner: Any, trigger: Any = None) -> Any:
    def build(env: Env) -> DataStream:
        stream = events(env).window(assigner)
        if trigger is not None:
            stream = stream.trigger(trigger)
        return stream.allowed_lateness(5).process(Contents())

    return build


def counted(assigner: Any) -> Any:
    return lambda env: env.from_collection([("a", i) for i in range(7)]).key_by(lambda e: e[0]).window(assigner)


def in_windows(size: int, slide: int) -> list[Any]:
    found: dict[Any, list[int]] = {}
    for key, time in EVENTS:
        for start in range(time // slide * slide, time - size, -slide):
            found.setdefault((key, start), []).append(time)
    return [(key, start, sorted(times)) for (key, start), times in found.items()]


TUMBLING = TumblingEventTimeWindows.of(Time.milliseconds(20))
HALVES = [("a", 0, [1, 7, 12, 13]), ("a", 15, [58]), ("b", 0, [4]), ("b", 15, [31]), ("c", 15, [20])]

WINDOWS = [
    ApiCase("tumbling_windows", windowed(TUMBLING), in_windows(20, 20), parallelisms=(1, 2)),
    ApiCase(
        "tumbling_windows_with_an_offset",
        windowed(TumblingEventTimeWindows.of(Time.milliseconds(50), Time.milliseconds(10))),
        [("a", -40, [1, 7]), ("a", 10, [12, 13, 58]), ("b", -40, [4]), ("b", 10, [31]), ("c", 10, [20])],
        parallelisms=(2,),
    ),
    ApiCase(
        "sliding_windows",
        windowed(SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10))),
        in_windows(20, 10),
        parallelisms=(2,),
    ),
    ApiCase(
        "sliding_windows_aggregate",
        lambda env: (
            events(env)
            .window(SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10)))
            .aggregate(Latest(), Contents())
        ),
        [(key, start, times[-1:]) for key, start, times in in_windows(20, 10)],
        parallelisms=(2,),
    ),
    ApiCase(
        "session_windows",
        windowed(EventTimeSessionWindows.with_gap(Time.milliseconds(10))),
        [("a", 1, [1, 7, 12, 13]), ("a", 58, [58]), ("b", 4, [4]), ("b", 31, [31]), ("c", 20, [20])],
        parallelisms=(2,),
    ),
    ApiCase(
        "session_windows_with_dynamic_gaps",
        windowed(DynamicEventTimeSessionWindows.with_dynamic_gap(GapOfKey())),
        [("a", 1, [1, 7, 12, 13]), ("a", 58, [58]), ("b", 4, [4, 31]), ("c", 20, [20])],
        parallelisms=(2,),
    ),
    ApiCase("windows_of_the_user", windowed(Halves()), HALVES, parallelisms=(2,)),
    ApiCase(
        "trigger_of_the_user",
        windowed(Halves(), AtTheEndOfPairs()),
        [("a", 0, [1, 12]), ("a", 0, [7, 13]), *HALVES[1:]],
        parallelisms=(2,),
    ),
    ApiCase(
        "continuous_trigger_at_the_end",
        windowed(Halves(), PurgingTrigger.of(ContinuousEventTimeTrigger.of(Time.milliseconds(100)))),
        HALVES,
        parallelisms=(2,),
    ),
    ApiCase("never_trigger", windowed(GlobalWindows.create(), NeverTrigger()), [], parallelisms=(2,)),
    ApiCase(
        "count_trigger",
        windowed(GlobalWindows.create(), PurgingTrigger.of(CountTrigger.of(1))),
        [(key, None, [time]) for key, time in EVENTS],
        parallelisms=(2,),
    ),
    ApiCase(
        "count_windows",
        lambda env: counted(CountTumblingWindowAssigner.of(3))(env).reduce(lambda a, b: (a[0], a[1] + b[1])),
        [("a", 3), ("a", 12)],
        parallelisms=(2,),
    ),
    ApiCase(
        "sliding_count_windows",
        lambda env: counted(CountSlidingWindowAssigner.of(4, 2))(env).reduce(lambda a, b: (a[0], a[1] + b[1])),
        [("a", 6), ("a", 14)],
        parallelisms=(2,),
    ),
    ApiCase(
        "windows_of_all_records",
        lambda env: (
            stamped(env.from_collection(EVENTS))
            .window_all(TUMBLING)
            .allowed_lateness(5)
            .reduce(lambda a, b: ("all", max(a[1], b[1])))
        ),
        [("all", 13), ("all", 31), ("a", 58)],
        parallelisms=(2,),
    ),
]

CASES = [*TIMERS, *WINDOWS]
