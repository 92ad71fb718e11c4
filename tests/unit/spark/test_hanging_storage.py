"""The real JobManager and slots, on real sockets, with threads in Spark's place and a storage that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.spark.thread_gang import ThreadGang
from tests.unit.taskmanager.small_jobs import environment, ticks
from tidegate.common.configuration import Configuration
from tidegate.common.errors import JobCancelledError
from tidegate.jobmanager import storage_work
from tidegate.jobmanager.preparation import prepare_job
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.streaming import job_manager
from tidegate.spark.streaming.job_manager import JobManager
from tidegate.storage.filesystem import FileSystemStorage
from tidegate.testing.in_process_job import graph_of


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, f"no {what} within 30 s"
        time.sleep(0.01)


@pytest.mark.parametrize("method", ["write_metadata", "delete", "close"])
def test_a_job_whose_storage_hangs_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    monkeypatch.setattr(job_manager, "SparkGang", ThreadGang)
    monkeypatch.setattr(storage_work, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(storage_work, "WARN_AFTER_S", 0.2)
    env = environment(
        {
            "execution.checkpointing.interval": "50 ms",
            "execution.checkpointing.dir": str(tmp_path),
            "rest.enabled": "false",
        }
    )
    ticks(env).key_by(lambda n: n % 3).reduce(max).add_sink(lambda _: None)
    manager = JobManager(
        session=SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]")),  # type: ignore[arg-type]
        job=prepare_job(graph_of(env), Configuration(env._configuration)),
        bundle=CodeBundle.collect([]),
    )
    manager.start()

    def completed() -> int:
        return sum(c.status.name == "COMPLETED" for c in manager.client.checkpoint_history())

    until(completed, "checkpoint")
    let_go = threading.Event()
    real = getattr(FileSystemStorage, method)

    def hanging(self: FileSystemStorage, *arguments: Any) -> Any:
        let_go.wait(280)
        return real(self, *arguments)

    monkeypatch.setattr(FileSystemStorage, method, hanging)
    try:
        if method != "close":
            until(lambda: "has not returned for" in caplog.text, "warning")
        if method == "delete":  # checkpoints go on
            before = completed()
            until(lambda: completed() > before + 2, "more checkpoints")
        began = time.monotonic()
        manager.client.cancel()
        with pytest.raises(JobCancelledError):
            manager.client.get_job_execution_result().result(240)
        assert time.monotonic() - began < 240
        assert f"{tmp_path}/" in caplog.text
        assert "is not waited for any longer" in caplog.text
    finally:
        let_go.set()
        manager.join(10)
