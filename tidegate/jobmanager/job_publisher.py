"""Publishes the view of a job: written by whoever runs the job, read by anybody."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.common.configuration import Configuration
from tidegate.common.ids import AttemptNumber, SubtaskIndex
from tidegate.common.job_status import JobStatus
from tidegate.common.metric_values import MetricReport
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.jobmanager.catch_up import RecoveryWatch
from tidegate.jobmanager.job_master import JobMaster
from tidegate.jobmanager.job_view import (
    JobView,
    StatusChange,
    SubtaskView,
    WorkerInfo,
    graph_of,
    records_in,
    settings_of,
    states_of,
)
from tidegate.jobmanager.query_settings import QuerySettings
from tidegate.jobmanager.recent_warnings import RecentWarnings
from tidegate.protocol.instructions import (
    CheckpointRequestDone,
    Instruction,
    JobEnded,
    Log,
    Send,
    StateReadDone,
    StatusChanged,
    SubmitGang,
)
from tidegate.protocol.messages import ReadState

_KEPT = 200  # changes of the status
_INTERVAL_MS = 100.0


class JobPublisher:
    """Holds the latest view. `view`, `committed` and `accumulators` may be read from any thread."""

    def __init__(
        self, graph: JobGraph, mode: str, slots: int, now_ms: float, configuration: Configuration | None = None
    ) -> None:
        subtasks = tuple(SubtaskView(vertex=v, subtask=i, slot=None) for v, i in graph.all_tasks())
        self.view = JobView(
            mode=mode,
            status_name=JobStatus.CREATED.name,
            slots=slots,
            started_ms=now_ms,
            subtasks=subtasks,
            configuration=() if configuration is None else settings_of(configuration),
            **graph_of(graph),
        )
        self.queries = QuerySettings() if configuration is None else QuerySettings.from_configuration(configuration)
        self.committed: RestorePoint | None = None  # the latest completed checkpoint, or what the job was started from
        self.accumulators: tuple[bytes, ...] = ()  # `common.accumulators.dump`, by slot or task
        self._lock = threading.Lock()

    def update(self, **changes: Any) -> None:
        """Publish a view with other values of some fields."""
        with self._lock:
            self.view = msgspec.structs.replace(self.view, **changes)


class StatusHistory:
    """The latest changes of a job's status, and what else of a view follows from them."""

    def __init__(self) -> None:
        self._changes: deque[StatusChange] = deque(maxlen=_KEPT)
        self._ran = False  # at least once
        self._down_since: float | None = None
        self._downtime = 0.0  # over all times that are over

    def add(self, status: JobStatus, attempt: AttemptNumber, now_ms: float) -> None:
        self._changes.append(StatusChange(status_name=status.name, at_ms=now_ms, attempt=attempt))
        if status is JobStatus.RUNNING or status.is_terminal_state():
            self._downtime += 0.0 if self._down_since is None else now_ms - self._down_since
            self._down_since = None
            self._ran = True
        elif self._ran and self._down_since is None:
            self._down_since = now_ms

    def fields(self) -> dict[str, Any]:
        if not self._changes:
            return {}
        latest = self._changes[-1]
        ended = latest.at_ms if latest.status.is_terminal_state() else None
        return {
            "status_name": latest.status_name,
            "ended_ms": ended,
            "status_history": tuple(self._changes),
            "downtime_ms": self._downtime,
            "down_since_ms": self._down_since,
        }


