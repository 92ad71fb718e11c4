"""The handler of Ctrl-C that takes the place of PySpark's, without a Spark."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from py4j.java_gateway import GatewayConnection  # type: ignore[import-untyped]

from tidegate.datastream import StreamExecutionEnvironment, stream_execution_environment
from tidegate.jobmanager.running_jobs import add_running_job, cancelled_by_interrupt
from tidegate.spark import interrupts
from tidegate.spark.interrupts import spare_background_jobs


def theirs(number: int, frame: Any) -> None:
    raise AssertionError("the handler of a program was called")


def pysparks(number: int, frame: Any) -> None:
    raise AssertionError("all Spark jobs are cancelled")


pysparks.__module__ = "pyspark.core.context"


@pytest.fixture(autouse=True)
def handler_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("found", [pysparks, signal.default_int_handler])
def test_pysparks_handler_is_replaced(found: Any) -> None:
    signal.signal(signal.SIGINT, found)
    spare_background_jobs()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("found", [theirs, signal.SIG_IGN])
def test_a_handler_of_the_program_is_left_alone(found: Any) -> None:
    signal.signal(signal.SIGINT, found)
    spare_background_jobs()
    assert signal.getsignal(signal.SIGINT) is found


def test_other_threads_may_submit_jobs_too() -> None:
    signal.signal(signal.SIGINT, pysparks)
    thread = threading.Thread(target=spare_background_jobs)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is pysparks


class Shell:
    """Of a notebook, as much as is used. `run` is a cell, for which the kernel has set Python's own handler."""

    def __init__(self) -> None:
        self.events = self
        self._callbacks: list[Callable[[object], None]] = []

    def register(self, event: str, function: Callable[[object], None]) -> None:
        assert event == "pre_run_cell"
        if function not in self._callbacks:  # as IPython
            self._callbacks.append(function)

    def run(self, cell: Callable[[], Any]) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        for callback in self._callbacks:
            callback(self)
        cell()
        signal.signal(signal.SIGINT, before)


def test_every_later_cell_of_a_notebook_has_our_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    found: list[Any] = []

    def look() -> None:
        found.append(signal.getsignal(signal.SIGINT))

    shell.run(look)
    shell.run(spare_background_jobs)
    shell.run(spare_background_jobs)
    shell.run(look)
    shell.run(look)
    assert found == [signal.default_int_handler, interrupts._interrupt, interrupts._interrupt]
    shell.run(lambda: signal.signal(signal.SIGINT, theirs))  # the cell's own
    assert len(shell._callbacks) == 1


def test_ipython_that_runs_no_shell_is_nothing_to_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    signal.signal(signal.SIGINT, pysparks)
    spare_background_jobs()
    assert signal.getsignal(signal.SIGINT) is interrupts._interrupt


@pytest.mark.parametrize("kind", [ClientServerConnection, GatewayConnection])
def test_the_connection_of_the_interrupted_call_is_hung_up(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Py4J would shut down others as well, and send the calls that wait on them again."""
    monkeypatch.setattr(interrupts.SparkContext, "_active_spark_context", None)
    signal.signal(signal.SIGINT, pysparks)
    spare_background_jobs()
    near, far = socket.socketpair()
    connection = object.__new__(kind)
    connection.socket, connection.is_connected = near, True
    place = {"__name__": "py4j.clientserver", "signal": signal}
    exec("def send_command(self): signal.raise_signal(signal.SIGINT)", place)
    with far, pytest.raises(KeyboardInterrupt):
        place["send_command"](connection)
    assert connection.socket is None
    assert not connection.is_connected
    assert near.fileno() == -1


class Spark:
    """A context with four active jobs, of which 1 and 2 are ours."""

    def __init__(self) -> None:
        self.cancelled: list[int] = []
        self._jsc = self

    def sc(self) -> Spark:
        return self

    def statusTracker(self) -> Spark:
        return self

    def getActiveJobsIds(self) -> list[int]:
        return [1, 2, 3, 4]

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return {"ours": [1], "ours too": [2]}[group]

    def cancelJob(self, number: int) -> None:
        self.cancelled.append(number)


class Job:
    spark_groups = ("ours", "ours too")


@pytest.mark.parametrize(("in_spark", "cancelled"), [(True, [3, 4]), (False, [])])
def test_only_an_action_of_spark_that_is_waited_for_is_cancelled(
    monkeypatch: Any, in_spark: bool, cancelled: list[int]
) -> None:
    spark = Spark()
    monkeypatch.setattr(interrupts.SparkContext, "_active_spark_context", spark)
    monkeypatch.setattr(interrupts, "running_jobs", lambda: [Job()])
    signal.signal(signal.SIGINT, pysparks)
    spare_background_jobs()
    place = {"__name__": "py4j.java_gateway" if in_spark else "program", "signal": signal}
    with pytest.raises(KeyboardInterrupt):
        exec("signal.raise_signal(signal.SIGINT)", place)
    assert spark.cancelled == cancelled


class JobOnAThread:
    """A running job as runtimes have them."""

    label, spark_groups = "job", ()

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._cancelled.wait, args=(60,), daemon=True)
        add_running_job(self)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def cancel(self) -> None:
        self._cancelled.set()

    program_ends = cancel

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)


class InterruptedRuntime:
    """Ctrl-C comes when the job has started, and before anybody has got hold of it."""

    def __init__(self) -> None:
        self.jobs: list[JobOnAThread] = []

    def submit(self, submission: Any) -> Any:
        self.jobs.append(JobOnAThread())
        raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["execute", "execute_async", "execute_and_collect"])
def test_ctrl_c_right_after_the_start_of_a_job_ends_it_and_no_other_one(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, other = InterruptedRuntime(), JobOnAThread()
    monkeypatch.setattr(stream_execution_environment, "runtime_of", lambda *_: runtime)
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1])
    if call != "execute_and_collect":
        stream.print()
    with pytest.raises(KeyboardInterrupt):
        getattr(stream if call == "execute_and_collect" else env, call)()
    assert [job.running for job in runtime.jobs] == [False]
    assert other.running
    other.cancel()


def test_jobs_of_other_threads_live_on() -> None:
    started: list[JobOnAThread] = []

    def interrupted() -> None:
        with cancelled_by_interrupt():
            thread = threading.Thread(target=lambda: started.append(JobOnAThread()))
            thread.start()
            thread.join()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].running
    started[0].cancel()
