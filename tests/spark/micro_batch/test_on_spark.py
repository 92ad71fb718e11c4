"""Micro-batches on Spark Structured Streaming: workers and drivers that are killed, savepoints, the API."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.cases import ALL_CASES
from tests.spark.cases.case import ApiCase
from tests.spark.micro_batch.program import CountPerKey, build, expected, output, settings
from tests.unit.micro_batch.test_cases import OTHERWISE
from tidegate.common import JobStatus
from tidegate.common.errors import JobExecutionError
from tidegate.datastream import StreamExecutionEnvironment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeEnv = Callable[..., StreamExecutionEnvironment]
IN_CI = ("session_windows",)
SHORT = [case for case in ALL_CASES if case.name in IN_CI]
LONG = [case for case in ALL_CASES if case.name not in IN_CI and case.name not in OTHERWISE]


def test_a_worker_is_killed_and_every_record_counts_once(make_env: MakeEnv, tmp_path: Path) -> None:
    env = make_env(2, settings(tmp_path, 2000))
    build(env, tmp_path, 6000, CountPerKey(str(tmp_path / "killed"), dies_at=4321))
    client: Any = env.execute_async("counting")
    client.get_job_execution_result().result(240)
    assert (tmp_path / "killed").exists()
    assert output(tmp_path) == expected(6000)
    view = client.view()
    assert view.attempt == 1
    assert view.checkpoints.completed >= 3
    assert view.checkpoints.restored == 1
    assert view.total("numRecordsIn", 0) == 6000


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
def test_savepoints_move_between_the_modes(make_env: MakeEnv, tmp_path: Path) -> None:
    """MICRO_BATCH to STREAMING to MICRO_BATCH, at other parallelism: what each has written is together exact."""
    savepoint = ""
    for number, (mode, parallelism) in enumerate([("MICRO_BATCH", 2), ("STREAMING", 3), ("MICRO_BATCH", 1)]):
        config = settings(tmp_path, 3000, f"location-{number}") | {"execution.runtime-mode": mode}
        config |= {"execution.state-recovery.path": savepoint} if savepoint else {}
        env = make_env(parallelism, config)
        build(env, tmp_path, None, CountPerKey())
        client: Any = env.execute_async("counting")
        written = len(output(tmp_path)) if (tmp_path / "out").exists() else 0
        deadline = time.monotonic() + 60
        while not client.view().total("numRecordsIn", 0) and time.monotonic() < deadline:
            time.sleep(0.1)
        savepoint = client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(120)
        client.get_job_execution_result().result(60)
        assert client.view().status is JobStatus.FINISHED
        lines = output(tmp_path)
        assert len(lines) >= written
        assert lines == expected(len(lines))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
def test_a_driver_is_killed_at_random_and_the_output_is_exact(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    command = [sys.executable, "-m", "tests.spark.micro_batch.program", str(tmp_path), "12000", "1500"]
    for attempt in range(12):
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        commits = tmp_path / "location" / "commits"
        seen = len(list(commits.glob("[0-9]*"))) if commits.exists() else 0
        deadline = time.monotonic() + 120
        while driver.poll() is None and time.monotonic() < deadline and attempt < 3:
            now = len(list(commits.glob("[0-9]*"))) if commits.exists() else 0
            if now > seen:
                time.sleep(draw.random() * 2)
                break
            time.sleep(0.05)
        if attempt < 3 and driver.poll() is None:
            _kill(driver.pid, jvm_first=draw.random() < 0.5)
        if driver.wait(200) == 0:
            break
    assert output(tmp_path) == expected(12000)


def _kill(pid: int, jvm_first: bool) -> None:
    children = psutil.Process(pid).children(recursive=True)
    everyone = [child.pid for child in children] + [pid]
    for victim in everyone if jvm_first else reversed(everyone):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


@pytest.mark.soak
def test_an_exception_is_told_with_its_operator(make_env: MakeEnv) -> None:
    env = make_env(1, {"execution.runtime-mode": "MICRO_BATCH"})
    env.from_collection([1, 0]).map(lambda n: 1 // n).name("Divide").print()
    with pytest.raises(JobExecutionError, match=r"(?s)Divide.*ZeroDivisionError"):
        env.execute("dividing")
