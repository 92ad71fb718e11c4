"""One vertex of the job graph in the streaming query: from Spark's groups of rows to a `MicroBatchTask` and back.

The rows of a batch are grouped by place. A group that is not of this vertex is for a later one, or for the driver, and
passes through as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tidegate.spark.code_bundle import CodeBundle, install
from tidegate.spark.garbage import rare_collections
from tidegate.spark.shipped_plan import PlanNotLoadedError, load_plan
from tidegate.spark.worker_files import enter_archives, local_paths, own_working_directory
from tidegate.spark.worker_logs import WorkerLogs, worker_logging


class StageProcessor(StatefulProcessor):
    """`mine`: place -> subtask, of the vertex. `plan`: pickled MicroBatchPlan, which needs the bundle to be loaded."""

    def __init__(
        self, bundle: CodeBundle, plan: bytes, vertex: int, mine: dict[int, int], logs: WorkerLogs, attempt: int
    ) -> None:
        self._bundle = bundle
        self._plan = plan
        self._vertex = vertex
        self._mine = mine
        self._logs = logs
        self._attempt = attempt

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._own = handle.getValueState("task", "blob binary")
        self._buckets = handle.getMapState("buckets", "bucket int", "blob binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        subtask = self._mine.get(key[0])
        if subtask is None:
            yield from rows
            return
        from tidegate.spark.batch.worker import TaskTold, told

        try:
            with rare_collections(), worker_logging(self._logs, self._attempt), own_working_directory():
                for place, payload in self._run(subtask, rows):
                    yield Row(place=place, payload=bytearray(payload))
        except (GeneratorExit, TaskTold):
            raise
        except PlanNotLoadedError as error:
            raise told(error.failure) from None
        except BaseException as error:  # also sys.exit() in user code
            from tidegate.taskmanager.failure import describe
            from tidegate.taskmanager.operators.base import attributed

            raise told(describe(attributed(error))) from None

    def _run(self, subtask: int, rows: Iterator[Row]) -> Iterator[tuple[int, bytes]]:
        from pyspark import TaskContext

        install(self._bundle)
        plan = load_plan(self._plan, f"subtask {subtask}")
        from tidegate.spark.micro_batch.exchange import ELEMENTS, TICK
        from tidegate.spark.micro_batch.task import MicroBatchTask
        from tidegate.spark.micro_batch.ticks import read_tick

        ticks: list[bytes] = []
        payloads: list[bytes] = []
        for row in rows:
            payload = bytes(row.payload)
            (ticks if payload[:1] == TICK else payloads).append(payload)
        if len(ticks) != 1 or any(payload[:1] != ELEMENTS for payload in payloads):
            raise RuntimeError(f"subtask {subtask} of vertex {self._vertex} got {len(ticks)} orders for one batch")
        enter_archives(plan.settings.cached_files)
        settings = dataclasses.replace(plan.settings, cached_files=local_paths(plan.settings.cached_files))
        plan = dataclasses.replace(plan, settings=settings)
        context: Any = TaskContext.get()
        memory = _SparkMemory(self._own, self._buckets)
        attempt = self._attempt, f"{self._attempt}-{context.taskAttemptId()}"
        return MicroBatchTask(plan, self._vertex, subtask, read_tick(ticks[0]), memory, *attempt).run(payloads)


class _SparkMemory:
    """See `TaskMemory`: the state of the group that is being processed."""

    def __init__(self, own: Any, buckets: Any) -> None:
        self._own = own
        self._buckets = buckets

    def own(self) -> bytes | None:
        found = self._own.get()
        return None if found is None else bytes(found[0])

    def keep_own(self, blob: bytes) -> None:
        self._own.update((bytearray(blob),))

    def bucket(self, number: int) -> bytes | None:
        found = self._buckets.getValue((number,))
        return None if found is None else bytes(found[0])

    def all_buckets(self) -> Iterator[tuple[int, bytes]]:
        for number, blob in self._buckets.iterator():
            yield int(number[0]), bytes(blob[0])

    def keep_bucket(self, number: int, blob: bytes) -> None:
        self._buckets.updateValue((number,), (bytearray(blob),))

    def drop_bucket(self, number: int) -> None:
        self._buckets.removeKey((number,))
