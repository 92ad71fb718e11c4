"""Looks at the keyed state of a micro-batch job: a question goes with the order for the next batch, the subtask that
has the key answers at the end of that batch, and the answer is handed out when Spark has committed it.

So an answer is never rolled back, and costs the job no more than the bucket of the key. It comes after one batch, or
after two when one is under way.
"""

from __future__ import annotations

import base64
import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidegate.common.completable_future import CompletableFuture
from tidegate.common.errors import StateNotReadableError
from tidegate.common.ids import CheckpointId, OperatorId, SlotIndex, SubtaskIndex, VertexId
from tidegate.common.job_status import JobStatus
from tidegate.graph.job_graph import JobGraph
from tidegate.protocol.messages import StateLookup, StateProblem, StateResult
from tidegate.state import serialization

MAX_OPEN = 1_000
"""Lookups that wait for an answer; more are refused."""

_PER_BATCH_BYTES = 1 << 18  # of questions: they are in Spark's offset log
_ANSWER_BYTES = 8 << 20  # of all answers of a subtask in one batch, which are in the driver's memory
_MESSAGES = 20  # of questions to a subtask in one batch: what is put off goes with the next
_SCANNED_BUCKETS = 256  # that are read for entries to show
_TOO_MUCH = StateResult(
    problem=StateProblem.TOO_LARGE,
    detail="too much was asked of one subtask in one batch: ask for fewer keys, or again",
)


class Look(msgspec.Struct, frozen=True):
    """One question, as it is in the order for a batch."""

    number: str  # no other has it, also not one of a driver before this one, whose batch may be run again
    vertex: int
    subtask: int
    operator_id: str
    state: str
    query: str  # pickled, in base64


# ---------------------------------------------------------------- in a subtask


class SubtaskLooks:
    """What one subtask is asked in one batch."""

    def __init__(self, looks: Iterable[Look], vertex: int, subtask: int) -> None:
        self._looks = [look for look in looks if (look.vertex, look.subtask) == (vertex, subtask)]

    def __bool__(self) -> bool:
        return bool(self._looks)

    def buckets(self, of_key: Callable[[Any], int], there: Iterable[int]) -> set[int]:
        """That have to be loaded besides. `there`: those that have anything."""
        found: set[int] = set()
        for look in self._looks:
            # A key that cannot be made, or has no hash, is told with the answer.
            with contextlib.suppress(Exception):
                keys, _, limit = serialization.unpickle(base64.b64decode(look.query))
                found |= {*sorted(there)[: min(limit, _SCANNED_BUCKETS)]} if keys is None else set(map(of_key, keys))
        return found

    def answers(
        self, answer: Callable[[Sequence[StateLookup]], tuple[tuple[StateResult, ...], float]]
    ) -> tuple[tuple[str, StateResult], ...]:
        """`answer`: as `StateReads.answer`."""
        told: dict[str, StateResult] = {}
        size, left = 0, self._looks
        for _ in range(_MESSAGES):
            if not left:
                break
            for look, result in zip(left, answer([_lookup(look) for look in left])[0], strict=True):
                size += len(result.answer)
                told[look.number] = _TOO_MUCH if size > _ANSWER_BYTES else result
            left = [look for look in left if told[look.number].problem is StateProblem.PUT_OFF]
        return tuple((told | {look.number: _TOO_MUCH for look in left}).items())


def _lookup(look: Look) -> StateLookup:
    return StateLookup(
        vertex=VertexId(look.vertex),
        operator_id=OperatorId(look.operator_id),
        state=look.state,
        query=base64.b64decode(look.query),
    )


# ---------------------------------------------------------------- on the driver


@dataclass
class _Question:
    """Lookups whose answers are to be of one batch."""

    looks: list[Look]
    sent: bool = False
    answers: dict[str, CompletableFuture[StateResult]] = field(init=False)  # by the number of the lookup

    def __post_init__(self) -> None:
        self.answers = {look.number: CompletableFuture() for look in self.looks}


class BatchLooks:
    """`tidegate.jobmanager.live_state.Asked`: `ask` from any thread, the rest from the job's."""

    patience_s = 60.0

    def __init__(self, graph: JobGraph) -> None:
        self._subtasks = {
            (int(vertex), graph.slot_of(vertex, SubtaskIndex(subtask))): subtask
            for vertex, subtask in graph.all_tasks()
        }
        self._lock = threading.Lock()
        self._open: list[_Question] = []  # the oldest first
        self._over = ""  # why nobody can be asked any more

    def ask(self, lookups: Sequence[tuple[SlotIndex, StateLookup]], timeout_s: float) -> list[StateResult]:
        """The answers, in order, all of one batch. Raises StateNotReadableError when they do not come."""
        asked = _Question([self._look(slot, lookup) for slot, lookup in lookups])
        with self._lock:
            if self._over:
                raise StateNotReadableError(self._over)
            waiting = sum(len(question.looks) for question in self._open)
            if waiting + len(asked.looks) > MAX_OPEN:
                raise StateNotReadableError(
                    f"{waiting} questions about the job's state are open, of {MAX_OPEN} at most: try again"
                )
            self._open.append(asked)
        end = time.monotonic() + timeout_s
        try:
            return [answer.result(max(0.0, end - time.monotonic())) for answer in asked.answers.values()]
        except TimeoutError:
            raise StateNotReadableError(
                f"the job has not answered within {timeout_s:g} s: an answer comes with the end of a batch"
            ) from None
        finally:
            with self._lock:
                self._open.remove(asked)

    def _look(self, slot: SlotIndex, lookup: StateLookup) -> Look:
        return Look(
            number=uuid.uuid4().hex,
            vertex=int(lookup.vertex),
            subtask=int(self._subtasks[int(lookup.vertex), slot]),
            operator_id=str(lookup.operator_id),
            state=lookup.state,
            query=base64.b64encode(lookup.query).decode(),
        )

    def take(self) -> list[Look]:
        """For the batch that is about to be allowed. What is too much for one waits for the next."""
        taken: list[Look] = []
        size = 0
        with self._lock:
            for question in self._open:
                if question.sent:
                    continue
                size += sum(len(look.query) for look in question.looks)
                if taken and size > _PER_BATCH_BYTES:
                    break
                question.sent = True
                taken += question.looks
        return taken

    def done(self, answers: Iterable[tuple[str, StateResult]], checkpoint_id: CheckpointId) -> None:
        """The batch is committed. There may be answers that nobody waits for: who asked has given up, or was a driver
        before this one."""
        with self._lock:
            waiting = {number: answer for question in self._open for number, answer in question.answers.items()}
        for number, result in answers:
            if number in waiting:
                waiting[number].complete(msgspec.structs.replace(result, checkpoint=checkpoint_id))

    def status_changed(self, status: JobStatus) -> None:
        """What goes with a batch that may not come to its end is answered no more."""
        if status is JobStatus.RUNNING:
            return
        why = f"the job does not run now: it is {status.name}"
        with self._lock:
            if status.is_terminal_state():
                why = self._over = f"the job is over ({status.name}): a savepoint of it can be read as a table"
            left = [answer for question in self._open for answer in question.answers.values()]
        for answer in left:
            answer.complete_exceptionally(StateNotReadableError(why))
