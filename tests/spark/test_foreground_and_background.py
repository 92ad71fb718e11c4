"""Jobs of one session beside each other: Ctrl-C, dropped results, who holds the slots, what is free after an end."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.micro_batch.needed import needs_micro_batch
from tests.spark.programs import wait_until
from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource, NumberSequenceSource
from tidegate.jobmanager.running_jobs import jobs_are_running, running_jobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

MakeEnv = Callable[..., StreamExecutionEnvironment]


def endless(env: StreamExecutionEnvironment, count: int | None = None) -> Any:
    source = DataGeneratorSource(lambda n: n, records_per_second=200, count=count)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "Endless")


def numbers(env: StreamExecutionEnvironment, count: int) -> Any:
    return env.from_source(NumberSequenceSource(0, count - 1), WatermarkStrategy.no_watermarks(), "Numbers")


@pytest.fixture
def background(make_env: MakeEnv) -> Any:
    """A job of one slot that runs beside what the test does, and has to be there still at the end."""
    env = make_env(1)
    endless(env).add_sink(lambda n: None)
    client = env.execute_async("background")
    try:
        wait_until(lambda: client.get_job_status().result() is JobStatus.RUNNING, 60)
        yield client
        assert client.get_job_status().result() is JobStatus.RUNNING
        assert client.attempt() == 0, client.failures()
    finally:
        client.cancel().result(timeout=30)
    assert client.get_job_status().result() is JobStatus.CANCELED, "the future waits for the end"


def ctrl_c_after(seconds: float) -> None:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()


def ctrl_c_when_it_runs() -> None:
    """Of a job that will be the second, some time after it has work for Spark."""

    def interrupt() -> None:
        wait_until(lambda: sum(bool(job.spark_groups) for job in running_jobs()) == 2, 60)
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def pysparks_handler(spark: Any) -> Any:
    """As the session sets it when it is made on the main thread."""

    def handler(number: int, frame: Any) -> None:
        spark.sparkContext.cancelAllJobs()
        raise KeyboardInterrupt

    handler.__module__ = "pyspark.core.context"
    return handler


@pytest.fixture(autouse=True)
def as_a_program_has_it(spark: Any) -> Any:
    before = signal.signal(signal.SIGINT, pysparks_handler(spark))
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH", pytest.param("MICRO_BATCH", marks=needs_micro_batch)])
def test_ctrl_c_in_execute_cancels_that_job_only(make_env: MakeEnv, background: Any, mode: str) -> None:
    env = make_env(3, {"execution.runtime-mode": mode})
    endless(env, count=1_000_000).add_sink(lambda n: None)
    ctrl_c_when_it_runs()
    with pytest.raises(KeyboardInterrupt):
        env.execute("foreground")
    assert len(running_jobs()) == 1  # that in the background
    assert sorted(numbers(make_env(3), 20).execute_and_collect()) == list(range(20))  # the next cell


def test_ctrl_c_in_the_body_of_a_loop_over_results_cancels_that_job_only(make_env: MakeEnv, background: Any) -> None:
    results = endless(make_env(3)).execute_and_collect()

    def read() -> None:
        for _ in results:
            time.sleep(60)

    ctrl_c_after(3)
    with pytest.raises(KeyboardInterrupt):
        read()
    assert sorted(numbers(make_env(3), 20).execute_and_collect()) == list(range(20))


def test_ctrl_c_in_an_action_of_spark_cancels_that_action(spark: Any, background: Any) -> None:
    ctrl_c_after(3)
    with pytest.raises(KeyboardInterrupt):
        spark.sparkContext.parallelize(range(1), 1).map(lambda n: time.sleep(60)).collect()
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: len(tracker.getActiveJobsIds()) == 1, 120)


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH", pytest.param("MICRO_BATCH", marks=needs_micro_batch)])
def test_a_job_that_waits_for_slots_says_who_has_them(make_env: MakeEnv, caplog: Any, mode: str) -> None:
    """And one that waits with it is not among them."""
    holder = make_env(4)
    endless(holder).add_sink(lambda n: None)
    clients = [holder.execute_async("holder")]
    try:
        wait_until(lambda: clients[0].get_job_status().result() is JobStatus.RUNNING, 60)
        with caplog.at_level(logging.WARNING, "tidegate.jobmanager"):
            names = ("waiting", "waits too")[: 1 if mode == "MICRO_BATCH" else 2]  # which takes its time
            for name in names:
                env = make_env(4, {"execution.runtime-mode": mode})
                endless(env, count=100).add_sink(lambda n: None)
                clients.append(env.execute_async(name))
            wait_until(lambda: caplog.text.count("waits for free slots") >= len(names), 120)
        told = {r.getMessage() for r in caplog.records if "waits for free slots" in r.getMessage()}
        slots = "4 slots" if mode == "STREAMING" else mode
        assert told == {
            f"job '{name}' ({client.get_job_id()}, {slots}) waits for free slots of Spark; these run in the same "
            f"session: job 'holder' ({clients[0].get_job_id()}, 4 slots)"
            for name, client in zip(names, clients[1:], strict=True)
        }
        clients[0].cancel().result(timeout=60)
        for client in clients[1:]:
            client.get_job_execution_result().result(timeout=120)
    finally:
        for client in clients:
            client.cancel().result(timeout=60)


def test_results_that_are_dropped_free_the_slots(make_env: MakeEnv) -> None:
    for _ in endless(make_env(4)).execute_and_collect():
        break
    assert sorted(numbers(make_env(4), 20).execute_and_collect()) == list(range(20))


def test_a_batch_job_that_has_ended_is_in_nobodys_way(make_env: MakeEnv) -> None:
    """What its client starts next may need a larger session, which is made only when no job runs."""
    env = make_env(1).set_runtime_mode(RuntimeExecutionMode.BATCH)
    numbers(env, 5).add_sink(lambda n: None)
    client = env.execute_async()
    seen: list[bool] = []
    client.get_job_execution_result().add_done_callback(lambda _: seen.append(jobs_are_running()))
    client.get_job_execution_result().result(timeout=30)
    wait_until(lambda: seen)
    assert seen == [False]
