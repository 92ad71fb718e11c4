"""Splits that turn up while a job runs: what is known of them, and which subtask gets which. No I/O.

One source in one attempt::

    begin              what the restore point says is known; from nothing: the splits of the submission
    on_restored        a restored subtask says what it has (a snapshot of an older version says it nowhere else)
    start              all tasks run -> DiscoverSplits, at once and then every interval
    on_found           new splits become known and are sent to the subtasks whose turn it is, in the same step
    states             asked at the trigger of a checkpoint

Why nothing is lost or read twice: a split becomes known and is sent in one step, and a checkpoint takes `states` in the
step that sends its triggers. Messages to a slot keep their order, so a split that is known at the trigger is in the
snapshot of its reader (or read to its end), and one that is not known is in no snapshot: after a recovery it is found
again. There is never a split that only this object has.

A subtask that the restore point has at the end of its data, while others are not, gets none and is told so: for those
behind it, its time is over. (All are there after a job was drained: then it goes on with all.)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidegate.common.errors import check_internal
from tidegate.common.ids import AttemptNumber, OperatorId, SubtaskIndex, VertexId
from tidegate.fault_tolerance.job_side import Outcome, TellSlots
from tidegate.fault_tolerance.recovery_points import RestorePoint
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec
from tidegate.protocol.instructions import DiscoverSplits, FoundSplits, Log
from tidegate.protocol.messages import AssignSplits
from tidegate.storage.handles import EnumeratorState


@dataclass(frozen=True)
class _GrowingSource:
    operator_id: OperatorId
    name: str
    vertex: VertexId
    parallelism: int
    interval_ms: float
    first: EnumeratorState  # with the splits of the submission


class _Known:
    """Of one source in one attempt."""

    def __init__(self, source: _GrowingSource) -> None:
        self.source = source
        self.names: dict[str, None] = dict.fromkeys(source.first.known)  # in the order in which they were found
        self.handed_out = source.first.handed_out
        self.complete = False
        self.readers = list(range(source.parallelism))  # subtasks that take splits
        self.sent = dict.fromkeys(self.readers, 0)  # messages to each
        self.asked = False  # an answer is due
        self.due_ms: float | None = None  # when the next question is; None: not before the start, nor when complete
        self._state: EnumeratorState | None = None  # of now, while nothing has changed

    def restore(self, point: RestorePoint) -> None:
        operator_id = self.source.operator_id
        before = next((o for o in point.metadata.operators if o.operator_id == operator_id), None)
        if before is None:
            return  # the snapshot does not know this source: it starts afresh
        state = point.metadata.enumerators.get(operator_id, EnumeratorState(known=[]))
        self.names = dict.fromkeys(state.known)
        self.handed_out, self.complete = state.handed_out, state.complete
        if before.parallelism == self.source.parallelism:
            at_work = [subtask for subtask in self.readers if not before.end_of_data[subtask]]
            self.readers = at_work or self.readers

    def add(self, names: list[str] | tuple[str, ...]) -> None:
        self.names.update(dict.fromkeys(names))
        self._state = None

    def next_reader(self) -> int:
        reader = self.readers[self.handed_out % len(self.readers)]
        self.handed_out += 1
        self._state = None
        return reader

    def end(self) -> None:
        self.complete, self.due_ms = True, None
        self._state = None

    @property
    def state(self) -> EnumeratorState:
        if self._state is None:
            self._state = EnumeratorState(known=list(self.names), handed_out=self.handed_out, complete=self.complete)
        return self._state


class SplitDiscovery:
    """Of one job, over all its attempts. `begin`, `on_restored`, `start`, `on_tick` and `on_found` change it."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._sources: list[_GrowingSource] = []
        for vertex in graph.vertices:
            head = vertex.operators[0]
            spec = head.spec
            interval = getattr(spec.source, "discovery_interval_ms", None) if isinstance(spec, SourceSpec) else None
            if isinstance(spec, SourceSpec) and interval is not None:
                splits = spec.splits or ()
                known = [name for split in splits for name in split.names]
                first = EnumeratorState(known=known, handed_out=len(splits))
                self._sources.append(
                    _GrowingSource(
                        head.operator_id, head.name, vertex.vertex_id, vertex.parallelism, float(interval), first
                    )
                )
        self._attempt = AttemptNumber(0)
        self._known: dict[OperatorId, _Known] = {}

    # ------------------------------------------------------------ the life of an attempt
    def begin(self, attempt: AttemptNumber, point: RestorePoint | None) -> None:
        """The workers are told what to restore."""
        self._attempt = attempt
        self._known = {source.operator_id: _Known(source) for source in self._sources}
        if point is not None:
            for known in self._known.values():
                known.restore(point)

    def on_restored(self, operator_id: OperatorId, names: list[str]) -> None:
        known = self._known.get(operator_id)
        if known is not None:
            known.add(names)

    def start(self, now_ms: float) -> list[Outcome]:
        out: list[Outcome] = []
        for known in self._known.values():
            ended = [subtask for subtask in known.sent if known.complete or subtask not in known.readers]
            out += [self._message(known, subtask, [], complete=True) for subtask in ended]
            if not known.complete:
                known.due_ms = now_ms
        return out + self.on_tick(now_ms)

    # ------------------------------------------------------------ time and answers
    def next_deadline(self) -> float | None:
        due = [known.due_ms for known in self._known.values() if known.due_ms is not None and not known.asked]
        return min(due, default=None)

    def on_tick(self, now_ms: float) -> list[Outcome]:
        out: list[Outcome] = []
        for operator_id, known in self._known.items():
            if known.due_ms is not None and not known.asked and now_ms >= known.due_ms:
                known.asked = True
                out.append(DiscoverSplits(self._attempt, operator_id, frozenset(known.names)))
        return out

    def on_found(self, operator_id: OperatorId, found: FoundSplits, now_ms: float) -> list[Outcome]:
        """The answer to DiscoverSplits of this attempt."""
        known = self._known.get(operator_id)
        if known is None or not known.asked:
            return []
        known.asked = False
        known.due_ms = now_ms + known.source.interval_ms
        parts: dict[int, list[bytes]] = {}
        for split in found.splits:
            if not any(name in known.names for name in split.names):
                known.add(split.names)
                parts.setdefault(known.next_reader(), []).append(split.payload)
        out: list[Outcome] = []
        if parts:
            count = sum(map(len, parts.values()))
            what = "a new split" if count == 1 else f"{count} new splits"
            out.append(Log(logging.INFO, f"source '{known.source.name}' has {what}"))
        if found.complete:
            known.end()
        return out + self._send(known, parts)

    def _send(self, known: _Known, parts: dict[int, list[bytes]]) -> list[Outcome]:
        """To the subtasks that get splits; to all when there are no others to come."""
        out: list[Outcome] = []
        for reader in known.readers:
            if reader not in parts and not known.complete:
                continue
            out.append(self._message(known, reader, parts.get(reader, []), known.complete))
        return out

    def _message(self, known: _Known, reader: int, splits: list[bytes], complete: bool) -> TellSlots:
        known.sent[reader] += 1
        subtask = SubtaskIndex(reader)
        message = AssignSplits(
            attempt=self._attempt,
            operator_id=known.source.operator_id,
            subtask=subtask,
            number=known.sent[reader],
            splits=splits,
            complete=complete,
        )
        return TellSlots((self._graph.slot_of(known.source.vertex, subtask),), message)

    # ------------------------------------------------------------ checkpoints
    def states(self) -> dict[OperatorId, EnumeratorState]:
        """What belongs into a checkpoint that is triggered in this step."""
        return {operator_id: known.state for operator_id, known in self._known.items()}

    def check_invariants(self) -> None:
        for known in self._known.values():
            check_internal(not known.complete or known.due_ms is None, "splits are looked for that cannot come")
            check_internal(bool(known.readers), "there is nobody to read a split")
