"""Splits that turn up while a micro-batch job runs: the driver looks for them, the order for a batch deals them out.

What is known is in the checkpoint location, and moves with the batches: a split becomes known when Spark has committed
the batch in whose order it was. Until then it is found again after a failure, and a batch that Spark runs again has it
in its order still. So each is read once: by the batch that brings it, and its successors.
"""

from __future__ import annotations

import base64
import queue
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from tidegate.common.errors import TidegateError
from tidegate.common.ids import AttemptNumber, OperatorId
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec
from tidegate.jobmanager.discovery_work import DiscoveryWork
from tidegate.jobmanager.split_discovery import SplitDiscovery
from tidegate.protocol.instructions import DiscoverSplits, FoundSplit, FoundSplits
from tidegate.protocol.messages import FailureInfo
from tidegate.spark.micro_batch.plan import SplitOrder
from tidegate.spark.micro_batch.report import TakenSplits
from tidegate.storage.handles import EnumeratorState

States = Mapping[OperatorId, EnumeratorState]

_MOST_AT_ONCE = 1000  # splits in one order, which is a line of Spark's log


class DiscoveryError(TidegateError):
    """An enumerator has failed; the attempt fails with it."""


def first_states(graph: JobGraph, point: RestorePoint | None) -> States:
    """What is known when the job begins: the splits of the submission, or what the snapshot says."""
    discovery = SplitDiscovery(graph)
    discovery.begin(AttemptNumber(0), point)
    return discovery.states()


class SplitSearch:
    """For the job's thread, which calls `look` now and then, `orders` for each batch, and `taken` when it is committed.
    `wake` is called when there is an answer."""

    def __init__(self, graph: JobGraph, states: States, wake: Callable[[], None]) -> None:
        self.states: dict[OperatorId, EnumeratorState] = dict(states)
        self._wake = wake
        self._work = DiscoveryWork(graph)
        self._parallelism: dict[OperatorId, int] = {}
        self._interval: dict[OperatorId, float] = {}
        for vertex in graph.vertices:
            head = vertex.operators[0]
            if head.operator_id in self.states and isinstance(head.spec, SourceSpec):
                self._parallelism[head.operator_id] = vertex.parallelism
                self._interval[head.operator_id] = head.spec.source.discovery_interval_ms or 0.0
        self._due: dict[OperatorId, float] = dict.fromkeys(self._parallelism, 0.0)  # when to ask next
        self._asked: set[OperatorId] = set()  # an answer is due
        self._answered: set[OperatorId] = set()  # at least once
        self._ended: set[OperatorId] = set()  # those whose enumerator has found the last
        self._found: dict[OperatorId, list[FoundSplit]] = {}  # not known yet
        # Bounded: one answer to a question, and one question of a source at a time.
        self._answers: queue.SimpleQueue[tuple[OperatorId, FoundSplits | FailureInfo]] = queue.SimpleQueue()

    @property
    def at_rest(self) -> bool:
        """All that is there now is known."""
        return self._answered >= self._parallelism.keys() and not any(self._found.values())

    def look(self, now_ms: float) -> None:
        """Raises DiscoveryError when an enumerator has failed."""
        while not self._answers.empty():
            self._take_answer(*self._answers.get(), now_ms)
        for operator_id, due_ms in self._due.items():
            over = self.states[operator_id].complete or operator_id in self._ended
            if over:
                self._answered.add(operator_id)
            elif operator_id not in self._asked and now_ms >= due_ms:
                self._asked.add(operator_id)
                known = frozenset(self.states[operator_id].known)
                self._work.discover(
                    DiscoverSplits(AttemptNumber(0), operator_id, known), partial(self._answer, operator_id)
                )

    def _answer(self, operator_id: OperatorId, found: FoundSplits | FailureInfo) -> None:
        self._answers.put((operator_id, found))
        self._wake()

    def _take_answer(self, operator_id: OperatorId, found: FoundSplits | FailureInfo, now_ms: float) -> None:
        self._asked.discard(operator_id)
        self._due[operator_id] = now_ms + self._interval[operator_id]
        if isinstance(found, FailureInfo):
            raise DiscoveryError(found.summary)
        self._answered.add(operator_id)
        self._found[operator_id] = list(found.splits)
        self._forget_known(operator_id)
        if found.complete:
            self._ended.add(operator_id)

    def _forget_known(self, operator_id: OperatorId) -> None:
        known = set(self.states[operator_id].known)
        waiting = self._found.get(operator_id, [])
        self._found[operator_id] = [split for split in waiting if not known.intersection(split.names)]

    def orders(self) -> dict[str, SplitOrder]:
        """For the next batch, by source: what has been found, dealt out in turn, and whether that was all."""
        made = {}
        for operator_id, state in self.states.items():
            waiting = self._found.get(operator_id, [])
            readers, now = self._parallelism[operator_id], waiting[:_MOST_AT_ONCE]
            turns = range(state.handed_out, state.handed_out + len(now))
            payloads = [base64.b64encode(split.payload).decode() for split in now]
            splits = [(turn % readers, payload) for turn, payload in zip(turns, payloads, strict=True)]
            last = state.complete or (operator_id in self._ended and len(now) == len(waiting))
            if splits or last:
                made[str(operator_id)] = SplitOrder(splits=splits, complete=last)
        return made

    def taken(self, parts: Iterable[TakenSplits]) -> None:
        """What the subtasks say of their orders, when Spark has committed the batch."""
        for part in parts:
            state = self.states[part.operator_id]
            self.states[part.operator_id] = EnumeratorState(
                known=list(dict.fromkeys([*state.known, *part.names])),
                handed_out=state.handed_out + part.count,
                complete=state.complete or part.complete,
            )
            self._forget_known(part.operator_id)

    def close(self) -> None:
        self._work.close()
