"""What the instruction DiscoverSplits asks of the enumerators of a job's sources, done on threads of its own."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable

import cloudpickle

from tidegate.common.errors import JobGraphError
from tidegate.common.ids import OperatorId
from tidegate.contracts.connectors import Discovery, SourceSplit, SplitEnumerator
from tidegate.graph.job_graph import JobGraph
from tidegate.graph.operator_specs import SourceSpec
from tidegate.protocol.instructions import DiscoverSplits, FoundSplit, FoundSplits
from tidegate.protocol.messages import FailureInfo

Answer = Callable[[FoundSplits | FailureInfo], None]


class DiscoveryWork:
    """For the thread of a JobManager: nothing blocks. One enumerator per source, asked by one thread at a time."""

    def __init__(self, graph: JobGraph) -> None:
        self._heads = {vertex.operators[0].operator_id: vertex for vertex in graph.vertices}
        self._enumerators: dict[OperatorId, SplitEnumerator] = {}
        self._locks: dict[OperatorId, threading.Lock] = {}
        self._closed = False

    def discover(self, instruction: DiscoverSplits, answer: Answer) -> None:
        """`answer` is called on another thread; never when the job has ended meanwhile."""
        lock = self._locks.setdefault(instruction.operator_id, threading.Lock())

        def work() -> None:
            with lock:  # a question of the attempt before may still be under way
                found = self.look(instruction)
            if not self._closed:
                answer(found)

        threading.Thread(target=work, name="tidegate-discovery", daemon=True).start()

    def look(self, instruction: DiscoverSplits) -> FoundSplits | FailureInfo:
        """On this thread."""
        vertex = self._heads[instruction.operator_id]
        head = vertex.operators[0]
        spec = head.spec
        try:
            if not isinstance(spec, SourceSpec):
                raise JobGraphError(f"'{head.name}' is no source: it has no splits")
            enumerator = self._enumerators.get(instruction.operator_id)
            if enumerator is None:
                enumerator = spec.source.create_enumerator(vertex.parallelism)
                self._enumerators[instruction.operator_id] = enumerator
            return _found(head.name, enumerator.discover(instruction.known))
        except Exception as error:
            summary = f"'{head.name}': looking for new splits: {type(error).__name__}: {error}"
            return FailureInfo(summary=summary, traceback=traceback.format_exc(), operator=head.name)

    def close(self) -> None:
        """The job has ended. An enumerator that is being asked right now is left to its thread."""
        self._closed = True
        for operator_id, enumerator in list(self._enumerators.items()):
            if not self._locks.setdefault(operator_id, threading.Lock()).locked():
                with contextlib.suppress(Exception):  # the job is over, and what it did is safe
                    enumerator.close()


def _found(name: str, discovery: Discovery) -> FoundSplits:
    for split in discovery.splits:
        if not isinstance(split, SourceSplit):
            raise TypeError(f"discover() of '{name}' returned {split!r}; every split has to be a SourceSplit")
    splits = tuple(FoundSplit(tuple(split.names), cloudpickle.dumps(split)) for split in discovery.splits)
    return FoundSplits(splits, discovery.complete)
