"""Faults of an in-process job: an operator fails at a record, a worker is killed at a moment. Each happens once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.contracts.batches import RecordBatch
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.operators.source import SourceOperator


class PlannedFailure(Exception):
    """What a fault raises when it was given no error of its own."""


@dataclass(frozen=True)
class FailAt:
    """The operator with this name or uid raises before its `record`-th record (counted from 1 over all its subtasks and
    attempts). For a source: before it gives out the batch with that record."""

    operator: str
    record: int
    error: Exception | None = None


@dataclass(frozen=True)
class KillWorker:
    """A worker is killed when the job has run for so long on its own clock."""

    after_ms: float
    slot: int = 0


Fault = FailAt | KillWorker


class FaultPlan:
    """The faults that are still to come."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        for fault in faults:
            if not isinstance(fault, (FailAt, KillWorker)):
                raise TypeError(f"a fault is a FailAt or a KillWorker, got {fault!r}")
        self._failures = [fault for fault in faults if isinstance(fault, FailAt)]
        self._kills = sorted((f for f in faults if isinstance(f, KillWorker)), key=lambda kill: kill.after_ms)
        self._seen: Counter[str] = Counter()  # records by operator id

    def next_deadline(self) -> float | None:
        """In milliseconds after the start of the job."""
        return self._kills[0].after_ms if self._kills else None

    def worker_to_kill(self, passed_ms: float) -> int | None:
        if not self._kills or self._kills[0].after_ms > passed_ms:
            return None
        return self._kills.pop(0).slot

    def watch(self, operator: Operator) -> None:
        """Stand in front of an operator that a fault names. Before it is wired to the others."""
        names = (operator.node.name, operator.node.name.removeprefix("Source: "), operator.node.uid)
        if not any(fault.operator in names for fault in self._failures):
            return
        if isinstance(operator, SourceOperator):
            self._watch_source(operator, names)
        else:
            operator.process = self._watched(operator.process, operator, names)  # type: ignore[method-assign]
            second = self._watched(operator.process_second, operator, names)
            operator.process_second = second  # type: ignore[method-assign]

    def _watched(self, process: Any, operator: Operator, names: tuple[str | None, ...]) -> Any:
        def watched(batch: RecordBatch) -> None:
            fault, before = self._due(operator, names, len(batch))
            if fault is None:
                process(batch)
                return
            if before:
                process(batch.slice(0, before))
            raise fault.error or PlannedFailure(f"{fault.operator} fails at record {fault.record}, as planned")

        return watched

    def _watch_source(self, operator: SourceOperator, names: tuple[str | None, ...]) -> None:
        poll = operator.poll

        def watched(max_records: int, now_ms: float) -> int:
            fault, _ = self._due(operator, names, 1)
            if fault is not None:
                raise fault.error or PlannedFailure(f"{fault.operator} fails at record {fault.record}, as planned")
            count = poll(max_records, now_ms)
            self._seen[operator.node.operator_id] += count - 1
            return count

        operator.poll = watched  # type: ignore[method-assign]

    def _due(self, operator: Operator, names: tuple[str | None, ...], count: int) -> tuple[FailAt | None, int]:
        """The fault within the next `count` records, and how many records come before it."""
        seen = self._seen[operator.node.operator_id]
        self._seen[operator.node.operator_id] = seen + count
        for fault in self._failures:
            if fault.operator in names and fault.record <= seen + count:
                self._failures.remove(fault)
                self._seen[operator.node.operator_id] = max(seen, fault.record - 1)
                return fault, max(0, fault.record - 1 - seen)
        return None, 0
