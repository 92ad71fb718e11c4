"""Known defects of PyFlink 2.3 that are not here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.windows.kinds import OfAggregated, Values
from tests.unit.windows.script_job import Mark, Record, Wait, run_script
from tests.unit.windows.test_window_functions import Elements, LateTimer, key, ms, total
from tidegate.datastream.window import EventTimeSessionWindows, SessionWindowTimeGapExtractor, TumblingEventTimeWindows


def sessions(stream: Any) -> Any:
    return stream.key_by(key).window(EventTimeSessionWindows.with_gap(ms(10)))


def test_merging_sessions_keeps_every_accumulator(backend: dict[str, Any]) -> None:
    """Four sessions of their own, which two more records join into one."""
    steps = [Record("a", n, 20 * n) for n in range(4)] + [Record("a", 4, 10), Record("a", 5, 50), Record("a", 6, 30)]
    aggregated = run_script(steps, lambda s: sessions(s).aggregate(Values(), OfAggregated()), config=backend)
    reduced = run_script(steps, lambda s: sessions(s).reduce(total), config=backend)
    assert [(k, span, sorted(v)) for k, span, v in aggregated.results] == [("a", (0, 70), [0, 1, 2, 3, 4, 5, 6])]
    assert [r.value for r in reduced.results] == [21]


class GapIsTheValue(SessionWindowTimeGapExtractor):
    def extract(self, element: Record) -> int:
        return element.value


@pytest.mark.parametrize("style", ["process", "reduce", "aggregate"])
def test_an_element_whose_window_equals_a_merged_session_does_not_empty_it(backend: dict[str, Any], style: str) -> None:
    """[0, 10) and [5, 20) become [0, 20), with its contents kept under the name of one of the two; the last record's
    window is [0, 20) at once."""
    steps = [Record("a", 10, 0), Record("a", 15, 5), Record("a", 20, 0)]

    def windows(stream: Any) -> Any:
        windowed = stream.key_by(key).window(EventTimeSessionWindows.with_dynamic_gap(GapIsTheValue()))
        if style == "process":
            return windowed.process(Elements())
        if style == "reduce":
            return windowed.reduce(total, Elements())
        return windowed.aggregate(Values(), OfAggregated()).map(lambda r: (r[1], sorted(r[2])))

    expected = ((0, 20), [45] if style == "reduce" else [10, 15, 20])
    assert run_script(steps, windows, config=backend).results == [expected]


@pytest.mark.parametrize("fail_after", range(1, 12))
def test_timers_set_just_before_a_barrier_are_in_the_snapshot(backend: dict[str, Any], fail_after: int) -> None:
    """A record every millisecond, a checkpoint every millisecond, a failure at any point."""
    steps: list[Any] = []
    for n in range(10):
        steps += [Record("ab"[n % 2], n, n), Wait(1)]
    steps.append(Mark(2000))
    expected = [("ab"[n % 2], 1000 + n) for n in range(10)]
    timers = run_script(
        steps,
        lambda s: s.key_by(key).process(LateTimer()),
        config=backend,
        fail_after=fail_after,
        checkpoint_every_ms=1,
    )
    assert timers.results == expected
    assert timers.restarts == (1 if fail_after < 11 else 0)
    windows = run_script(
        steps,
        lambda s: s.key_by(key).window(TumblingEventTimeWindows.of(ms(4))).process(Elements()),
        config=backend,
        fail_after=fail_after,
        checkpoint_every_ms=1,
    )
    assert sorted(windows.results) == sorted(
        ((start, start + 4), [n for n in range(start, min(start + 4, 10)) if n % 2 == odd])
        for start in (0, 4, 8)
        for odd in (0, 1)
    )
