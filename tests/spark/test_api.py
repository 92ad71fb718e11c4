"""Every API method on real Spark, against exact results, at parallelism 1, 2 and 4."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spark.cases import ALL_CASES
from tests.spark.cases.case import ApiCase
from tidegate.datastream import StreamExecutionEnvironment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RUNS = [(case, p) for case in ALL_CASES for p in case.parallelisms]


def test_names_of_cases_differ() -> None:
    assert len({case.name for case in ALL_CASES}) == len(ALL_CASES)


@pytest.mark.parametrize(("case", "parallelism"), RUNS, ids=[f"{case.name}-{p}" for case, p in RUNS])
def test_case(case: ApiCase, parallelism: int, make_env: Callable[..., StreamExecutionEnvironment]) -> None:
    stream = case.build(make_env(parallelism, dict(case.config)))
    with stream.execute_and_collect(case.name) as results:
        case.check(list(results), parallelism)
