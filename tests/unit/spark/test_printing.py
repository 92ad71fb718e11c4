"""Text of print sinks between a worker and the program: order, bounds, ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.spark.thread_gang import ThreadGang
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.jobmanager.preparation import prepare_job
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.streaming import job_manager
from tidegate.spark.streaming.job_manager import JobManager
from tidegate.spark.streaming.printing import DriverPrinter, WorkerPrinter
from tidegate.testing.in_process_job import graph_of


def eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def connected() -> tuple[WorkerPrinter, DriverPrinter]:
    driver = DriverPrinter(lambda sender, count: worker.written(count))
    worker = WorkerPrinter(lambda payload: driver.take(b"slot 0", payload))
    return worker, driver


def test_lines_come_out_in_order_on_the_stream_that_they_are_for(capsys: Any) -> None:
    worker, driver = connected()
    for i in range(100):
        worker.write(f"{i}\n", to_stderr=i % 2 == 1)
    driver.close()
    out, err = capsys.readouterr()
    assert out == "".join(f"{i}\n" for i in range(0, 100, 2))
    assert err == "".join(f"{i}\n" for i in range(1, 100, 2))


def test_long_and_odd_texts_arrive(capsys: Any) -> None:
    worker, driver = connected()
    text = "äöü€" * 1_000_000
    worker.write(text, to_stderr=False)
    worker.write("\ud800\n", to_stderr=False)
    driver.close()
    assert capsys.readouterr().out == text + "\\ud800\n"


@pytest.mark.parametrize("end", ["written", "close"])
def test_a_worker_waits_while_much_is_under_way(end: str) -> None:
    sent: list[bytes] = []
    worker = WorkerPrinter(sent.append)
    writing = threading.Thread(target=lambda: [worker.write("x" * 10_000, False) for _ in range(300)], daemon=True)
    writing.start()
    eventually(lambda: sum(map(len, sent)) >= 1024 * 1024)
    time.sleep(0.05)
    before = sum(map(len, sent))
    assert before < 1024 * 1024 + 20_000
    if end == "close":
        worker.close()
    else:
        worker.written(str(before).encode())
        eventually(lambda: sum(map(len, sent)) > before)
        worker.written(str(sum(map(len, sent)) - before).encode())
        worker.written(b"100000000")
    writing.join(5)
    assert not writing.is_alive()


def test_a_program_whose_output_is_closed_holds_nobody_up(monkeypatch: Any) -> None:
    class Closed:
        def write(self, text: str) -> None:
            raise ValueError("I/O operation on closed file")

    monkeypatch.setattr("sys.stdout", Closed())
    worker, driver = connected()
    for _ in range(300):
        worker.write("x" * 10_000, False)
    driver.close()


@pytest.mark.parametrize("here", [True, False])
def test_a_job_prints_on_the_driver_before_it_is_told_to_have_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, here: bool
) -> None:
    """With the real JobManager and the real worker, which is a thread of this process."""
    monkeypatch.setattr(job_manager, "SparkGang", ThreadGang)
    taken: list[bytes] = []
    real = DriverPrinter.take
    monkeypatch.setattr(DriverPrinter, "take", lambda self, *piece: (taken.append(piece[1]), real(self, *piece))[1])
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({"rest.enabled": "false"}))
    numbers = env.set_parallelism(1).from_collection(range(3_000))
    numbers.print()
    numbers.print_to_err("odd")
    manager = JobManager(
        session=SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]")),  # type: ignore[arg-type]
        job=prepare_job(graph_of(env), Configuration(env._configuration)),
        bundle=CodeBundle.collect([]),
        prints=here,
    )
    manager.start()
    manager.client.get_job_execution_result().result(30)
    out, err = capsys.readouterr()
    assert out == "".join(f"{n}\n" for n in range(3_000))
    assert err == "".join(f"odd> {n}\n" for n in range(3_000))
    assert bool(taken) is here
