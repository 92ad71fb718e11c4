"""How the results of `execute_and_collect` leave the task that has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidegate.common.ids import AttemptNumber, OperatorId, SubtaskIndex
from tidegate.protocol.messages import CollectChunk, WantCheckpoint


class ResultPort(Protocol):
    """Takes results in chunks. Whoever implements it tells the operator when a chunk has arrived
    (`CollectOperator.acknowledged`), possibly before `send` returns."""

    def send(self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int, payload: bytes) -> None:
        """One chunk: a pickled list of values. A chunk that was sent before a recovery is sent again under the same
        number, and counts once."""

    def want_checkpoint(self) -> None:
        """Many results wait for the next checkpoint: it should come soon."""


class JobManagerResults:
    """To the JobManager, as messages of one attempt."""

    def __init__(self, attempt: AttemptNumber, send: Callable[[CollectChunk | WantCheckpoint], None]) -> None:
        self._attempt = attempt
        self._send = send

    def send(self, operator_id: OperatorId, subtask: SubtaskIndex, seq: int, payload: bytes) -> None:
        self._send(
            CollectChunk(attempt=self._attempt, operator_id=operator_id, subtask=subtask, seq=seq, payload=payload)
        )

    def want_checkpoint(self) -> None:
        self._send(WantCheckpoint(attempt=self._attempt))
