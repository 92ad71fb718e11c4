"""The compiled loops of sum, min, max, min_by and max_by do what their reduce functions do, record by record."""

from __future__ import annotations

import random
from collections import namedtuple
from typing import Any

import pytest

from tests.unit.taskmanager.small_jobs import environment
from tidegate.common.types import Row
from tidegate.datastream import aggregations
from tidegate.taskmanager.operators.rolling_fields import loop_for, reduce_loop
from tidegate.testing.in_process_job import InProcessJob

FUNCTIONS = {
    "sum": aggregations.sum_of,
    "min": aggregations.min_of,
    "max": aggregations.max_of,
    "min_by": aggregations.min_by,
    "max_by": aggregations.max_by,
}
Point = namedtuple("Point", "key x y")


def records(chance: random.Random) -> list[Any]:
    """Most are plain tuples of three fields; the others may follow them, and come before them."""
    found: list[Any] = []
    for i in range(60):
        fields = (chance.randrange(4), chance.randrange(9), i)
        kind = chance.random()
        strange = [list(fields), Point(*fields), Row(*fields), (*fields, "more"), fields[:2]]
        found.append(fields if kind < 0.8 else chance.choice(strange))
    return found


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("compiled", [True, False])
def test_a_loop_does_what_the_reduce_function_does(kind: str, position: int, seed: int, compiled: bool) -> None:
    values = [(0, 1, -1), *records(random.Random(seed))]
    reduce, expected, state = FUNCTIONS[kind](position), [], dict[Any, Any]()
    for value in values:
        so_far = state.get(value[0])
        state[value[0]] = result = value if so_far is None else reduce(so_far, value)
        expected.append(result)
    loop = loop_for(kind, position, 3) if compiled else reduce_loop
    assert loop is not None
    below = {0: values[0]}  # from before the last snapshot
    changed: dict[Any, Any] = {}
    results: list[Any] = [values[0]]

    def one(key: Any, value: Any) -> Any:
        so_far = changed.get(key, below.get(key))
        changed[key] = value if so_far is None else reduce(so_far, value)
        return changed[key]

    loop(iter(values[1:]), lambda v: v[0], changed, below, results, reduce, one)
    assert results == expected
    assert list(map(type, results)) == list(map(type, expected))
    assert below == {0: values[0]}


def test_there_is_no_loop_for_a_field_that_is_not_there_and_for_very_many() -> None:
    assert loop_for("sum", 3, 3) is None
    assert loop_for("sum", 0, 33) is None


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_failure_names_the_record(kind: str) -> None:
    env = environment({"restart-strategy.type": "none"})
    stream = env.from_collection([("a", 1), ("a", 2), ("a",)]).key_by(lambda v: v[0])
    getattr(stream, kind)(1).print()
    with InProcessJob(env) as job:
        job.run_to_end()
        assert "the record ('a',) of type tuple has no field 1" in str(job.failure)
