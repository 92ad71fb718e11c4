"""The metrics and accumulators of the user's functions in one slot, as they are reported.

Read on the mailbox thread, which may change them, and kept for the control thread, which sends them with its
heartbeats while the mailbox thread is busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.common.accumulators import dump
from tidegate.common.errors import SerializationError
from tidegate.common.ids import VertexId
from tidegate.common.metric_values import MetricReport
from tidegate.taskmanager.operator_context import OperatorContext

_MAX_BYTES = 1 << 16  # accumulators that are larger are only sent at the end


class UserReport:
    def __init__(self, interval_ms: float) -> None:
        self._watched: list[tuple[VertexId, OperatorContext]] = []
        self._interval = interval_ms
        self._next = 0.0
        self._too_large = False
        self.metrics: tuple[MetricReport, ...] = ()  # replaced, never changed
        self.accumulators = b""

    def watch(self, vertex: VertexId, contexts: Sequence[OperatorContext]) -> None:
        self._watched += [(vertex, context) for context in contexts]

    def refresh_if_due(self, now_ms: float) -> None:
        if now_ms >= self._next:
            self._next = now_ms + self._interval
            self._read_metrics()
            if not self._too_large:
                self._read_accumulators()

    def final(self) -> bytes:
        """The last word: `metrics` are read once more, and the accumulators are returned. Raises SerializationError for
        accumulators that cannot be sent."""
        self._read_metrics()
        try:
            return dump([c.accumulators for _, c in self._watched if c.accumulators])
        except Exception as error:
            names = sorted({name for _, c in self._watched for name in c.accumulators})
            raise SerializationError(
                f"the accumulators ({', '.join(names)}) cannot be sent to the driver: {type(error).__name__}: {error}. "
                "Add only values that can be pickled"
            ) from error

    def _read_metrics(self) -> None:
        self.metrics = tuple(
            MetricReport(vertex, context.subtask, name, value, context.node.operator_id, scope)
            for vertex, context in self._watched
            for scope, name, value in context.metrics.values()
        )

    def _read_accumulators(self) -> None:
        parts = [c.accumulators for _, c in self._watched if c.accumulators]
        if not parts:
            return
        try:
            dumped = dump(parts)
        except Exception:  # said at the end, when it matters
            self._too_large = True
            return
        self._too_large = len(dumped) > _MAX_BYTES
        if not self._too_large:
            self.accumulators = dumped
