"""Random jobs with event time: watermarks, timers, windows. Two sorts, whose results do not depend on the schedule.

*Scripted*: one split, one subtask up to the windows, punctuated watermarks. Records and watermarks reach the windows in
one order only, so that everything is known beforehand: late records, early firings, firings of each trigger. What they
have to give is what the reference model of the unit tests says.

*Free*: any graph, any exchange. The out-of-orderness of each split is within the bound of its strategy, so that no
record may ever be late, and what the windows hold when they fire is known. A split that is declared idle makes records
late, so with idleness nothing but the end of time is relied on.

At least once, free jobs have windows and timers whose totals can only become too high: what is read again after a
failure may come late, and may be counted twice, but nothing may be missing. (A count or a session of records that come
twice is another one, so there are none.)
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation import functions as f
from tests.simulation.functions import Hash, Record
from tests.simulation.outside_world import Ident, current
from tests.simulation.random_job import JobBuilder, RandomJob, _Stream
from tests.unit.windows import script_job as script
from tests.unit.windows.kinds import COUNTED, EVENT_TIME, STYLES, WITHOUT_MERGE, Kind
from tidegate.common import Duration, Time
from tidegate.common.watermark_strategy import (
    TimestampAssigner,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from tidegate.datastream.functions import (
    AggregateFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tidegate.datastream.time_domain import TimeDomain
from tidegate.datastream.window import (
    CountTrigger,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)

ms = Time.milliseconds
CHECKSUM = Hash(100_003, 5)
END_OF_TIME = 2**62
RESULTS = 1000  # idents of results begin with this or more

# ---------------------------------------------------------------- scripted jobs


@dataclass(frozen=True)
class Item:
    """What a record of a scripted source is made into: a record of a key, then perhaps a watermark."""

    key: int
    value: int
    stamp: int
    mark: int | None


class ItemTime(TimestampAssigner):
    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def extract_timestamp(self, value: Record, record_timestamp: int) -> int:
        return self._items[value[0][2]].stamp


class ItemMarks(WatermarkGenerator):
    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def on_event(self, event: Record, event_timestamp: int, output: WatermarkOutput) -> None:
        mark = self._items[event[0][2]].mark
        if mark is not None:
            output.emit_watermark(mark)

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


class ToItem(MapFunction):
    def __init__(self, items: list[Item]) -> None:
        self._items = items

    def map(self, value: Record) -> script.Record:
        current().on_record()
        item = self._items[value[0][2]]
        return script.Record(item.key, item.value, item.stamp)  # type: ignore[arg-type]


class FromResult(MapFunction):
    """(key, window, values) of a scripted job, as a record."""

    def __init__(self, number: int) -> None:
        self._number = number

    def map(self, value: Any) -> Record:
        current().on_record()
        return result_ident(self._number, *value), ()


class FromLate(MapFunction):
    def __init__(self, number: int) -> None:
        self._number = number

    def map(self, value: script.Record) -> Record:
        current().on_record()
        return late_ident(self._number, value), ()


def item_key(item: script.Record) -> Any:
    return item.key


class PastTimers(KeyedProcessFunction):
    """A timer at the time of each record, which may be over: then it waits for the next watermark."""

    def __init__(self, number: int) -> None:
        self._number = number

    def open(self, runtime_context: Any) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: script.Record, ctx: Any) -> None:
        current().on_record()
        self._seen.update((self._seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Record]:
        yield (self._number, ctx.get_current_key(), timestamp, self._seen.value()), ()


def result_ident(number: int, key: int, window: Any, values: list[int]) -> Ident:
    place = window if isinstance(window, tuple) else (-1 if window == "global" else window, 0)
    return (number, key, *place, *sorted(values))


def late_ident(number: int, late: script.Record) -> Ident:
    value: Any = late.value
    return (number, late.key, value[0] if isinstance(value, tuple) else value)


# ---------------------------------------------------------------- free jobs


@dataclass(frozen=True)
class TimeOf(TimestampAssigner):
    """Event time of a record: even, and `jitter` around its place in the split."""

    step: int
    jitter: int

    def of(self, ident: Ident) -> int:
        return 2 * (ident[2] * self.step + CHECKSUM.of(ident[:3]) % (self.jitter + 1))

    def extract_timestamp(self, value: Record, record_timestamp: int) -> int:
        return self.of(value[0])

    @property
    def bound(self) -> int:
        return 2 * self.jitter


class NowAndThen(WatermarkGenerator):
    """Punctuated: after some of the records, what none of those to come can be before."""

    def __init__(self, time: TimeOf) -> None:
        self._time = time

    def on_event(self, event: Record, event_timestamp: int, output: WatermarkOutput) -> None:
        ident = event[0]
        if CHECKSUM.of(ident[:3]) % 3 == 0:
            output.emit_watermark(2 * (ident[2] + 1) * self._time.step - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...


Content = tuple[int, int]  # how many records, and the sum of their checksums


def content_of(ident: Ident) -> Content:
    return 1, CHECKSUM.of(ident)


def both(a: Content, b: Content) -> Content:
    return a[0] + b[0], a[1] + b[1]


class Contents(AggregateFunction):
    def create_accumulator(self) -> Content:
        return 0, 0

    def add(self, value: Record, accumulator: Content) -> Content:
        current().on_record()
        return both(accumulator, content_of(value[0]))

    def get_result(self, accumulator: Content) -> Content:
        return accumulator

    def merge(self, acc_a: Content, acc_b: Content) -> Content:
        return both(acc_a, acc_b)


def with_content(value: Record) -> Any:
    return (*value, content_of(value[0]))


def add_contents(a: Any, b: Any) -> Any:
    return a[0], a[1], both(a[2], b[2])


class KeyOf:
    """The key of a record that may have been made longer."""

    def __init__(self, key: Hash) -> None:
        self._key = key

    def __call__(self, value: Any) -> int:
        return self._key.of(value[0])


class OfElements(ProcessWindowFunction):
    def __init__(self, number: int) -> None:
        self._number = number

    def process(self, key: int, context: Any, elements: Iterable[Record]) -> Iterable[Record]:
        total = (0, 0)
        for ident, _ in elements:
            current().on_record()
            total = both(total, content_of(ident))
        yield window_result(self._number, key, context.window(), total)


class OfContent(WindowFunction):
    def __init__(self, number: int) -> None:
        self._number = number

    def apply(self, key: int, window: Any, inputs: Iterable[Any]) -> Iterable[Record]:
        (only,) = inputs
        total = only[2] if len(only) == 3 else only
        yield window_result(self._number, key, window, total)


def window_result(number: int, key: int, window: Any, total: Content) -> Record:
    start = getattr(window, "start", None)
    place = (start, window.end) if start is not None else (getattr(window, "id", -1), 0)
    # Which records a window by count holds depends on the schedule.
    return (number, key, *place, total[0], total[1] if start is not None else 0), ()


STYLES_OF_FREE: dict[str, Callable[[Any, Hash, int], Any]] = {
    "process": lambda w, key, number: w.process(OfElements(number)),
    "aggregate": lambda w, key, number: w.aggregate(Contents(), OfContent(number)),
    "reduce": lambda w, key, number: w.reduce(add_contents, OfContent(number)),
}


class EventTimers(KeyedProcessFunction):
    """Tumbling windows made by hand. For each there is a timer one later, which the first deletes, and one before that
    is deleted at once."""

    def __init__(self, number: int, size: int, in_time: bool) -> None:
        self._number = number
        self._size = size
        self._in_time = in_time  # no record may be late

    def open(self, runtime_context: Any) -> None:
        self._totals = runtime_context.get_map_state(MapStateDescriptor("totals"))
        self._last = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value: Record, ctx: Any) -> None:
        current().on_record()
        timers, stamp = ctx.timer_service(), ctx.timestamp()
        if self._in_time and stamp <= timers.current_watermark():
            current().break_promise(f"{value[0]} of {stamp} comes at watermark {timers.current_watermark()}")
        end = stamp - stamp % self._size + self._size - 1
        content = content_of(value[0])
        before = self._totals.get(end)
        self._totals.put(end, content if before is None else both(before, content))
        for time in (end - 1, end, end + 1):
            timers.register_event_time_timer(time)
        timers.delete_event_time_timer(end - 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Record]:
        last, watermark = self._last.value(), ctx.timer_service().current_watermark()
        if timestamp % self._size != self._size - 1:
            current().break_promise(f"the timer {timestamp} was deleted, and fires")
        if timestamp > watermark or (self._in_time and last is not None and last >= timestamp):
            current().break_promise(f"timer {timestamp} fires after {last} at watermark {watermark}")
        self._last.update(timestamp)
        total = self._totals.get(timestamp)
        self._totals.remove(timestamp)
        ctx.timer_service().delete_event_time_timer(timestamp + 1)
        yield (self._number, ctx.get_current_key(), timestamp, *total), ()


class Buffer(KeyedProcessFunction):
    """Keeps records until a processing-time timer lets them go; what is left goes at the end of time."""

    def open(self, runtime_context: Any) -> None:
        self._held = runtime_context.get_list_state(ListStateDescriptor("held"))

    def process_element(self, value: Record, ctx: Any) -> None:
        current().on_record()
        timers = ctx.timer_service()
        self._held.add(value)
        timers.register_processing_time_timer(timers.current_processing_time() + CHECKSUM(value) % 5)
        timers.register_event_time_timer(END_OF_TIME)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Record]:
        now = ctx.timer_service().current_processing_time()
        if ctx.time_domain() is TimeDomain.PROCESSING_TIME and timestamp > now:
            current().break_promise(f"a timer for {timestamp} fires at {now}")
        held = list(self._held.get())
        self._held.clear()
        return held


class TimeJobBuilder(JobBuilder):
    scripted = 0.4  # share of the jobs
    idle = 0.2  # share of the free jobs that have idle splits
    past_timers = 0.3  # share of the scripted streams that have timers instead of windows

    def __init__(self, rng: random.Random, size: int = 3, max_parallelism: int = 3) -> None:
        super().__init__(rng, size, max_parallelism)
        self._scripted = rng.random() < self.scripted
        self._idleness = rng.choice((1, 3)) if not self._scripted and rng.random() < self.idle else None
        self._time = TimeOf(rng.randint(1, 4), rng.choice((0, 3, 10)))
        self._scripts: dict[int, list[Item]] = {}

    def build(self) -> RandomJob:
        self._scripted &= not self.at_least_once
        return dataclasses.replace(super().build(), watermark_interval_ms=self._rng.choice((0.5, 1.0, 2.0, 5.0)))

    def _number(self) -> int:
        self._names += 1
        return RESULTS + self._names

    # ------------------------------------------------------------ sources
    def _source(self, number: int) -> _Stream:
        rng = self._rng
        if self._scripted:
            lengths: tuple[int, ...] = (rng.randint(5, 40),)
            items = self._scripts[number] = self._script(lengths[0])
            strategy = WatermarkStrategy.for_generator(partial(ItemMarks, items))
            strategy = strategy.with_timestamp_assigner(ItemTime(items))
        else:
            lengths = tuple(rng.randint(0, 50 if self._long else 20) for _ in range(rng.randint(1, 3)))
            strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(self._time.bound))
            if rng.random() < 0.3:
                strategy = WatermarkStrategy.for_generator(partial(NowAndThen, self._time))
            strategy = strategy.with_timestamp_assigner(self._time)
            if self._idleness is not None:
                strategy = strategy.with_idleness(Duration.of_millis(self._idleness))
        parallelism = 1 if self._scripted else rng.randint(1, self._widest)
        # One split per subtask: watermarks may as well be made behind the source.
        behind = len(lengths) <= parallelism and rng.random() < 0.4
        at_source = WatermarkStrategy.no_watermarks() if behind else strategy
        source = f.SimSource(number, lengths, self._pause_rate)
        stream = self._env.from_source(source, at_source, f"source{number}").set_parallelism(parallelism)
        if behind:
            stream = stream.assign_timestamps_and_watermarks(strategy).set_parallelism(parallelism)
            if rng.random() < 0.5:
                stream.disable_chaining()
        idents = Counter((number, split, i) for split, n in enumerate(lengths) for i in range(n))
        self._note(f"source{number} p={parallelism}: {len(idents)} records, time {self._time}, behind: {behind}")
        return _Stream(stream, parallelism, idents, {number: ()})

    def _script(self, length: int) -> list[Item]:
        """Out of order by more than the watermarks allow."""
        rng = self._rng
        items = []
        for i in range(length):
            mark = 2 * i - rng.randint(0, 8) if rng.random() < 0.3 else None
            items.append(Item(rng.randint(0, 2), 4 * i + rng.randint(0, 3), 2 * i + rng.randint(-12, 12), mark))
        return items

    # ------------------------------------------------------------ the graph
    def _grow(self, streams: list[_Stream]) -> None:
        if not self._scripted:
            super()._grow(streams)
            return
        stream = streams.pop(0)
        streams.append(self._after(stream, stream.stream.map(f.PassOn()), "map"))

    def _count_by_key(self, s: _Stream) -> _Stream:
        return s if self._scripted else super()._count_by_key(s)

    def _union(self, a: _Stream, b: _Stream) -> _Stream:
        if not self._scripted:
            return super()._union(a, b)
        self._sink(a)  # two inputs have no order
        return b

    def _sink(self, s: _Stream) -> None:
        rng = self._rng
        if self._scripted and rng.random() < self.past_timers:
            super()._sink(self._timers_of_the_past(s))
        elif self._scripted:
            for stream in self._scripted_windows(s):
                super()._sink(stream)
        elif self._idleness is not None or rng.random() < 0.2:
            super()._sink(self._buffer(s))
        elif rng.random() < 0.3:
            super()._sink(self._event_timers(s))
        else:
            super()._sink(self._windows(s))

    # ------------------------------------------------------------ scripted
    def _scripted_windows(self, s: _Stream) -> list[_Stream]:
        rng = self._rng
        source = next(iter(s.order))
        items = self._scripts[source]
        kind: Kind = rng.choice(EVENT_TIME + COUNTED)
        style = rng.choice([x for x in STYLES if not ("sessions" in kind.name and x in WITHOUT_MERGE)])
        parallelism, number, late = rng.randint(1, self._widest), self._number(), self._number()
        records = s.stream.map(ToItem(items)).set_parallelism(1)
        results = kind.windows(records, style).set_parallelism(parallelism)
        steps: list[script.Step] = []
        for item in items:
            steps.append(script.Record(item.key, item.value, item.stamp))  # type: ignore[arg-type]
            if item.mark is not None:
                steps.append(script.Mark(item.mark))
        expected = kind.expected(steps)
        self._note(f"windows: {kind.name}, {style}, p={parallelism}")
        fired = Counter(result_ident(number, *result) for result in expected.results)  # type: ignore[arg-type]
        too_late = Counter(late_ident(late, record) for record in expected.late)
        after = results.map(FromResult(number)).set_parallelism(parallelism)
        aside = results.get_side_output(script.LATE).map(FromLate(late)).set_parallelism(parallelism)
        return [_Stream(after, parallelism, fired, {}), _Stream(aside, parallelism, too_late, {})]

    def _timers_of_the_past(self, s: _Stream) -> _Stream:
        items, number, parallelism = self._scripts[next(iter(s.order))], self._number(), self._rng.randint(1, 3)
        records = s.stream.map(ToItem(items)).set_parallelism(1)
        after = records.key_by(item_key).process(PastTimers(number)).set_parallelism(parallelism)
        self._note(f"timers of the past, p={parallelism}")
        seen: Counter[int] = Counter()
        waiting: set[tuple[int, int]] = set()
        watermark = -END_OF_TIME
        expected: Counter[Ident] = Counter()
        for item in (*items, Item(0, 0, 0, END_OF_TIME)):
            if item.mark != END_OF_TIME:
                seen[item.key] += 1
                waiting.add((item.key, item.stamp))
            if item.mark is not None and item.mark > watermark:
                watermark = item.mark
                due = {(key, time) for key, time in waiting if time <= watermark}
                waiting -= due
                expected.update((number, key, time, seen[key]) for key, time in due)
        return _Stream(after, parallelism, expected, {})

    # ------------------------------------------------------------ free
    def _buffer(self, s: _Stream) -> _Stream:
        key = self._hash(self._keys())
        s = self._key(s, key)
        after = self._after(s, s.stream.key_by(key).process(Buffer()), "buffer")
        return _Stream(after.stream, after.parallelism, after.idents, dict.fromkeys(after.order))

    def _event_timers(self, s: _Stream) -> _Stream:
        key, number, size = self._hash(self._keys()), self._number(), self._rng.choice((3, 10, 25))
        s = self._key(s, key)
        timers = EventTimers(number, size, in_time=not self.at_least_once)
        after = self._after(s, s.stream.key_by(key).process(timers), f"timers every {size}")
        totals: dict[tuple[int, int], Content] = {}
        for ident in s.idents.elements():
            stamp = self._time.of(ident)
            place = key.of(ident), stamp - stamp % size + size - 1
            totals[place] = both(totals.get(place, (0, 0)), content_of(ident))
        expected = Counter((number, *place, *total) for place, total in totals.items())
        return _Stream(after.stream, after.parallelism, expected, {}, 3)

    def _windows(self, s: _Stream) -> _Stream:
        rng, key, number = self._rng, self._hash(self._keys()), self._number()
        style = rng.choice(list(STYLES_OF_FREE))
        stream = s.stream
        if style == "reduce":
            stream = stream.map(with_content).set_parallelism(s.parallelism)
        s = self._key(_Stream(stream, s.parallelism, s.idents, s.order), key)
        by_key: dict[int, list[Ident]] = {}
        for ident in s.idents.elements():
            by_key.setdefault(key.of(ident), []).append(ident)
        kinds = ("tumbling", "sliding", "sessions", "sessions", "count", "global")
        what = rng.choice(kinds[:2] if self.at_least_once else kinds)
        windowed, expected = getattr(self, f"_{what}")(s.stream.key_by(KeyOf(key)), by_key, number)
        if what in ("tumbling", "sliding", "sessions"):
            windowed = windowed.allowed_lateness(rng.choice((0, 0, 7)))
        results = STYLES_OF_FREE[style](windowed, key, number)
        after = self._after(s, results, f"{what} {style}")
        return _Stream(after.stream, after.parallelism, expected, {}, 4 if what in ("tumbling", "sliding") else 0)

    def _tumbling(self, keyed: Any, by_key: dict[int, list[Ident]], number: int) -> tuple[Any, Counter[Ident]]:
        size = self._rng.choice((3, 10, 25))
        return keyed.window(TumblingEventTimeWindows.of(ms(size))), self._spans(by_key, number, size, size)

    def _sliding(self, keyed: Any, by_key: dict[int, list[Ident]], number: int) -> tuple[Any, Counter[Ident]]:
        size, slide = self._rng.choice(((12, 4), (10, 4), (25, 10)))
        windows = SlidingEventTimeWindows.of(ms(size), ms(slide))
        return keyed.window(windows), self._spans(by_key, number, size, slide)

    def _spans(self, by_key: dict[int, list[Ident]], number: int, size: int, slide: int) -> Counter[Ident]:
        totals: dict[tuple[int, int, int], Content] = {}
        for key, idents in by_key.items():
            for ident in idents:
                stamp = self._time.of(ident)
                start = stamp - stamp % slide
                while start > stamp - size:
                    place = key, start, start + size
                    totals[place] = both(totals.get(place, (0, 0)), content_of(ident))
                    start -= slide
        return Counter((number, *place, *total) for place, total in totals.items())

    def _sessions(self, keyed: Any, by_key: dict[int, list[Ident]], number: int) -> tuple[Any, Counter[Ident]]:
        gap = self._rng.choice((3, 7, 15))  # odd: the end of a session is never the beginning of another
        expected: Counter[Ident] = Counter()
        for key, idents in by_key.items():
            start = end = 0
            total: Content = (0, 0)
            for ident in sorted(idents, key=self._time.of):
                stamp = self._time.of(ident)
                if total[0] and stamp > end:
                    expected[number, key, start, end, *total] += 1
                    total = (0, 0)
                start = stamp if not total[0] else start
                end, total = stamp + gap, both(total, content_of(ident))
            expected[number, key, start, end, *total] += 1
        return keyed.window(EventTimeSessionWindows.with_gap(ms(gap))), expected

    def _count(self, keyed: Any, by_key: dict[int, list[Ident]], number: int) -> tuple[Any, Counter[Ident]]:
        size = self._rng.randint(1, 4)
        expected = Counter(
            (number, key, window, 0, size, 0) for key, idents in by_key.items() for window in range(len(idents) // size)
        )
        return keyed.window(CountTumblingWindowAssigner.of(size)), expected

    def _global(self, keyed: Any, by_key: dict[int, list[Ident]], number: int) -> tuple[Any, Counter[Ident]]:
        size, purge = self._rng.randint(1, 4), self._rng.random() < 0.5
        trigger: Any = PurgingTrigger.of(CountTrigger.of(size)) if purge else CountTrigger.of(size)
        expected: Counter[Ident] = Counter()
        for key, idents in by_key.items():
            for times in range(1, len(idents) // size + 1):
                expected[number, key, -1, 0, size if purge else size * times, 0] += 1
        return keyed.window(GlobalWindows.create()).trigger(trigger), expected
