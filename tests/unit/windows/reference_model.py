"""What windows have to give, written from their definition and without the engine: plain functions over a script.

A window is a pair (start, end) here, or a number; a result is (key, window, values in the order of arrival). Results of
one key and window are in the order of their firing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.unit.windows.script_job import START, Mark, Record, Step, Wait

FIRST, LAST = -(2**63), 2**63 - 1
Span = tuple[int, int]


@dataclass
class Model:
    results: list[tuple[str, object, list[int]]] = field(default_factory=list)
    late: list[Record] = field(default_factory=list)

    def emit(self, key: str, window: object, values: Sequence[int]) -> None:
        if values:
            self.results.append((key, window, list(values)))


@dataclass
class Pane:
    key: str
    span: Span
    values: list[int]
    next_fire: int | None = None  # of a continuous trigger


def timeline(steps: Sequence[Step], rest_ms: int = 0) -> Iterator[tuple[int, Record | Mark | None]]:
    """(clock, item); None: only the clock has moved."""
    now = START
    for step in steps:
        if isinstance(step, Wait):
            now += step.ms
            yield now, None
        else:
            yield now, step
    yield now + rest_ms, None


def tumbling(size: int, offset: int = 0) -> Callable[[int], list[Span]]:
    return sliding(size, size, offset)


def sliding(size: int, slide: int, offset: int = 0) -> Callable[[int], list[Span]]:
    """Found by trying all windows around."""

    def spans(time: int) -> list[Span]:
        first = (time - size) // slide - 2
        starts = [offset + n * slide for n in range(first, first + 2 * (size // slide) + 6)]
        return [(s, s + size) for s in starts if s <= time < s + size]

    return spans


def event_time(
    steps: Sequence[Step],
    spans_of: Callable[[int], list[Span]],
    lateness: int = 0,
    interval: int | None = None,
    purge: bool = False,
) -> Model:
    """Windows that fire when the watermark passes their end; with `interval` (continuous trigger) also before."""
    model = Model()
    panes: dict[tuple[str, Span], Pane] = {}
    watermark = FIRST

    def fire(pane: Pane) -> None:
        model.emit(pane.key, pane.span, pane.values)
        if purge:
            pane.values = []

    for _, step in [*timeline(steps), (0, Mark(LAST))]:
        if isinstance(step, Record):
            open_spans = [s for s in spans_of(step.stamp) if s[1] - 1 + lateness > watermark]
            if not open_spans:
                model.late.append(step)
            for span in reversed(open_spans):  # the latest window first
                pane = panes.setdefault((step.key, span), Pane(step.key, span, []))
                pane.values.append(step.value)
                if span[1] - 1 <= watermark:
                    fire(pane)
                elif interval is not None and pane.next_fire is None:
                    pane.next_fire = min(step.stamp // interval * interval + interval, span[1] - 1)
        elif isinstance(step, Mark) and step.stamp > watermark:
            due: list[tuple[int, Pane]] = []
            for pane in panes.values():
                end = pane.span[1] - 1
                if interval is not None and pane.next_fire is not None:
                    while pane.next_fire < end and pane.next_fire <= step.stamp:
                        due.append((pane.next_fire, pane))
                        pane.next_fire = min(pane.next_fire + interval, end)
                if watermark < end <= step.stamp:
                    due.append((end, pane))
            watermark = step.stamp
            for _, pane in sorted(due, key=lambda d: d[0]):
                fire(pane)
            for entry in [e for e, p in panes.items() if p.span[1] - 1 + lateness <= watermark]:
                del panes[entry]
    return model


def never(steps: Sequence[Step], size: int) -> Model:
    """A trigger that never fires: only late records come out."""
    return Model(late=event_time(steps, tumbling(size)).late)


def processing_time(
    steps: Sequence[Step],
    spans_of: Callable[[int], list[Span]],
    rest_ms: int,
    interval: int | None = None,
) -> Model:
    """By the clock: a window fires when it is over. What is open at the end is not emitted."""
    model = Model()
    panes: dict[tuple[str, Span], Pane] = {}
    for now, step in timeline(steps, rest_ms):
        due: list[tuple[int, tuple[str, Span]]] = []
        for entry, pane in panes.items():
            end = pane.span[1] - 1
            while interval is not None and pane.next_fire is not None and pane.next_fire < min(end, now):
                due.append((pane.next_fire, entry))
                pane.next_fire = min(pane.next_fire + interval, end)
            if end < now:
                due.append((end, entry))
        for time, entry in sorted(due, key=lambda d: d[0]):
            pane = panes[entry]
            model.emit(pane.key, pane.span, pane.values)
            if time == pane.span[1] - 1:
                del panes[entry]
        if isinstance(step, Record):
            for span in spans_of(now):
                pane = panes.setdefault((step.key, span), Pane(step.key, span, []))
                pane.values.append(step.value)
                if interval is not None and pane.next_fire is None:
                    pane.next_fire = min(now // interval * interval + interval, span[1] - 1)
    return model


def sessions(steps: Sequence[Step], gap_of: Callable[[int], int], lateness: int = 0) -> Model:
    """Event-time sessions: spans that overlap or touch are one."""
    model = Model()
    live: dict[str, list[tuple[Span, list[int]]]] = defaultdict(list)
    watermark = FIRST
    for _, step in [*timeline(steps), (0, Mark(LAST))]:
        if isinstance(step, Record):
            span, values = (step.stamp, step.stamp + gap_of(step.value)), [step.value]
            rest = []
            for other, others in live[step.key]:
                if other[0] <= span[1] and span[0] <= other[1]:
                    span, values = (min(span[0], other[0]), max(span[1], other[1])), others + values
                else:
                    rest.append((other, others))
            if span[1] - 1 + lateness <= watermark:
                model.late.append(step)
                continue
            live[step.key] = [*rest, (span, values)]
            if span[1] - 1 <= watermark:
                model.emit(step.key, span, values)
        elif isinstance(step, Mark) and step.stamp > watermark:
            for key, spans in live.items():
                for span, values in sorted(spans, key=lambda s: s[0][1]):
                    if watermark < span[1] - 1 <= step.stamp:
                        model.emit(key, span, values)
                live[key] = [s for s in spans if s[0][1] - 1 + lateness > step.stamp]
            watermark = step.stamp
    return model


def processing_time_sessions(steps: Sequence[Step], gap_of: Callable[[int], int], rest_ms: int) -> Model:
    model = Model()
    live: dict[str, tuple[Span, list[int]]] = {}
    for now, step in timeline(steps, rest_ms):
        for key in sorted(live, key=lambda k: live[k][0][1]):
            if live[key][0][1] <= now and not (isinstance(step, Record) and step.key == key and live[key][0][1] == now):
                span, values = live.pop(key)
                model.emit(key, span, values)
        if isinstance(step, Record):
            span, values = live.pop(step.key, ((now, now), []))
            live[step.key] = (span[0], max(span[1], now + gap_of(step.value))), [*values, step.value]
    return model


def arrivals(steps: Sequence[Step]) -> dict[str, list[int]]:
    values: dict[str, list[int]] = defaultdict(list)
    for step in steps:
        if isinstance(step, Record):
            values[step.key].append(step.value)
    return values


def counts(steps: Sequence[Step], size: int, slide: int) -> Model:
    """Full windows only."""
    model = Model()
    for key, values in arrivals(steps).items():
        for number in range(len(values)):
            window = values[number * slide : number * slide + size]
            if len(window) == size:
                model.emit(key, number, window)
    return model


def every_nth(steps: Sequence[Step], n: int, purge: bool) -> Model:
    """One window for everything, and a count trigger."""
    model = Model()
    for key, values in arrivals(steps).items():
        for end in range(n, len(values) + 1, n):
            model.emit(key, "global", values[end - n : end] if purge else values[:end])
    return model


def by_window(results: Sequence[tuple[str, object, list[int]]]) -> dict[tuple[str, object], list[list[int]]]:
    """What has to be equal: for each key and window its firings in order, with the values that were in."""
    found: dict[tuple[str, object], list[list[int]]] = defaultdict(list)
    for key, window, values in results:
        found[key, window].append(sorted(values))
    return dict(found)
