"""The way from one operator of a chain to the next.

As a rule it is a call. When the time of a piece of work is up (`TimeLimit`), an operator leaves records unprocessed,
and what comes after them waits here in its order: records, watermarks, idleness. So nothing overtakes anything, and the
memory is bounded by what one slice of records makes.

A snapshot may hold what waits here (`elements`), when that would take too long to work off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tidegate.common.errors import InternalError
from tidegate.contracts.batches import Batch, RecordBatch
from tidegate.network.elements import MIN_WATERMARK, Watermark, WatermarkStatus
from tidegate.network.serialization import Element
from tidegate.taskmanager.operators.base import Operator
from tidegate.taskmanager.time_limit import TimeLimit

_PIECE = 4096  # records that an operator is given at once: to leave the rest of a million would copy them each time


class ChainLink:
    """Into `operator`, which is not the head of its chain, or is a source: then only what it has polled and left of it
    waits here."""

    def __init__(self, operator: Operator, limit: TimeLimit) -> None:
        self._operator = operator
        self._limit = limit
        self._process = operator.process
        self.waiting: deque[tuple[Callable[[Any], None], Any]] = deque()  # method of the operator, and what it is given

    def emit(self, batch: RecordBatch) -> None:
        if self.waiting or self._limit.expired or len(batch.values) > _PIECE:
            self._wait(batch)
            return
        self._process(batch)
        self.keep_left()

    def watermark(self, timestamp: int) -> None:
        if self.waiting:
            self.waiting.append((self._operator.process_watermark, timestamp))
        else:
            self._operator.process_watermark(timestamp)

    def status(self, idle: bool) -> None:
        if self.waiting:
            self.waiting.append((self._operator.process_status, idle))
        else:
            self._operator.process_status(idle)

    def go_on(self) -> None:
        """Give the operator what has waited longest."""
        method, argument = self.waiting.popleft()
        method(argument)
        self.keep_left()

    # ------------------------------------------------------------ snapshots
    def elements(self) -> list[Element]:
        """What waits, in its order; before it the watermark that the operator was given last, since it will process
        these records at that time. Nothing when no records wait."""
        if not self.waiting:
            return []
        found: list[Element] = [_element(argument) for _, argument in self.waiting]
        reached = self._operator.watermark_given
        return [Watermark(reached), *found] if reached > MIN_WATERMARK else found

    def restore(self, elements: list[Element]) -> None:
        """Before anything is emitted."""
        for element in elements:
            match element:
                case Watermark(timestamp):
                    self.waiting.append((self._operator.process_watermark, timestamp))
                case WatermarkStatus(idle):
                    self.waiting.append((self._operator.process_status, idle))
                case Batch():
                    self.waiting.append((self._process, element.rows()))
                case _:
                    raise InternalError(f"{type(element).__name__} never waits inside a chain")

    def _wait(self, batch: RecordBatch) -> None:
        count = len(batch.values)
        pieces = [batch] if count <= _PIECE else [batch.slice(i, i + _PIECE) for i in range(0, count, _PIECE)]
        self.waiting.extend((self._process, piece) for piece in pieces)
        while self.waiting and not self._limit.expired:
            self.go_on()

    def keep_left(self) -> None:
        """What the operator has left of what it was given is the next that it will be given."""
        left = self._operator.left
        if left is not None:
            self._operator.left = None
            self.waiting.appendleft((self._process, left))


def _element(argument: Any) -> Element:
    if isinstance(argument, Batch):
        return argument
    return WatermarkStatus(argument) if isinstance(argument, bool) else Watermark(argument)
