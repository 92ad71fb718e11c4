"""Sliding windows and aggregate functions whose `merge` is a placeholder: right sums, or an error; never wrong sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.windows.script_job import Mark, Record, Wait, run_script
from tidegate.common import Time
from tidegate.common.errors import ConfigurationError
from tidegate.datastream import AggregateFunction
from tidegate.datastream.window import SlidingEventTimeWindows
from tidegate.datastream.windowed_stream import _has_merge
from tidegate.taskmanager.operators.merge_check import MergeCheck

STEPS = [Record("k", 1, 1), Wait(2), Record("k", 2, 6), Record("k", 4, 11), Mark(100)]


class Sum(AggregateFunction):
    def create_accumulator(self) -> tuple[int]:
        return (0,)

    def add(self, value: Record, accumulator: tuple[int]) -> tuple[int]:
        return (accumulator[0] + value.value,)

    def get_result(self, accumulator: tuple[int]) -> int:
        return accumulator[0]

    def merge(self, acc_a: tuple[int], acc_b: tuple[int]) -> tuple[int]:
        return (acc_a[0] + acc_b[0],)


class ReturnsTheFirst(Sum):
    def merge(self, acc_a: tuple[int], acc_b: tuple[int]) -> tuple[int]:
        return acc_a


class ReturnsTheSecond(Sum):
    def merge(self, acc_a: tuple[int], acc_b: tuple[int]) -> tuple[int]:
        return acc_b


class ReturnsNothing(Sum):
    def merge(self, acc_a: Any, acc_b: Any) -> Any: ...


class Raises(Sum):
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        raise NotImplementedError(f"{acc_a}, {acc_b}")


class Subtle(Sum):
    """Looks at both."""

    def merge(self, acc_a: tuple[int], acc_b: tuple[int]) -> tuple[int]:
        return acc_a or acc_b


class ThroughAClosure(Sum):
    def merge(self, acc_a: tuple[int], acc_b: tuple[int]) -> tuple[int]:
        return (sum(x for acc in [acc_a] for x in (*acc, *(lambda: acc_b)())),)


class AnyNumber(Sum):
    def merge(self, *accumulators: tuple[int]) -> tuple[int]:  # type: ignore[override]
        return (sum(a[0] for a in accumulators),)


def sliding(function: AggregateFunction) -> Any:
    windows = SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(5))
    return lambda stream: stream.key_by(lambda r: r.key).window(windows).aggregate(function)


@pytest.mark.parametrize("function", [Sum, ReturnsTheFirst, ReturnsTheSecond, ReturnsNothing, Raises, ThroughAClosure])
def test_sums_are_right_whatever_merge_is(function: type[Sum]) -> None:
    outcome = run_script(STEPS, sliding(function()))
    assert sorted(outcome.results) == sorted(
        sum(r.value for r in STEPS if isinstance(r, Record) and s <= r.stamp < s + 20) for s in (-15, -10, -5, 0, 5, 10)
    ), outcome


def test_placeholders_are_known_when_the_graph_is_built() -> None:
    for function in (Sum, Subtle, ThroughAClosure, AnyNumber):
        assert _has_merge(function()), function
    for function in (ReturnsTheFirst, ReturnsTheSecond, ReturnsNothing, Raises):
        assert not _has_merge(function()), function


def test_a_merge_that_gives_one_of_its_arguments_fails_at_the_first_records() -> None:
    with pytest.raises(AssertionError, match=r"merge\(\) of Subtle does not combine .* NotImplementedError"):
        run_script(STEPS, sliding(Subtle()))


def check(result: Callable[[Any], Any], add: Callable[[Any, Any], Any], merge: Callable[[Any, Any], Any]) -> MergeCheck:
    return MergeCheck("F", lambda value: add(0, value), add, result, merge)


def plus(a: int, b: int) -> int:
    return a + b


def test_nothing_is_concluded_from_records_that_change_nothing() -> None:
    subject = check(int, plus, lambda a, b: a)
    subject.on_records([5, 0, 0])
    subject.on_records([0])
    assert not subject.done
    with pytest.raises(ConfigurationError, match="for the records 3 and 7 it gives 3"):
        subject.on_records([3, 7])
    limited = check(int, plus, lambda a, b: a)
    limited.on_records([0] * 200)
    assert limited.done


@pytest.mark.parametrize(
    ("result", "add", "merge"),
    [
        (int, max, max),
        (int, lambda a, b: a or b, lambda a, b: a or b),  # the first one
        (int, lambda a, b: b, lambda a, b: b),  # the last one
        (lambda a: object(), plus, plus),  # results that are never equal
    ],
)
def test_aggregates_that_are_right_pass(result: Any, add: Any, merge: Any) -> None:
    subject = check(result, add, merge)
    subject.on_records([3, 1, 4, 1, 5, 9, 2, 6])


class Uncomparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_results_that_cannot_be_compared_and_functions_that_fail_end_the_check() -> None:
    for subject in (check(lambda a: Uncomparable(), plus, plus), check(int, lambda a, b: a / 0, plus)):
        subject.on_records([1, 2])
        assert subject.done
