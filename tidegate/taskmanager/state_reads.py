"""Looks at the keyed state of a slot's tasks from outside: what JobManager asks between two slices of work.

Nothing that is asked can fail the slot or change its state: whatever goes wrong is part of the answer. Nor can it keep
the slot for long: all lookups of one message share a budget, those that find it spent are put off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.ids import AttemptNumber, OperatorId, VertexId
from tidegate.common.texts import bounded, encodable
from tidegate.common.value_sizes import estimated_size
from tidegate.network.elements import MIN_WATERMARK
from tidegate.protocol.messages import MAX_SUMMARY, StateLookup, StateProblem, StateReport, StateResult
from tidegate.state import serialization
from tidegate.state.named_states import NamedStates
from tidegate.state.read_budget import BudgetSpentError, ReadBudget, TooLargeToReadError
from tidegate.state.reading import (
    KeyReader,
    ReadableTable,
    ReadRules,
    is_shown,
    key_types_of,
    resolve,
    scan,
    shown_names,
    strange_key,
)
from tidegate.taskmanager.clock import Clock
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.task import Task

MAX_ANSWER = 1 << 20  # bytes of one answer
_REPORT_MS = 2_000.0
_REPORT_SHARE = 100  # reports take at most a hundredth of the time


_LONG_MS = 25.0  # no further lookup of a message is begun after it
_PUT_OFF = StateResult(problem=StateProblem.PUT_OFF)

Place = tuple[VertexId, OperatorId, str]


@dataclass(frozen=True)
class OperatorTables:
    """`state.reading.StateTables` of one operator: what it keeps besides its backend comes first."""

    operator: Operator
    keyed: NamedStates

    def readable(self, name: str) -> ReadableTable | None:
        return self.operator.readable_table(name) or self.keyed.readable(name)

    def names(self) -> list[str]:
        return self.keyed.names()


class _Message:
    """What the lookups of one message share."""

    def __init__(self, lookups: Sequence[StateLookup]) -> None:
        self.budget = ReadBudget()
        self._lookups = lookups
        self._readers: dict[Place, KeyReader] = {}

    def reader(self, lookup: StateLookup, tables: OperatorTables, table: ReadableTable, rules: ReadRules) -> KeyReader:
        place = _place(lookup)
        found = self._readers.get(place)
        if found is None:
            keys = self._keys(place)
            found = self._readers[place] = KeyReader(tables, table, keys, self.budget, rules)
        return found

    def _keys(self, place: Place) -> set[Any]:
        """All that are asked for. A question that cannot be read is told as its own answer."""
        keys: set[Any] = set()
        for lookup in self._lookups:
            if _place(lookup) == place:
                with contextlib.suppress(Exception):
                    keys.update(serialization.unpickle(lookup.query)[0] or ())
        return keys


def _place(lookup: StateLookup) -> Place:
    return lookup.vertex, lookup.operator_id, lookup.state


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
        other threads and processes were at work meanwhile. What is read from a disk costs time by the clock. The first
        lookup is never put off."""
        now = self._clock.now_ms if any(map(self._reads_from_disk, lookups)) else self._spent_ms
        began = now()
        message = _Message(lookups)
        results: list[StateResult] = []
        for lookup in lookups:
            late = results and now() - began > _LONG_MS
            results.append(_PUT_OFF if late else self._result(lookup, message))
        return tuple(results), now() - began

    def _reads_from_disk(self, lookup: StateLookup) -> bool:
        found = next((t for t in self._tasks if t.vertex.vertex_id == lookup.vertex), None)
        operators = () if found is None else found.chain.operators
        return any(isinstance(o.context.keyed, NamedStates) and o.context.keyed.reads_from_disk for o in operators)

    def _result(self, lookup: StateLookup, message: _Message) -> StateResult:
        first = message.budget.untouched
        try:
            return self._look(lookup, message)
        except TooLargeToReadError as error:
            if isinstance(error, BudgetSpentError) and not first:
                return _PUT_OFF
            return StateResult(problem=StateProblem.TOO_LARGE, detail=str(error))
        except Exception as error:
            detail = bounded(encodable(f"{type(error).__name__}: {error}"), MAX_SUMMARY)
            return StateResult(problem=StateProblem.FAILED, detail=detail)

    def _look(self, lookup: StateLookup, message: _Message) -> StateResult:
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
            found = scan(table, limit, message.budget, rules)
        else:
            found = message.reader(lookup, tables, table, rules).read(keys, window)
            strange = strange_key(table, found)
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
