"""The body of a Spark task in a batch job: from Spark's iterator to a `BatchTask` and back."""

from __future__ import annotations

import base64
import dataclasses
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from tidegate.protocol.messages import FailureInfo
from tidegate.spark.code_bundle import CodeBundle, install
from tidegate.spark.exit_codes import noted_work
from tidegate.spark.garbage import rare_collections
from tidegate.spark.shipped_plan import PlanNotLoadedError, load_plan
from tidegate.spark.worker_files import enter_archives, local_paths, own_working_directory
from tidegate.spark.worker_logs import WorkerLogs, worker_logging

RUN_PROPERTY = "tidegate.batch.run"
"""Local property of the Spark job: how often the driver has started it again."""

_FAILURE = re.compile(r"\[tidegate-failure:([A-Za-z0-9+/=]+)\]")


@dataclass(frozen=True)
class TaskLaunch:
    """What travels inside the Spark closure."""

    bundle: CodeBundle
    plan: bytes  # pickled VertexPlan, which needs the bundle to be loaded
    job_id: str
    name: str  # of the vertex
    logs: WorkerLogs | None = None


class TaskTold(Exception):
    """How a failure gets through Spark to the driver: the text holds it twice, for people and encoded."""


def failure_in(text: str) -> FailureInfo | None:
    """What a task has told, out of Spark's story of it."""
    found = _FAILURE.search(text)
    return None if found is None else msgspec.msgpack.decode(base64.b64decode(found[1]), type=FailureInfo)


def run_partition(launch: TaskLaunch, index: int, received: Iterator[bytes]) -> Iterator[bytes]:
    """Keys and blocks in turn."""
    try:
        work = noted_work(launch.job_id, f"'{launch.name}' (subtask {index})")
        with work, rare_collections(), worker_logging(launch.logs, 0), own_working_directory():
            yield from _task(launch, index, received).run(received)
    except (GeneratorExit, TaskTold):
        raise
    except BaseException as error:  # also sys.exit() in user code
        from tidegate.taskmanager.failure import describe
        from tidegate.taskmanager.operators.base import attributed

        raise told(describe(attributed(error))) from None


def run_collected_partition(launch: TaskLaunch, index: int, received: Iterator[bytes]) -> Iterator[bytes]:
    """Only the results of the collect sink: pickled lists of values."""
    from tidegate.spark.batch.blocks import HEADER_SIZE
    from tidegate.spark.batch.report import CollectedChunk

    pairs = run_partition(launch, index, received)
    for _ in pairs:
        entry = pickle.loads(memoryview(next(pairs))[HEADER_SIZE:])
        if isinstance(entry, CollectedChunk):
            yield from entry.payloads


def told(failure: FailureInfo) -> TaskTold:
    encoded = base64.b64encode(msgspec.msgpack.encode(failure)).decode()
    return TaskTold(f"{failure.summary}\n{failure.traceback}[tidegate-failure:{encoded}]")


def _task(launch: TaskLaunch, index: int, received: Iterator[bytes]) -> Any:
    from pyspark import TaskContext

    install(launch.bundle)
    try:
        plan = load_plan(launch.plan, f"subtask {index}")
    except PlanNotLoadedError as error:
        raise told(error.failure) from None
    from tidegate.spark.batch.source_blocks import reading_blocks
    from tidegate.spark.batch.task import BatchTask

    enter_archives(plan.settings.cached_files)
    settings = dataclasses.replace(plan.settings, cached_files=local_paths(plan.settings.cached_files))
    plan = dataclasses.replace(plan, settings=settings, vertex=reading_blocks(plan.vertex, received))
    context: Any = TaskContext.get()
    attempt = int(context.getLocalProperty(RUN_PROPERTY) or 0) + context.attemptNumber()
    return BatchTask(plan, index, attempt, str(context.taskAttemptId()))
