"""The keyed state of a running job, as its client sees it: `JobClient.get_state`.

A key is routed as the exchange routes records: key, key group, subtask, slot. A *live* read asks that slot between two
slices of its work (`state_queries`), a *committed* one reads the files of the last completed checkpoint
(`committed_state`). A micro-batch job has one kind of answers: its state as of the end of a batch that is committed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from tidegate.common.errors import (
    ConfigurationError,
    StateReadError,
    UnknownStateError,
    WrongKeyError,
)
from tidegate.common.ids import SlotIndex, SubtaskIndex
from tidegate.common.typeinfo import TypeInformation, value_converter
from tidegate.common.value_conversion import shorten
from tidegate.graph.job_graph import JobGraph, JobVertex, OperatorNode
from tidegate.jobmanager.committed_state import CommittedState
from tidegate.jobmanager.job_publisher import JobPublisher
from tidegate.jobmanager.job_view import StateView
from tidegate.jobmanager.query_settings import hidden_by_descriptor
from tidegate.protocol.messages import StateLookup, StateProblem, StateResult
from tidegate.state import serialization
from tidegate.state.key_groups import KeyRouter, is_unhashable, unhashable_key
from tidegate.state.read_budget import TooLargeToReadError
from tidegate.state.reading import WINDOW_CONTENTS, WINDOW_LAYOUTS, Found

MAX_KEYS = 1_000
MAX_SCANNED = 1_000


class StateLevel(enum.Enum):
    LIVE = "live"  # what the operator would see now; a failure may roll it back
    COMMITTED = "committed"  # as of the last completed checkpoint; never rolled back

    @staticmethod
    def of(level: StateLevel | str) -> StateLevel:
        try:
            return StateLevel(level)
        except ValueError:
            raise ConfigurationError(f"level is 'live' or 'committed', not {level!r}") from None


@dataclass(frozen=True)
class StateAnswer:
    """What a key had. Of a state that is kept per window, and without a window in the question, `value` is a dict by
    window. An aggregating state shows its result when it is live, and its accumulator when it is committed."""

    key: Any
    value: Any  # None: there is nothing, and `found` is False
    found: bool
    level: StateLevel
    checkpoint: int | None = None  # that the value belongs to; None for a live one
    watermark: int | None = None  # of the task when it was read; None for a committed one, and before the first one
    attempt: int | None = None  # of the job, for a live one: what an attempt has not checkpointed is lost when it fails
    window: Any = None  # of an answer of `scan`, and of a question with a window
    by_window: bool = False  # `value` is a dict by window


class Asked(Protocol):
    """Whoever has the subtasks of a job answer lookups. Thread-safe."""

    @property
    def patience_s(self) -> float:
        """How long a question waits when its asker does not say."""

    def ask(self, lookups: Sequence[tuple[SlotIndex, StateLookup]], timeout_s: float) -> list[StateResult]:
        """The answers, in order. Raises StateNotReadableError when they do not come."""


class LiveStates:
    """The states of one job. Thread-safe."""

    def __init__(
        self, graph: JobGraph, publisher: JobPublisher, queries: Asked, committed: CommittedState | None
    ) -> None:
        """`committed`: None when what `queries` answer is committed."""
        self._graph = graph
        self._publisher = publisher
        self.queries = queries
        self.committed = committed

    def listing(self) -> tuple[StateView, ...]:
        """As of the latest heartbeats."""
        return self._publisher.view.states

    def handle(self, operator: str, state: str) -> StateHandle:
        """`operator`: uid, name or operator id. Raises UnknownStateError, StateHiddenError."""
        vertex, node = self._find(operator)
        states = [state]
        if state == WINDOW_CONTENTS or state in WINDOW_LAYOUTS:
            states = [state, WINDOW_CONTENTS, *WINDOW_LAYOUTS]
        names = [name for name in (node.uid, node.name, node.operator_id) if name]
        self._publisher.queries.check(names, states)
        # The program may hide what it did not when the last checkpoint was written.
        if any(v.hidden and v.operator_id == node.operator_id and v.state == state for v in self.listing()):
            raise hidden_by_descriptor(state, names[0])
        return StateHandle(self._graph, vertex, node, state, self._publisher, self.queries, self.committed)

    def _find(self, wanted: str) -> tuple[JobVertex, OperatorNode]:
        keyed = [(v, node) for v in self._graph.vertices for node in v.operators if node.spec.keyed]
        for matches in (
            [(v, node) for v, node in keyed if node.uid == wanted],
            [(v, node) for v, node in keyed if node.operator_id == wanted],
            [(v, node) for v, node in keyed if node.name == wanted],
        ):
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise UnknownStateError(
                    f"the job has {len(matches)} operators with the name '{wanted}': give them uids, or use the id of "
                    f"one: {', '.join(node.operator_id for _, node in matches)}"
                )
        there = ", ".join(f"'{node.uid or node.name}'" for _, node in keyed) or "none at all"
        raise UnknownStateError(
            f"the job has no operator '{wanted}' (a uid, a name or an operator id) with keyed state; it has: {there}"
        )

    def close(self) -> None:
        if self.committed is not None:
            self.committed.close()


class StateHandle:
    """One keyed state of a running job. Thread-safe. Keys are converted to the declared type of the operator's keys.

    All three methods raise WrongKeyError (the message says which type the keys have), UnknownStateError,
    StateNotReadableError (try again in a moment: the job restarts, or is slow to answer) and StateReadError."""

    def __init__(
        self,
        graph: JobGraph,
        vertex: JobVertex,
        node: OperatorNode,
        state: str,
        publisher: JobPublisher,
        queries: Asked,
        committed: CommittedState | None,
    ) -> None:
        self._graph = graph
        self._vertex = vertex
        self._node = node
        self._publisher = publisher
        self._queries = queries
        self._committed = committed
        self.state = state
        self.operator = node.uid or node.name

    @property
    def key_type(self) -> TypeInformation | None:
        """As declared in key_by; None when it was not."""
        found: TypeInformation | None = self._node.key_type
        return found

    @property
    def key_types(self) -> tuple[str, ...]:
        """What some of the keys are, as classes of Python; () while nothing is known."""
        names = WINDOW_LAYOUTS if self.state == WINDOW_CONTENTS else (self.state,)
        for view in self._publisher.view.states:
            if view.operator_id == self._node.operator_id and view.state in names:
                return view.key_types
        return ()

    def get(
        self,
        key: Any,
        *,
        level: StateLevel | str = StateLevel.LIVE,
        window: Sequence[Any] | None = None,
        timeout: float | None = None,
    ) -> StateAnswer:
        """`window`: of a state that is kept per window, a window or the tuple of its parts, such as (start, end).
        `timeout`: s; of a question to the workers. None: 5, and in MICRO_BATCH mode 60."""
        return self.get_many([key], level=level, window=window, timeout=timeout)[0]

    def get_many(
        self,
        keys: Iterable[Any],
        *,
        level: StateLevel | str = StateLevel.LIVE,
        window: Sequence[Any] | None = None,
        timeout: float | None = None,
    ) -> list[StateAnswer]:
        """In the order of the keys. Each live answer is of one moment of its subtask; subtasks are not in step."""
        wanted = [self._key(key) for key in keys]
        if len(wanted) > MAX_KEYS:
            raise ConfigurationError(
                f"get_many takes at most {MAX_KEYS:,} keys, got {len(wanted):,}: ask several times"
            )
        place = None if window is None else tuple(window)
        committed = self._committed
        if StateLevel.of(level) is StateLevel.COMMITTED and committed is not None:
            answer = self._named(lambda: committed.get(self._node.operator_id, self.state, wanted, place))
            return [_committed(found, answer.checkpoint_id, place is None) for found in answer.found]
        router = KeyRouter(self._vertex.max_parallelism, self._vertex.parallelism)
        by_subtask: dict[SubtaskIndex, list[int]] = {}
        for position, key in enumerate(wanted):
            by_subtask.setdefault(router[key], []).append(position)
        asked = [
            (self._slot(subtask), self._lookup([wanted[p] for p in positions], place, 0))
            for subtask, positions in by_subtask.items()
        ]
        answers: list[StateAnswer | None] = [None] * len(wanted)
        for positions, result in zip(by_subtask.values(), self._ask(asked, timeout), strict=True):
            for position, found in zip(positions, self._found(result), strict=True):
                answers[position] = _answered(found, result, place is None)
        return [answer for answer in answers if answer is not None]

    def scan(
        self, limit: int = 100, *, level: StateLevel | str = StateLevel.LIVE, timeout: float | None = None
    ) -> list[StateAnswer]:
        """Some entries, at most `limit`, in no certain order: a look at what is there, not a way to read all of it. Of
        a state that is kept per window each answer is one window of a key."""
        if not 1 <= limit <= MAX_SCANNED:
            raise ConfigurationError(
                f"scan takes a limit of 1 to {MAX_SCANNED:,}, not {limit}: all of a state is read as a table"
            )
        committed = self._committed
        if StateLevel.of(level) is StateLevel.COMMITTED and committed is not None:
            answer = self._named(lambda: committed.scan(self._node.operator_id, self.state, limit))
            return [_committed(found, answer.checkpoint_id, False) for found in answer.found]
        subtasks = range(self._vertex.parallelism)
        # Each answer takes a batch where answers come with the end of one: all are asked at once.
        rounds = [[subtask] for subtask in subtasks] if committed is not None else [[*subtasks]]
        answers: list[StateAnswer] = []
        for together in rounds:
            lookup = self._lookup(None, None, limit - len(answers))
            for result in self._ask([(self._slot(SubtaskIndex(subtask)), lookup) for subtask in together], timeout):
                answers += [_answered(found, result, False) for found in self._found(result)]
            if len(answers) >= limit:
                break
        return answers[:limit]

    # ------------------------------------------------------------ details
    def _slot(self, subtask: SubtaskIndex) -> SlotIndex:
        return self._graph.slot_of(self._vertex.vertex_id, subtask)

    def _ask(self, lookups: list[tuple[SlotIndex, StateLookup]], timeout: float | None) -> list[StateResult]:
        return self._queries.ask(lookups, self._queries.patience_s if timeout is None else timeout)

    def _key(self, key: Any) -> Any:
        convert = value_converter(self.key_type)
        try:
            converted = key if convert is None else convert(key)
            if is_unhashable(converted):
                raise unhashable_key(converted)
            KeyRouter(self._vertex.max_parallelism, 1)[converted]
        except (TypeError, ConfigurationError) as error:
            self._wrong_key(f"{shorten(key)} cannot be one ({error})", self.key_types)
        if converted is None:
            self._wrong_key("None is none", self.key_types)
        return converted

    def _wrong_key(self, why: str, observed: Iterable[str]) -> NoReturn:
        types = str(self.key_type) if self.key_type is not None else " or ".join(observed) or "a type that is not known"
        raise WrongKeyError(f"the keys of state '{self.state}' of operator '{self.operator}' are {types}: {why}")

    def _lookup(self, keys: list[Any] | None, window: tuple[Any, ...] | None, limit: int) -> StateLookup:
        return StateLookup(
            vertex=self._vertex.vertex_id,
            operator_id=self._node.operator_id,
            state=self.state,
            query=serialization.dumps((keys, window, limit)),
        )

    def _found(self, result: StateResult) -> list[Found]:
        match result.problem:
            case None:
                found: list[Found] = serialization.loads(self.operator, self.state, result.answer)
                return found
            case StateProblem.UNKNOWN_STATE:
                hides = self._publisher.queries.hides
                there = ", ".join(f"'{n}'" for n in result.names if not hides((self.operator,), (n,))) or "none"
                raise UnknownStateError(
                    f"operator '{self.operator}' has no keyed state '{self.state}'; it has: {there}"
                )
            case StateProblem.WRONG_KEY:
                self._wrong_key(f"there is no such key of type {result.detail}", result.names)
            case StateProblem.HIDDEN:
                raise hidden_by_descriptor(self.state, self.operator)
            case StateProblem.TOO_LARGE | StateProblem.PUT_OFF:
                raise StateReadError(result.detail)
            case StateProblem.FAILED:
                raise StateReadError(
                    f"state '{self.state}' of operator '{self.operator}' cannot be read: {result.detail}"
                )

    def _named(self, read: Any) -> Any:
        try:
            return read()
        except TooLargeToReadError as error:
            raise StateReadError(str(error)) from error


def _parts(found: Found, all_windows: bool) -> dict[str, Any]:
    """The fields of an answer that say what was found."""
    if not found.values:
        return {"key": found.key, "value": None, "found": False}
    window, value = found.values[0]
    if all_windows and window is not None:
        return {"key": found.key, "value": dict(found.values), "found": True, "by_window": True}
    return {"key": found.key, "value": value, "found": True, "window": window}


def _answered(found: Found, result: StateResult, all_windows: bool) -> StateAnswer:
    parts = _parts(found, all_windows)
    if result.checkpoint is not None:
        return _committed(found, result.checkpoint, all_windows)
    return StateAnswer(level=StateLevel.LIVE, watermark=result.watermark, attempt=result.attempt, **parts)


def _committed(found: Found, checkpoint: int, all_windows: bool) -> StateAnswer:
    return StateAnswer(level=StateLevel.COMMITTED, checkpoint=checkpoint, **_parts(found, all_windows))
