"""The faults of one in-process job that are still to come, and what has to be done at which moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from tidegate.contracts.batches import RecordBatch
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.operators.source import SourceOperator
from tidegate.testing.bad_times import BadTimes
from tidegate.testing.clock import EPOCH, ManualClock
from tidegate.testing.faults import (
    CommitsFail,
    CutConnections,
    DriverFault,
    FailAt,
    Fault,
    PlannedFailure,
    Rescale,
    StorageFails,
    Strike,
)

_KINDS = get_args(Fault)


class FaultPlan:
    """`left` has the faults that have not happened so far, in the order in which they were given. Its clock is that of
    the job; drivers that follow each other share plan and clock."""

    def __init__(self, faults: Sequence[Fault], clock: ManualClock) -> None:
        for fault in faults:
            if not isinstance(fault, _KINDS):
                raise TypeError(f"a fault is one of {', '.join(kind.__name__ for kind in _KINDS)}, got {fault!r}")
        self.left = list(faults)
        self.clock = clock
        self._strikes = [f for f in faults if isinstance(f, Strike)]
        self._of_drivers = [f for f in faults if isinstance(f, DriverFault)]
        self._newest_checkpoint = 0
        self._failures = [f for f in faults if isinstance(f, FailAt)]
        self._seen: Counter[str] = Counter()  # records by operator id
        self.bad_times = BadTimes(
            (f for f in faults if isinstance(f, StorageFails | CommitsFail)), clock, self._happened
        )

    def check(self, slots: int) -> None:
        """Raises ValueError when a fault is meant for a slot that a job with so many slots does not have, and does not
        get by a `Rescale`."""
        most = max([slots, *(fault.parallelism for fault in self._of_drivers if isinstance(fault, Rescale))])
        for strike in self._strikes:
            if not 0 <= strike.slot < most:
                raise ValueError(f"{strike}: the job has no slot {strike.slot}, its {most} slots begin with 0")
            if isinstance(strike, CutConnections) and most == 1:
                raise ValueError(f"{strike}: the only worker of the job has no connections, raise the parallelism")

    def _happened(self, fault: Fault) -> None:
        self.left.remove(fault)

    # ------------------------------------------------------------ at a moment
    def next_deadline(self) -> float | None:
        """On the job's clock, in the time to come."""
        moments = [EPOCH + one.after_ms for one in (*self._strikes, *self._of_drivers) if one.after_ms is not None]
        return min((moment for moment in moments if moment > self.clock.now), default=None)

    def checkpoint_triggered(self, checkpoint_id: int) -> None:
        self._newest_checkpoint = max(checkpoint_id, self._newest_checkpoint)
        self.bad_times.checkpoint_triggered(checkpoint_id)

    def take_strike(self, slots: int) -> Strike | None:
        """What befalls one of so many workers now, once each; None: nothing more for now."""
        for strike in self._strikes:
            if self._is_due(strike) and strike.slot < slots:
                self._strikes.remove(strike)
                self._happened(strike)
                return strike
        return None

    def driver_fault(self) -> DriverFault | None:
        """What the driver has to meet now; it stays until `driver_struck`."""
        return next((fault for fault in self._of_drivers if self._is_due(fault)), None)

    def driver_struck(self, fault: DriverFault) -> None:
        self._of_drivers.remove(fault)
        self._happened(fault)

    def _is_due(self, strike: Strike | DriverFault) -> bool:
        if strike.checkpoint is not None:
            return strike.checkpoint <= self._newest_checkpoint
        return strike.after_ms is not None and EPOCH + strike.after_ms <= self.clock.now

    # ------------------------------------------------------------ in an operator
    def watch(self, operator: Operator) -> None:
        """Stand in front of an operator that a fault names. Before it is wired to the others."""
        name = operator.node.name
        names = (name, name.removeprefix("Source: ").removeprefix("Sink: "), operator.node.uid)
        self.bad_times.watch(operator, names)
        if not any(fault.operator in names for fault in self._failures):
            return
        if isinstance(operator, SourceOperator):
            self._watch_source(operator, names)
        else:
            operator.process = self._watched(operator.process, operator, names)  # type: ignore[method-assign]
            second = self._watched(operator.process_second, operator, names)
            operator.process_second = second  # type: ignore[method-assign]

    def _watched(self, process: Any, operator: Operator, names: tuple[str | None, ...]) -> Any:
        def watched(batch: RecordBatch) -> None:
            fault, before = self._due(operator, names, len(batch))
            if fault is None:
                process(batch)
                return
            if before:
                process(batch.slice(0, before))
            raise fault.error or PlannedFailure(f"{fault.operator} fails at record {fault.record}, as planned")

        return watched

    def _watch_source(self, operator: SourceOperator, names: tuple[str | None, ...]) -> None:
        poll = operator.poll

        def watched(max_records: int, now_ms: float) -> int:
            fault, _ = self._due(operator, names, 1)
            if fault is not None:
                raise fault.error or PlannedFailure(f"{fault.operator} fails at record {fault.record}, as planned")
            count = poll(max_records, now_ms)
            self._seen[operator.node.operator_id] += count - 1
            return count

        operator.poll = watched  # type: ignore[method-assign]

    def _due(self, operator: Operator, names: tuple[str | None, ...], count: int) -> tuple[FailAt | None, int]:
        """The fault within the next `count` records, and how many records come before it."""
        seen = self._seen[operator.node.operator_id]
        self._seen[operator.node.operator_id] = seen + count
        for fault in self._failures:
            if fault.operator in names and fault.record <= seen + count:
                self._failures.remove(fault)
                self._happened(fault)
                self._seen[operator.node.operator_id] = max(seen, fault.record - 1)
                return fault, max(0, fault.record - 1 - seen)
        return None, 0
