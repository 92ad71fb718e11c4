"""The metrics and accumulators of the user's functions in one slot, as they are reported.

Read on the mailbox thread, which may change them, and kept for the control thread, which sends them with its
heartbeats while the mailbox thread is busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.common.accumulators import dump
from tidegate.common.errors import SerializationError
from tidegate.taskmanager.operator_context import OperatorContext

USER_METRIC = "user."
"""Prefix of the names of user metrics among the metrics of a slot."""

_MAX_BYTES = 1 << 16  # accumulators that are larger are only sent at the end


class UserReport:
    def __init__(self, interval_ms: float) -> None:
        self._contexts: list[OperatorContext] = []
        self._interval = interval_ms
        self._next = 0.0
        self._too_large = False
        self.metrics: dict[str, float] = {}  # replaced, never changed
        self.accumulators = b""

    def watch(self, contexts: Sequence[OperatorContext]) -> None:
        self._contexts += contexts

    def refresh_if_due(self, now_ms: float) -> None:
        if now_ms >= self._next:
            self._next = now_ms + self._interval
            self._read_metrics()
            if not self._too_large:
                self._read_accumulators()

    def final(self) -> tuple[dict[str, float], bytes]:
        """The last word. Raises SerializationError for accumulators that cannot be sent."""
        self._read_metrics()
        try:
            return self.metrics, dump([c.accumulators for c in self._contexts if c.accumulators])
        except Exception as error:
            names = sorted({name for c in self._contexts for name in c.accumulators})
            raise SerializationError(
                f"the accumulators ({', '.join(names)}) cannot be sent to the driver: {type(error).__name__}: {error}. "
                "Add only values that can be pickled"
            ) from error

    def _read_metrics(self) -> None:
        self.metrics = {f"{USER_METRIC}{name}": value for c in self._contexts for name, value in c.metrics.values()}

    def _read_accumulators(self) -> None:
        parts = [c.accumulators for c in self._contexts if c.accumulators]
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
