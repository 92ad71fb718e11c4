"""Something put into a job from outside, to watch it or to disturb it: how faults get into real workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.common.ids import AttemptNumber, SlotIndex

if TYPE_CHECKING:
    from tidegate.storage.checkpoint_storage import CheckpointStorage
    from tidegate.storage.worker_storage import WorkerStorage
    from tidegate.taskmanager.operators.base import Operator


class Instrument:
    """Base of all: does nothing. It is pickled with the job's plan, so every worker of every attempt has a copy of its
    own. What it raises fails the attempt, as an operator's failure does."""

    def storage(self, storage: CheckpointStorage) -> CheckpointStorage:
        """On the driver, before the job starts: what stands for the job's storage from then on."""
        return storage

    def worker_storage(self, storage: WorkerStorage) -> WorkerStorage:
        """In a worker, before its state is restored."""
        return storage

    def slot_started(self, slot: SlotIndex, attempt: AttemptNumber, addresses: Sequence[str]) -> None:
        """In a worker, before anything is made. `addresses`: of the data sockets of all slots, "tcp://host:port"."""

    def operator_made(self, operator: Operator) -> None:
        """In a worker: the operator is about to be wired to the others."""
