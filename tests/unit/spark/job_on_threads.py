"""A whole job without Spark: the real JobManager and slots, on real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.spark.thread_gang import ThreadGang
from tidegate.common.configuration import Configuration
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.jobmanager.preparation import prepare_job
from tidegate.spark.code_bundle import CodeBundle
from tidegate.spark.streaming import control_link, job_manager
from tidegate.spark.streaming.job_manager import JobManager
from tidegate.testing.in_process_job import graph_of


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, f"no {what} within 30 s"
        time.sleep(0.01)


def start_job(env: StreamExecutionEnvironment, patch: pytest.MonkeyPatch) -> JobManager:
    """A slot that should end its process, which is this one, does not."""
    patch.setattr(job_manager, "SparkGang", ThreadGang)
    patch.setattr(control_link.os, "kill", lambda pid, number: None)
    manager = JobManager(
        session=SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]")),  # type: ignore[arg-type]
        job=prepare_job(graph_of(env), Configuration(env._configuration)),
        bundle=CodeBundle.collect([]),
    )
    manager.start()
    return manager
