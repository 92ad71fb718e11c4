"""The fixture that pytest finds by itself."""

from __future__ import annotations

import pytest

from pytest_tidegate import JobUnderFaults
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.testing import FailAt, Record, Wait, scripted


def numbers() -> DataStream:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(20)
    steps = [step for i in range(20) for step in (Record(i, i), Wait(5))]
    return scripted(env, steps).map(lambda v: v + 1).name("plus one")


def test_the_job_is_the_same_under_the_plan(job_under_faults: JobUnderFaults) -> None:
    assert sorted(job_under_faults(numbers, [FailAt("plus one", 12)])) == list(range(1, 21))


def test_another_result_is_an_assertion(job_under_faults: JobUnderFaults) -> None:
    calls = iter(range(1000))

    def drawing() -> DataStream:
        return numbers().map(lambda v, calls=calls: next(calls))

    with pytest.raises(AssertionError, match="lost"):
        job_under_faults(drawing, [FailAt("plus one", 12)])
