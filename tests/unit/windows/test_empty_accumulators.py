"""A window whose accumulator is None holds nothing, as in Flink: it emits nothing, and never twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.windows.kinds import OfAggregated
from tests.unit.windows.script_job import Mark, Record, Step, Wait, run_script
from tests.unit.windows.test_window_functions import key, ms
from tidegate.datastream import AggregateFunction
from tidegate.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows


class Sum(AggregateFunction):
    """0 empties the accumulator; `merge` is for two that are not empty."""

    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Record, accumulator: Any) -> Any:
        return accumulator + value.value if value.value else None

    def get_result(self, accumulator: Any) -> Any:
        return [accumulator]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return int(acc_a) + int(acc_b)


STEPS: list[Step] = [
    *(Record("a", 0, 1), Record("a", 0, 2), Wait(2), Record("a", 5, 3)),  # empty until a checkpoint has passed
    *(Record("b", 0, 1), Wait(2), Record("b", 0, 2)),  # empty for good
    *(Record("c", 7, 1), Wait(2), Record("c", 0, 2), Wait(2), Record("c", 1, 3), Record("c", 1, 4)),  # emptied once
    *(Record("d", 7, 1), Wait(2), Record("d", 0, 2), Wait(2)),  # emptied in the end
    *(Record("e", 9, 1), Wait(2), Record("e", 0, 2), Record("e", 3, 4), Wait(2), Mark(100)),
]
TUMBLING, SLIDING = TumblingEventTimeWindows.of(ms(10)), SlidingEventTimeWindows.of(ms(20), ms(10))
TOTALS = {"a": 5, "c": 2, "e": 3}


@pytest.mark.parametrize(
    ("assigner", "spans"),
    [
        (TUMBLING, {k: [(0, 10)] for k in TOTALS}),
        (SLIDING, {k: [(-10, 10), (0, 20)] for k in TOTALS}),
        (EventTimeSessionWindows.with_gap(ms(5)), {"a": [(1, 8)], "c": [(1, 9)], "e": [(1, 9)]}),
    ],
    ids=["tumbling", "sliding", "session"],
)
@pytest.mark.parametrize("fail_after", [None, 14])
def test_an_empty_accumulator_is_no_result(
    backend: dict[str, Any], assigner: Any, spans: dict[str, list[Any]], fail_after: int | None
) -> None:
    for function in (None, OfAggregated()):
        outcome = run_script(
            STEPS,
            lambda s: s.key_by(key).window(assigner).aggregate(Sum(), function),  # noqa: B023 (called at once)
            config=backend,
            fail_after=fail_after,
            checkpoint_every_ms=1,
        )
        assert outcome.restarts == (0 if fail_after is None else 1)
        expected = [(k, span, [TOTALS[k]]) for k in TOTALS for span in spans[k]]
        assert sorted(outcome.results) == sorted(expected if function else [total for *_, total in expected])


def test_an_empty_slice_is_left_out_when_slices_are_combined(backend: dict[str, Any]) -> None:
    steps: list[Step] = [Record("a", 0, 1), Record("a", 4, 11), Record("a", 0, 21), Mark(100)]
    outcome = run_script(
        steps, lambda s: s.key_by(key).window(SLIDING).aggregate(Sum(), OfAggregated()), config=backend
    )
    assert sorted(outcome.results) == [("a", (0, 20), [4]), ("a", (10, 30), [4])]
