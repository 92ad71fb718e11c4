"""Looks at the keyed state of a slot's tasks from outside: what JobManager asks between two slices of work.

Nothing that is asked can fail the slot or change its state: whatever goes wrong is part of the answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidegate.common.ids import AttemptNumber
from tidegate.common.texts import bounded, encodable
from tidegate.common.value_sizes import estimated_size
from tidegate.network.elements import MIN_WATERMARK
from tidegate.protocol.messages import MAX_SUMMARY, StateLookup, StateProblem, StateReport, StateResult
from tidegate.state import serialization
from tidegate.state.named_states import NamedStates
from tidegate.state.reading import (
    ReadableTable,
    TooLargeToReadError,
    is_shown,
    is_strange_key,
    key_types_of,
    read_key,
    resolve,
    scan,
    shown_names,
)
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.task import Task

MAX_ANSWER = 1 << 20  # bytes of one answer
_REPORT_MS = 2_000.0
_REPORT_SHARE = 100  # reports take at most a hundredth of the time


@dataclass(frozen=True)
class OperatorTables:
    """`state.reading.StateTables` of one operator: what it keeps besides its backend comes first."""

    operator: Operator
    keyed: NamedStates

    def readable(self, name: str) -> ReadableTable | None:
        return self.operator.readable_table(name) or self.keyed.readable(name)

    def names(self) -> list[str]:
        return self.keyed.names()


class StateReads:
    """For the mailbox thread; `reports` are read by the control thread too."""

    def __init__(self, attempt: AttemptNumber, clock: Clock, spent_ms: Callable[[], float]) -> None:
        """`spent_ms`: the processor time of the mailbox thread."""
        self._attempt = attempt
        self._clock = clock
        self._spent_ms = spent_ms
        self._tasks: Sequence[Task] = ()
        self._next_report = 0.0
        self.reports: tuple[StateReport, ...] = ()  # replaced, never changed

    def watch(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks

    def answer(self, lookups: Sequence[StateLookup]) -> tuple[tuple[StateResult, ...], float]:
        """And how long it took, in ms. What is in memory costs time of the processor: the clock would count how long
        other threads and processes were at work meanwhile. What is read from a disk costs time by the clock."""
        now = self._clock.now_ms if any(map(self._reads_from_disk, lookups)) else self._spent_ms
        began = now()
        results = tuple(self._result(lookup) for lookup in lookups)
        return results, now() - began

    def _reads_from_disk(self, lookup: StateLookup) -> bool:
        found = next((t for t in self._tasks if t.vertex.vertex_id == lookup.vertex), None)
        operators = () if found is None else found.chain.operators
        return any(isinstance(o.context.keyed, NamedStates) and o.context.keyed.reads_from_disk for o in operators)

    def _result(self, lookup: StateLookup) -> StateResult:
        try:
            return self._look(lookup)
        except TooLargeToReadError as error:
            return StateResult(problem=StateProblem.TOO_LARGE, detail=str(error))
        except Exception as error:
            detail = bounded(encodable(f"{type(error).__name__}: {error}"), MAX_SUMMARY)
            return StateResult(problem=StateProblem.FAILED, detail=detail)

    def _look(self, lookup: StateLookup) -> StateResult:
        task, tables = self._find(lookup)
        table = None if tables is None else resolve(tables, lookup.state)
        if tables is None or table is None:
            names = () if tables is None else tuple(shown_names(tables))
            return StateResult(problem=StateProblem.UNKNOWN_STATE, names=names)
        if table.info.hidden:
            return StateResult(problem=StateProblem.HIDDEN)
        keys, window, limit = serialization.unpickle(lookup.query)
        rules = tables.keyed.read_rules(table.info.name)
        if keys is None:
            found = scan(table, limit, rules)
        else:
            found = [read_key(tables, table, key, window, rules) for key in keys]
            strange = next((f.key for f in found if not f.values and is_strange_key(table, f.key)), None)
            if strange is not None:
                return StateResult(
                    problem=StateProblem.WRONG_KEY, detail=type(strange).__name__, names=key_types_of(table)
                )
        if estimated_size(found) > 2 * MAX_ANSWER:
            raise _too_large()
        answer = serialization.dumps(found)
        if len(answer) > MAX_ANSWER:
            raise _too_large()
        watermark = task.time.watermark
        told = watermark if watermark > MIN_WATERMARK else None
        return StateResult(answer=answer, attempt=self._attempt, watermark=told)

    def _find(self, lookup: StateLookup) -> tuple[Task, OperatorTables | None]:
        task = next(t for t in self._tasks if t.vertex.vertex_id == lookup.vertex)
        for operator in task.chain.operators:
            keyed = operator.context.keyed
            if operator.node.operator_id == lookup.operator_id and isinstance(keyed, NamedStates):
                return task, OperatorTables(operator, keyed)
        return task, None

    # ------------------------------------------------------------ how large the states are
    def report_if_due(self, now_ms: float) -> None:
        """Counting may take a while: the longer it takes, the rarer it is done. What the user's objects do when their
        size is guessed is no failure of the job: there is no news then."""
        if now_ms < self._next_report:
            return
        with contextlib.suppress(Exception):
            self.reports = tuple(report for task in self._tasks for report in _reports(task))
        took = self._clock.now_ms() - now_ms
        self._next_report = now_ms + max(_REPORT_MS, took * _REPORT_SHARE)


def _reports(task: Task) -> Iterable[StateReport]:
    for operator in task.chain.operators:
        keyed = operator.context.keyed
        if not isinstance(keyed, NamedStates):
            continue
        tables = OperatorTables(operator, keyed)
        figures = keyed.figures()
        for name in tables.names():
            table = tables.readable(name)
            if table is None or not is_shown(table.info):
                continue
            own = operator.readable_table(name)
            counted = figures[name] if own is None else own.figures()
            yield StateReport(
                vertex=task.vertex.vertex_id,
                subtask=task.subtask,
                operator_id=operator.node.operator_id,
                state=name,
                kind=table.info.kind,
                per_window=table.info.namespaced,
                type=table.info.type_description,
                key_types=() if table.info.hidden else key_types_of(table),
                entries=counted.entries,
                exact=counted.exact,
                bytes=counted.bytes,
                hidden=table.info.hidden,
            )


def _too_large() -> TooLargeToReadError:
    return TooLargeToReadError(
        f"the answer would have more than {MAX_ANSWER >> 20} MiB: ask for fewer keys, or take a savepoint and read the "
        "state as a table"
    )
