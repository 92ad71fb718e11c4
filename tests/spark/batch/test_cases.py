"""The cases of the API in BATCH mode: the same programs, the same results at the end of input.

Many cases run as one job, since starting one costs more than running it: each case's records are tagged with its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.cases import ALL_CASES
from tests.spark.cases.case import ApiCase
from tidegate.datastream import DataStream, StreamExecutionEnvironment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BATCH = {"execution.runtime-mode": "BATCH"}
EXCLUDED = {
    "slot_sharing_group": "there are no slots: every operator's tasks run where Spark puts them",
    "trigger_of_the_user": "fires at every second record as they come; in BATCH a key's records come in order of time",
    "data_generator_with_a_rate": "waits for the clock",
}
ALONE = {  # change the environment, or need a setting of it
    "disable_operator_chaining",
    "environment_max_parallelism",
    "operator_settings_and_runtime_context",
    "map_keeps_order_within_a_chain",
    "execute_and_collect_of_a_collection",
}
TOGETHER = [c for c in ALL_CASES if not c.config and c.name not in EXCLUDED | dict.fromkeys(ALONE)]


class Tag:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Any) -> Any:
        return self.name, value


@pytest.mark.parametrize(
    "cases", [tuple(TOGETHER[i : i + 16]) for i in range(0, len(TOGETHER), 16)], ids=lambda cases: f"{cases[0].name}..."
)
def test_cases(cases: tuple[ApiCase, ...], make_env: Callable[..., StreamExecutionEnvironment]) -> None:
    env = make_env(2, BATCH)
    streams: list[DataStream] = [case.build(env).map(Tag(case.name)) for case in cases]
    results = defaultdict(list)
    for name, value in streams[0].union(*streams[1:]).execute_and_collect("cases"):
        results[name].append(value)
    for case in cases:
        try:
            case.check(results[case.name], 2, batch=True)
        except AssertionError as error:
            raise AssertionError(f"case {case.name}: {results[case.name]}") from error


@pytest.mark.parametrize("case", [c for c in ALL_CASES if c.name in ALONE], ids=lambda case: case.name)
def test_case_alone(case: ApiCase, make_env: Callable[..., StreamExecutionEnvironment]) -> None:
    parallelism = 2 if 2 in case.parallelisms else 1
    stream = case.build(make_env(parallelism, dict(case.config) | BATCH))
    case.check(list(stream.execute_and_collect(case.name)), parallelism, batch=True)


def test_every_exclusion_is_a_case() -> None:
    assert EXCLUDED.keys() | ALONE <= {case.name for case in ALL_CASES}
    assert all(case.name in ALONE or not case.config or case.name in EXCLUDED for case in ALL_CASES)
