"""What the subtasks say to the driver when a batch is done: one row each."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidegate.common.errors import check_internal
from tidegate.common.ids import OperatorId
from tidegate.common.metric_values import MetricReport
from tidegate.protocol.messages import StateReport, StateResult
from tidegate.spark.micro_batch.exchange import REPORT
from tidegate.storage.handles import TaskSnapshot


@dataclass(frozen=True)
class TakenSplits:
    """What one subtask of a source that finds splits has taken in a batch."""

    operator_id: OperatorId
    names: tuple[str, ...]  # of those splits; when it starts from a snapshot, of all that it has
    count: int  # how many of them the order had
    complete: bool  # the order said that there are no others to come


@dataclass(frozen=True)
class TaskReport:
    vertex: int
    subtask: int
    records_in: int
    records_out: int
    given: int | None  # to the outside, by its sinks; None: it has none
    ended: bool  # all input was processed, in this batch or before
    reads: bool  # a source, whose `records_in` it has read
    state_bytes: int = 0  # written to Spark's state store
    took_ms: float = 0.0
    metrics: tuple[MetricReport, ...] = ()
    accumulators: bytes = b""
    committables: tuple[tuple[OperatorId, bytes], ...] = ()  # by operator: the pickled list
    collected: tuple[bytes, ...] = ()  # results of `execute_and_collect`: pickled lists of values
    printed: tuple[tuple[bool, str], ...] = ()  # lines of print sinks, in order: whether to standard error, and which
    taken: TakenSplits | None = None
    states: tuple[StateReport, ...] = ()  # its keyed states, with their sizes
    answers: tuple[tuple[str, StateResult], ...] = ()  # by the number of the question
    savepoint: str = ""  # the folder that its part of a savepoint is in, or should be
    drain: bool = False  # the sources were told to end with it
    snapshot: bytes = b""  # msgpack of a TaskSnapshot: that part
    savepoint_error: str = ""  # why it could not write its part
    begun_with: int | None = None  # the attempt that has written the state that it has taken up

    def to_row(self) -> bytes:
        return REPORT + pickle.dumps(self, 5)


@dataclass(frozen=True)
class BatchReport:
    """All subtasks, in order."""

    batch: int
    tasks: list[TaskReport] = field(default_factory=list)

    @staticmethod
    def read(batch: int, payloads: Iterable[bytes], expected: set[tuple[int, int]]) -> BatchReport:
        tasks = [pickle.loads(memoryview(payload)[1:]) for payload in payloads]
        tasks.sort(key=lambda task: (task.vertex, task.subtask))
        told = [(task.vertex, task.subtask) for task in tasks]
        check_internal(
            len(told) == len(set(told)) and set(told) == expected,
            f"the report of batch {batch} is of {told} and not of {sorted(expected)}",
        )
        return BatchReport(batch, tasks)

    @property
    def ended(self) -> bool:
        return all(task.ended for task in self.tasks)

    @property
    def records_read(self) -> int:
        return sum(task.records_in for task in self.tasks if task.reads)

    def all_read(self, endless: Collection[int]) -> bool:
        """Nothing was there to read, and nothing will come that ends by itself. `endless`: vertices of sources that do
        not."""
        sources = [task for task in self.tasks if task.reads]
        return self.records_read == 0 and all(task.ended or task.vertex in endless for task in sources)

    @property
    def state_bytes(self) -> int:
        return sum(task.state_bytes for task in self.tasks)

    def committables(self) -> list[tuple[OperatorId, bytes]]:
        return [pair for task in self.tasks for pair in task.committables]

    def taken(self) -> list[TakenSplits]:
        return [task.taken for task in self.tasks if task.taken is not None]

    def states(self) -> list[StateReport]:
        return [state for task in self.tasks for state in task.states]

    def answers(self) -> list[tuple[str, StateResult]]:
        return [answer for task in self.tasks for answer in task.answers]

    def foreign_state(self, attempt: int | None) -> TaskReport | None:
        """A subtask whose state was not written by this attempt (None: nobody knows which it has to be)."""
        wrong = (task for task in self.tasks if task.begun_with not in (None, attempt))
        return None if attempt is None else next(wrong, None)

    def snapshots(self) -> list[TaskSnapshot]:
        return [msgspec.msgpack.decode(t.snapshot, type=TaskSnapshot) for t in self.tasks if t.snapshot]

    @property
    def savepoint(self) -> str:
        """The folder of the savepoint that was ordered for this batch, "" without one. It may be an order of a driver
        that is dead: Spark runs a batch again with the order that it had."""
        return next((t.savepoint for t in self.tasks if t.savepoint), "")

    @property
    def drain(self) -> bool:
        """The job ends with that savepoint: there is nothing left to go on with."""
        return any(task.drain for task in self.tasks)

    def savepoint_error(self) -> str:
        return next((t.savepoint_error for t in self.tasks if t.savepoint_error), "")

    def printed(self) -> list[tuple[bool, str]]:
        return [lines for task in self.tasks for lines in task.printed]

    def collected(self) -> list[Any]:
        return [payload for task in self.tasks for payload in task.collected]
