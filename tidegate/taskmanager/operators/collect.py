"""`execute_and_collect`: results travel to the client by the task's result port, exactly once.

Results are numbered in chunks per subtask. Without checkpointing a chunk is sent as soon as it is full or the input
pauses. With checkpointing the chunks before a barrier are part of its checkpoint, and are sent when that is complete;
after a recovery they are sent again under the same numbers, and the JobManager drops what it has already seen. When
many bytes wait, a checkpoint is asked for at once: holding the input back instead would also hold back the barrier that
the results wait for.
"""

from __future__ import annotations

from typing import Any

from tidegate.common.ids import CheckpointId, SubtaskIndex
from tidegate.contracts.batches import RecordBatch
from tidegate.contracts.state import ListStateDescriptor
from tidegate.network.serialization import dump_values
from tidegate.taskmanager.operator_context import OperatorContext
from tidegate.taskmanager.operators.base import Operator

_MAX_UNACKNOWLEDGED = 64  # chunks on their way to the client
_CHUNK_RECORDS = 1000
_MUCH_WAITS = 8 * 1024 * 1024  # bytes of results without a complete checkpoint, from which on one is asked for


class CollectOperator(Operator):
    STATE_NAME = "tidegate.collect"

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self.given: int = 0
        self._values: list[Any] = []  # since the last chunk was cut
        self._next_seq = 0
        self._fresh: list[tuple[int, bytes]] = []  # (seq, pickled values) since the last barrier, in order
        self._waiting: list[tuple[CheckpointId, int, bytes]] = []  # behind them, the chunks of each barrier, in order
        self._unsent_bytes = 0  # of both
        self._asked = False  # for a checkpoint, since the last one that was completed or aborted
        self._sent = -1  # highest sequence number sent in this attempt
        self._acknowledged = -1

    def open(self) -> None:
        self._state = self.context.operator_state.get_list_state(ListStateDescriptor(self.STATE_NAME))
        restored = list(self._state.get())
        self._next_seq = max((next_seq for next_seq, _ in restored), default=0)
        chunks = [(seq, payload) for _, waiting in restored for seq, payload in waiting]
        if len(restored) > 1:  # of several subtasks, when there were more of them: each has counted for itself
            first, self._next_seq = self._next_seq, self._next_seq + len(chunks)
            chunks = [(first + i, payload) for i, (_, payload) in enumerate(chunks)]
        self._waiting = [(CheckpointId(0), seq, payload) for seq, payload in chunks]
        self._unsent_bytes = sum(len(payload) for _, payload in chunks)
        self._sent = self._acknowledged = self._next_seq - len(self._waiting) - 1
        self._send_up_to(CheckpointId(0))

    @property
    def available(self) -> bool:
        return self._sent - self._acknowledged < _MAX_UNACKNOWLEDGED

    def process(self, batch: RecordBatch) -> None:
        self.given += len(batch.values)
        self._values.extend(batch.values)
        if not self.context.settings.checkpointing:
            # Without checkpoints there is nothing to wait for; a source that pauses must not hold results back.
            self._cut_for(CheckpointId(0))
            self._send_up_to(CheckpointId(0))
        elif len(self._values) >= _CHUNK_RECORDS:
            self._cut()
            if self._unsent_bytes >= _MUCH_WAITS and not self._asked:
                self._asked = True
                self.context.results.want_checkpoint()

    def acknowledged(self, seq: int) -> None:
        self._acknowledged = max(self._acknowledged, seq)

    def update_state(self, checkpoint_id: CheckpointId, timestamp: int) -> None:
        self._cut_for(checkpoint_id)
        self._state.update([(self._next_seq, [(seq, payload) for _, seq, payload in self._waiting])])

    def notify_complete(self, checkpoint_id: CheckpointId) -> None:
        self._asked = False
        self._send_up_to(checkpoint_id)

    def notify_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._asked = False

    def commit_all(self) -> None:
        self._cut_for(CheckpointId(2**62))
        self._send_up_to(CheckpointId(2**62))

    def _cut_for(self, checkpoint_id: CheckpointId) -> None:
        """All that is here belongs to this checkpoint at the latest."""
        self._cut()
        self._waiting += [(checkpoint_id, seq, payload) for seq, payload in self._fresh]
        self._fresh = []

    def _cut(self) -> None:
        for start in range(0, len(self._values), _CHUNK_RECORDS):
            chunk = self._values[start : start + _CHUNK_RECORDS]
            try:
                payload = dump_values(chunk)
            except Exception as error:
                self.fail("sending results to the client", error, chunk[0])
            self._fresh.append((self._next_seq, payload))
            self._unsent_bytes += len(payload)
            self._next_seq += 1
        self._values = []

    def _send_up_to(self, checkpoint_id: CheckpointId) -> None:
        c = self.context
        still: list[tuple[CheckpointId, int, bytes]] = []
        for n, seq, payload in self._waiting:
            if n > checkpoint_id:
                still.append((n, seq, payload))
                continue
            self._sent = seq
            self._unsent_bytes -= len(payload)
            c.results.send(self.node.operator_id, SubtaskIndex(c.subtask), seq, payload)
        self._waiting = still
