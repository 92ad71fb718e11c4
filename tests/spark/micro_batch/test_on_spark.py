"""Micro-batches on Spark Structured Streaming: a worker that is killed, and the API. More in `test_soak`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.cases import ALL_CASES
from tests.spark.cases.case import ApiCase
from tests.spark.micro_batch.needed import needs_micro_batch
from tests.spark.micro_batch.program import KEYS, CountPerKey, build, expected, output, settings
from tests.unit.micro_batch.test_cases import OTHERWISE
from tidegate.common.errors import JobExecutionError, StateNotReadableError
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.jobmanager.live_state import StateAnswer, StateLevel
from tidegate.spark.state_tables import register

pytestmark = [needs_micro_batch, pytest.mark.spark, pytest.mark.timeout(300)]

MakeEnv = Callable[..., StreamExecutionEnvironment]
IN_CI = ("session_windows",)
SHORT = [case for case in ALL_CASES if case.name in IN_CI]
LONG = [case for case in ALL_CASES if case.name not in IN_CI and case.name not in OTHERWISE]


def test_a_worker_is_killed_and_every_record_counts_once(make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(2, settings(tmp_path, 2000))
    build(env, tmp_path, 6000, CountPerKey(str(tmp_path / "killed"), dies_at=4321))
    client: Any = env.execute_async("counting")
    looked = _look(client)
    client.get_job_execution_result().result(240)
    assert (tmp_path / "killed").exists()
    assert output(tmp_path) == expected(6000)
    view = client.view()
    assert view.attempt == 1
    assert view.checkpoints.completed >= 3
    assert view.checkpoints.restored == 1
    assert view.total("numRecordsIn", 0) == 6000
    assert [state.entries for state in view.states] == [KEYS]
    assert {one.level for one in looked} == {StateLevel.COMMITTED}
    assert {one.checkpoint for one in looked} < {checkpoint.checkpoint_id for checkpoint in view.checkpoints.history}
    assert all(0 < one.value <= 6000 // KEYS for one in looked)


def test_a_savepoint_goes_from_streaming_to_micro_batches_and_back(
    make_env: MakeEnv, spark: Any, tmp_path: Path
) -> None:
    """At another parallelism each time. Spark's reader of savepoints finds in that of MICRO_BATCH what was written."""
    records, more = 3000, dict[str, str]()
    for number, mode in enumerate(("STREAMING", "MICRO_BATCH")):
        config = settings(tmp_path, 200) | {"execution.runtime-mode": mode} | more
        env = make_env(2 + number, config)
        build(env, tmp_path, records, CountPerKey(), rate=200)
        client: Any = env.execute_async("counting")
        deadline = time.monotonic() + 120
        while client.view().total("numRecordsIn", 0) < 50 and time.monotonic() < deadline:
            time.sleep(0.05)
        savepoint = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(120)
        client.get_job_execution_result().result(60)
        more = {"execution.state-recovery.path": savepoint}
    assert 100 <= len(output(tmp_path)) < records
    highest: dict[int, int] = {}
    for key, count in (map(int, line.split()) for line in output(tmp_path)):
        highest[key] = max(count, highest.get(key, 0))
    register(spark)
    counts = spark.read.format("tidegate-state").options(operator="count", state="count").load(savepoint)
    assert {row["key"]: row["value"] for row in counts.collect()} == highest
    env = make_env(2, settings(tmp_path, 200) | {"execution.runtime-mode": "STREAMING"} | more)
    build(env, tmp_path, records, CountPerKey())
    env.execute("counting")
    assert output(tmp_path) == expected(records)


def _look(client: Any) -> list[StateAnswer]:
    """The counts at the end of a batch. The batch that the question goes with may be the one that dies."""
    while client.view().ended_ms is None:
        with contextlib.suppress(StateNotReadableError):
            found: list[StateAnswer] = client.get_state("count", "count").scan()
            return found
    raise AssertionError("the job has ended, and nobody has answered")


@pytest.mark.parametrize("case", SHORT, ids=[case.name for case in SHORT])
def test_case(case: ApiCase, make_env: MakeEnv) -> None:
    _run(case, make_env)


@pytest.mark.soak
@pytest.mark.parametrize("case", LONG, ids=[case.name for case in LONG])
def test_more_cases(case: ApiCase, make_env: MakeEnv) -> None:
    _run(case, make_env)


def _run(case: ApiCase, make_env: MakeEnv) -> None:
    parallelism = 2 if 2 in case.parallelisms else case.parallelisms[0]
    stream = case.build(make_env(parallelism, dict(case.config) | {"execution.runtime-mode": "MICRO_BATCH"}))
    with stream.execute_and_collect(case.name) as results:
        case.check(list(results), parallelism)


@pytest.mark.soak
def test_an_exception_is_told_with_its_operator(make_env: MakeEnv) -> None:
    env = make_env(1, {"execution.runtime-mode": "MICRO_BATCH"})
    env.from_collection([1, 0]).map(lambda n: 1 // n).name("Divide").print()
    with pytest.raises(JobExecutionError, match=r"(?s)Divide.*ZeroDivisionError"):
        env.execute("dividing")


@pytest.mark.soak
def test_a_program_that_is_larger_than_a_broadcast_runs(make_env: MakeEnv) -> None:
    """Of more than 1 MB PySpark would make one, which Spark's stateful operators cannot read."""
    env = make_env(1, {"execution.runtime-mode": "MICRO_BATCH"})
    large = os.urandom(3 << 20)
    with env.from_collection([1, 2]).map(lambda n: n + len(large)).execute_and_collect("large") as results:
        assert sorted(results) == [1 + (3 << 20), 2 + (3 << 20)]
