"""What only batches ask of their operators, beyond what `Operator` promises to everybody.

A batch job has all its input. It reads the records of one group of keys after the other, lets tasks before a shuffle do
part of the work, and commits on the driver when all tasks are done. Operators that take part in one of these implement
its interface here, and a batch task asks for it with `isinstance`; a streaming job never calls these methods.

In a micro-batch job operators are made anew for every batch: `RemembersBatches`.
"""

from __future__ import annotations

import abc
from typing import Any


class ReadsByKeys(abc.ABC):
    """A keyed operator. For each group of keys, in this order: all records of its keys, `end_of_keys`, and, unless the
    state is kept (the job starts from a savepoint, or ends with one), event timers, processing timers, `forget_keys`.
    """

    @abc.abstractmethod
    def end_of_keys(self, keep: bool) -> None:
        """All records of the keys so far have come: emit what waited for that. `keep`: their state is
        kept, and may have been there before the job."""

    @abc.abstractmethod
    def last_processing_timer(self) -> int | None:
        """When the last of the processing timers is due that are set now, or follow from them."""

    @abc.abstractmethod
    def forget_keys(self) -> None:
        """The timers of the keys have fired: drop what is kept for them."""


class TakesCombined(abc.ABC):
    """A keyed operator whose work begins in the tasks before the shuffle."""

    @abc.abstractmethod
    def process_combined(self, keys: list[Any], values: list[Any]) -> None:
        """What records of each of these keys have been combined to. Keys may come again."""


class ReadsInOrder(abc.ABC):
    """A source that can read the same records in the same order each time."""

    @abc.abstractmethod
    def read_in_order(self) -> None:
        """From now on, read each split to its end before the next one. Called after `open`, before the first record."""

    @abc.abstractmethod
    def announce_reached(self) -> None:
        """Instead of `finish`, for a job that others go on from: all that the splits held was read, so time is where
        the furthest of them has come to."""


class HandsOverCommittables(abc.ABC):
    """A sink whose commits are somebody else's business."""

    @abc.abstractmethod
    def take_committables(self) -> list[Any]:
        """Instead of `commit_all`: everything that waits to be committed. It belongs to the caller from now on, and
        outlives the operator. Called once, after `finish`."""

    @abc.abstractmethod
    def hand_over_committables(self) -> list[Any]:
        """What `update_state` has just put into the operator's state to be committed, which leaves the state by this
        call and belongs to the caller. The operator goes on. Called between `update_state` and the snapshot."""


class RemembersBatches(abc.ABC):
    """An operator that has something to say to the one in its place in the next micro-batch. What it says is no part of
    snapshots, and gone when the query is started again."""

    @abc.abstractmethod
    def resume(self, memo: Any) -> None:
        """Called before `open`, in each micro-batch. None: there was none before in this attempt."""

    def end_of_batch(self) -> None:
        """Everything has come that comes in this batch. Periodic watermarks are made once more after this."""

    @abc.abstractmethod
    def memo(self) -> Any:
        """Picklable: what the next one is to be told. Called after the snapshot. None: nothing."""