class MasterPublisher:
    """Publishes what a JobMaster knows. Called by the JobManager's thread only::

        instructions = master.on_...(...)
        publisher.after_step(instructions, now)     before the instructions are carried out
        publisher.publish_if_due(now)               at `next_deadline()` at the latest

    A step that somebody may be waiting for (a new status, an answer, the end) is published at once, before its
    instructions are carried out: whoever is woken by them sees it. All others wait for the next time, at most some
    times a second."""

    def __init__(self, publisher: JobPublisher, graph: JobGraph, master: JobMaster) -> None:
        self._publisher = publisher
        self._graph = graph
        self._master = master
        self._statuses = StatusHistory()
        self._submitted = AttemptNumber(0)
        self._due: float | None = None  # set while something is unpublished
        self._published = -_INTERVAL_MS  # when
        self._recoveries = RecoveryWatch()
        self._warnings = RecentWarnings()

    def after_step(self, instructions: Sequence[Instruction], now_ms: float) -> None:
        urgent = False
        for instruction in instructions:
            match instruction:
                case SubmitGang(attempt, _):
                    self._submitted = attempt
                    urgent = True
                case StatusChanged(status):
                    # Not the JobMaster's attempt: it may be further than this instruction.
                    self._statuses.add(status, self._submitted, now_ms)
                    urgent = True
                case CheckpointRequestDone() | JobEnded():
                    urgent = True
                case Log(level, text, in_view=False) if level >= logging.WARNING:
                    self._warnings.add(text, now_ms)
                case _:
                    pass
        if urgent:
            self.publish(now_ms)
        elif self._due is None and not (instructions and all(map(_is_a_look, instructions))):
            self._due = max(now_ms, self._published + _INTERVAL_MS)

    def next_deadline(self) -> float | None:
        return self._due

    def publish_if_due(self, now_ms: float) -> None:
        if self._due is not None and now_ms >= self._due:
            self.publish(now_ms)

    def publish(self, now_ms: float) -> None:
        self._due, self._published = None, now_ms
        master, view = self._master, self._publisher.view
        members = sorted(master.members, key=lambda member: member.slot)
        workers = tuple(
            WorkerInfo(slot=m.slot, host=m.host, pid=m.pid, attempt=master.attempt, records_in=records_in(m.metrics))
            for m in members
        )
        metrics = _all_metrics([m.metrics for m in members])
        failed = (master.failures[-1].attempt, master.failures[-1].at_ms) if master.failures else None
        running = master.status is JobStatus.RUNNING
        self._publisher.committed = master.fault_tolerance.restore_point()
        self._publisher.accumulators = tuple(m.accumulators for m in members)
        self._publisher.update(
            attempt=master.attempt,
            workers=workers,
            subtasks=view.subtasks if _same_places(workers, view.workers) and view.workers else self._places(workers),
            metrics=metrics,
            recoveries=self._recoveries.look(failed, running, master.attempt, metrics, now_ms),
            states=states_of(self._graph, self._publisher.queries, [s for m in members for s in m.states]),
            checkpoints=master.fault_tolerance.view(),
            failures=master.failures,
            warnings=self._warnings.latest,
            **{**self._statuses.fields(), "status_name": master.status.name},
        )

    def _places(self, workers: tuple[WorkerInfo, ...]) -> tuple[SubtaskView, ...]:
        by_slot = {worker.slot: worker for worker in workers}
        found = []
        for vertex, subtask in self._graph.all_tasks():
            slot = self._graph.slot_of(vertex, SubtaskIndex(subtask))
            worker = by_slot.get(slot)
            host, pid = ("", 0) if worker is None else (worker.host, worker.pid)
            found.append(SubtaskView(vertex=vertex, subtask=subtask, slot=slot, host=host, pid=pid))
        return tuple(found)


def _is_a_look(instruction: Instruction) -> bool:
    """Somebody looks at state, which may be often, and changes nothing that is published."""
    if isinstance(instruction, Send):
        return isinstance(instruction.message, ReadState)
    return isinstance(instruction, StateReadDone)


def _same_places(one: tuple[WorkerInfo, ...], other: tuple[WorkerInfo, ...]) -> bool:
    return [(w.slot, w.host, w.pid) for w in one] == [(w.slot, w.host, w.pid) for w in other]


def _all_metrics(parts: list[tuple[MetricReport, ...]]) -> tuple[MetricReport, ...]:
    return tuple(metric for part in parts for metric in part)
