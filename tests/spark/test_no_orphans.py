"""Nothing outlives a job or its driver: no process, no port, no temporary folder."""

from __future__ import annotations

import os
import signal
import socket
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.cases.single import numbers
from tests.spark.programs import alive, listening_ports, running, wait_until
from tidegate.common import JobStatus, WatermarkStrategy
from tidegate.common.errors import JobCancelledError
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.datastream.connectors import DataGeneratorSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
MakeEnv = Callable[..., StreamExecutionEnvironment]

ENDLESS = """
    import json, sys, time
    from tidegate.common import Configuration, JobStatus, WatermarkStrategy
    from tidegate.datastream import StreamExecutionEnvironment
    from tidegate.datastream.connectors import DataGeneratorSource

    def sometimes_stuck(n):
        if n % 5 == 0 and n > 100:
            time.sleep(1000)  # this slot's thread is in user code when the driver ends; the other slot's is not
        return n

    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({"spark.master": "local[2]"}))
    source = DataGeneratorSource(lambda i: i, records_per_second=1000)
    stream = env.set_parallelism(2).from_source(source, WatermarkStrategy.no_watermarks(), "Endless")
    stream.key_by(lambda n: n % 5).reduce(max).map(sometimes_stuck).add_sink(lambda n: None)
    client = env.execute_async("endless")
    while client.get_job_status().result() is not JobStatus.RUNNING:
        time.sleep(0.05)
    time.sleep(0.5)
    print("REPORT " + json.dumps(True), flush=True)
    if sys.argv[1] == "raise":
        time.sleep(1)
        raise RuntimeError("the program fails while its job runs")
    time.sleep(1000)
"""


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize("ending", ["killed", "raise"])
def test_nothing_is_left_when_the_driver_ends(tmp_path: Path, ending: str) -> None:
    """`killed`: by SIGKILL. `raise`: the program ends with an exception while its job runs."""
    script = tmp_path / "endless.py"
    script.write_text(textwrap.dedent(ENDLESS))
    with running(script, tmp_path, ending) as program:
        program.wait_for_report()
        processes = [p for p in program.descendants() if alive(p)]
        ports = listening_ports(processes)
        if ending == "killed":
            workers = [p for p in processes if "pyspark" in " ".join(p.cmdline()) and "java" not in p.name()]
            assert len(workers) >= 3, [p.cmdline()[:3] for p in processes]  # the daemon and two slots
            assert len(ports) >= 3, ports  # two slots, and the JVM's own
            os.kill(program.process.pid, signal.SIGKILL)
        program.process.wait(120)
        wait_until(lambda: what_is_left(processes, ports, tmp_path) == [], 120)
        if ending == "raise":
            assert "RuntimeError: the program fails while its job runs" in program.output


def what_is_left(processes: list[psutil.Process], ports: set[int], folder: Path) -> list[Any]:
    """Processes seen before, any other that was started in the folder, ports, temporary files."""
    left: list[Any] = [p for p in processes if alive(p)]
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and alive(process):
                left.append(process)
        except psutil.Error:
            continue
    return left or [port for port in ports if not refuses(port)] or list((folder / "tmp").iterdir())


# ---------------------------------------------------------------- the session lives on


def endless(env: StreamExecutionEnvironment) -> DataStream:
    source = DataGeneratorSource(lambda i: i, records_per_second=1000)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "Endless")


def workers_of_the_running_job() -> list[psutil.Process]:
    from tidegate.jobmanager.running_jobs import running_jobs_of
    from tidegate.spark.streaming.job_manager import JobManager

    managers = [m for m in running_jobs_of(JobManager) if m.master.status is JobStatus.RUNNING]
    assert len(managers) == 1
    return [psutil.Process(member.pid) for member in managers[0].master.members]


def quiet(process: psutil.Process) -> bool:
    """Gone, or back to what an idle worker of Spark is: no thread of ZeroMQ's, no port, only the connection to its
    executor. (Libraries that an earlier job loaded, such as pyarrow, may keep threads of their own.)"""
    try:
        threads = [Path(f"/proc/{process.pid}/task/{t.id}/comm").read_text() for t in process.threads()]
        ours = any(name.startswith("ZMQbg") for name in threads)
        return not ours and not listening_ports([process]) and len(process.net_connections("tcp")) <= 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return True


@pytest.mark.parametrize("stuck", [False, True])
def test_idle_workers_hold_nothing_after_a_cancelled_job(make_env: MakeEnv, stuck: bool) -> None:
    def maybe_sleep(n: int) -> int:
        if stuck and n > 10:
            time.sleep(1000)
        return n

    env = make_env(2)
    endless(env).rebalance().map(maybe_sleep).add_sink(lambda n: None)
    client = env.execute_async()
    wait_until(lambda: client.get_job_status().result() is JobStatus.RUNNING)
    workers = workers_of_the_running_job()
    assert len(listening_ports(workers)) == 2
    client.cancel()
    with pytest.raises(JobCancelledError):
        client.get_job_execution_result().result(timeout=120)
    wait_until(lambda: all(map(quiet, workers)), 120)


def test_idle_workers_hold_nothing_after_a_finished_job(make_env: MakeEnv) -> None:
    with endless(make_env(2)).execute_and_collect() as results:
        next(results)
        workers = workers_of_the_running_job()
    assert len(list(numbers(make_env(2), 10).execute_and_collect())) == 10
    wait_until(lambda: all(map(quiet, workers)), 120)


def test_jobs_leak_no_threads_and_no_files(make_env: MakeEnv) -> None:
    def run() -> None:
        assert len(list(numbers(make_env(2), 10).rebalance().map(str).execute_and_collect())) == 10

    def held(processes: list[psutil.Process]) -> Any:
        return [(p.pid, p.num_fds(), p.num_threads()) for p in processes]

    driver = psutil.Process()
    for _ in range(3):
        run()
    workers = [p for p in driver.children(recursive=True) if p.name().startswith("python")]
    time.sleep(0.5)
    before = held([driver, *workers])
    for _ in range(8):
        run()
    time.sleep(0.5)
    for (pid, files, threads), (_, files_after, threads_after) in zip(before, held([driver, *workers]), strict=True):
        assert files_after <= files + 4, f"process {pid}: {files} open files, then {files_after}"
        assert threads_after <= threads + 2, f"process {pid}: {threads} threads, then {threads_after}"
