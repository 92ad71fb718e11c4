"""Every API method in micro-batches of a few records each, against the exact results of STREAMING mode. A batch of each
run is killed."""

from __future__ import annotations

import pytest

from tests.spark.cases import ALL_CASES
from tests.spark.cases.case import ApiCase
from tests.unit.micro_batch.engine import Engine
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment

OTHERWISE = {
    "held_back_to_the_end": "keeps records in a plain field of the function, which lives for one batch",
    "trigger_of_the_user": "expects no watermark between two records, and there is one at the end of each batch",
    "slot_sharing_group": "expects a slot of its own, and there are no slots",
}
ON_SPARK_ONLY = ("execute_and_collect_of_a_collection",)  # it wants the sink that execute_and_collect makes
FIRST_ATTEMPT = ("operator_settings_and_runtime_context", "environment_max_parallelism")  # they look at its number
CASES = [case for case in ALL_CASES if case.name not in OTHERWISE and case.name not in ON_SPARK_ONLY]
RUNS = [(case, case.parallelisms[-1]) for case in CASES]
MORE_RUNS = [(case, p) for case in CASES for p in case.parallelisms[:-1]]


def run(case: ApiCase, parallelism: int, max_records: int) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(dict(case.config)))
    stream = case.build(env.set_parallelism(parallelism))
    kills = 0 if case.name in FIRST_ATTEMPT else 1
    engine = Engine.collecting(stream, max_records=max_records, kills=kills, seed=parallelism)
    case.check(engine.run().results, parallelism)


@pytest.mark.parametrize(("case", "parallelism"), RUNS, ids=[f"{case.name}-{p}" for case, p in RUNS])
def test_case(case: ApiCase, parallelism: int) -> None:
    run(case, parallelism, 7)


@pytest.mark.soak
@pytest.mark.parametrize(("case", "parallelism"), MORE_RUNS, ids=[f"{case.name}-{p}" for case, p in MORE_RUNS])
def test_more_parallelisms(case: ApiCase, parallelism: int) -> None:
    run(case, parallelism, 7)


def test_in_one_batch_plain_fields_are_kept() -> None:
    case = next(case for case in ALL_CASES if case.name == "held_back_to_the_end")
    run(case, 2, 1000)


def test_the_cases_that_are_left_out_are_there() -> None:
    assert OTHERWISE.keys() <= {case.name for case in ALL_CASES}
