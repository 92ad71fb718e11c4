"""What the tasks of a batch job say to the driver: one line each when they are done, and collected results.

It travels through the job's own shuffles (see `plan`), so it holds exactly one attempt of every task: the one whose
output was used.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import msgspec

from tidegate.common.errors import check_internal
from tidegate.common.ids import OperatorId
from tidegate.common.metric_values import NUM_RECORDS_IN, NUM_RECORDS_OUT, CounterValue, MetricReport
from tidegate.spark.batch.blocks import HEADER_SIZE
from tidegate.storage.handles import TaskSnapshot


@dataclass(frozen=True)
class TaskReport:
    """One task, at its end."""

    vertex: int
    subtask: int
    attempt_id: str
    records_in: int
    records_out: int
    metrics: tuple[MetricReport, ...]
    accumulators: bytes
    committables: tuple[tuple[OperatorId, bytes], ...] = ()  # by operator: the pickled list
    snapshot: bytes = b""  # msgpack of a TaskSnapshot


@dataclass(frozen=True)
class CollectedChunk:
    """Some results of `execute_and_collect`."""

    vertex: int
    subtask: int
    seq: int
    payloads: tuple[bytes, ...]  # pickled lists of values


@dataclass(frozen=True)
class PrintedChunk:
    """Some lines of print sinks. Only tasks whose output was used are heard of, so none comes twice."""

    vertex: int
    subtask: int
    seq: int
    text: str
    to_stderr: bool


def dump_report(entry: TaskReport | CollectedChunk | PrintedChunk) -> bytes:
    return pickle.dumps(entry, 5)


def dump_committables(committables: list[Any]) -> bytes:
    return bytes(cloudpickle.dumps(committables, 5))


@dataclass
class JobReport:
    """Everything that the tasks of a job have reported."""

    tasks: dict[tuple[int, int], TaskReport] = field(default_factory=dict)
    chunks: list[CollectedChunk] = field(default_factory=list)  # in order
    printed: list[PrintedChunk] = field(default_factory=list)  # in order

    @staticmethod
    def read(blocks: Iterable[bytes], expected: set[tuple[int, int]]) -> JobReport:
        """`expected`: vertex and subtask of every task."""
        report = JobReport()
        for block in blocks:
            entry = pickle.loads(memoryview(block)[HEADER_SIZE:])
            if isinstance(entry, CollectedChunk):
                report.chunks.append(entry)
                continue
            if isinstance(entry, PrintedChunk):
                report.printed.append(entry)
                continue
            key = entry.vertex, entry.subtask
            check_internal(key not in report.tasks, f"two attempts of task {key} are in the report of a batch job")
            report.tasks[key] = entry
        missing = expected ^ report.tasks.keys()
        check_internal(not missing, f"the report of a batch job and its tasks differ in {sorted(missing)}")
        report.chunks.sort(key=lambda c: (c.vertex, c.subtask, c.seq))
        report.printed.sort(key=lambda c: (c.vertex, c.subtask, c.seq))
        return report

    def in_order(self) -> list[TaskReport]:
        return [task for _, task in sorted(self.tasks.items())]

    def committables(self) -> dict[OperatorId, list[Any]]:
        found: dict[OperatorId, list[Any]] = {}
        for task in self.in_order():
            for operator_id, pickled in task.committables:
                found.setdefault(operator_id, []).extend(pickle.loads(pickled))
        return found

    def snapshots(self) -> list[TaskSnapshot]:
        return [msgspec.msgpack.decode(t.snapshot, type=TaskSnapshot) for t in self.in_order() if t.snapshot]

    def metrics(self) -> tuple[MetricReport, ...]:
        """The records in and out of every task, and the metrics of its functions."""
        found: list[MetricReport] = []
        for task in self.in_order():
            found.append(MetricReport(task.vertex, task.subtask, NUM_RECORDS_IN, CounterValue(task.records_in)))
            found.append(MetricReport(task.vertex, task.subtask, NUM_RECORDS_OUT, CounterValue(task.records_out)))
            found += task.metrics
        return tuple(found)

    def accumulators(self) -> tuple[bytes, ...]:
        return tuple(task.accumulators for task in self.in_order())
