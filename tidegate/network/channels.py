"""The two ends of a logical channel and its credit book: plain objects, no I/O.

The receiver grants *credits*, one per batch of ordinary size that it is ready to hold. The sender sends a batch only
against credit: one, or several when a single record is so large that its batch is larger than batches should be.
Control elements need none but keep their place behind the batches before them, except an unaligned barrier, which
overtakes. So a slow receiver holds back only its own senders, memory is bounded at both ends, and a barrier is never
stuck in a full pipe. Read `docs/concepts/network.md` first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from tidegate.common.errors import InternalError
from tidegate.common.ids import ChannelAddress
from tidegate.contracts.batches import Batch
from tidegate.network.elements import CheckpointBarrier, ControlElement, Watermark
from tidegate.network.serialization import Element, SerializedElement, serialize

DEFAULT_MAX_BYTES = 1 << 20  # of a batch


class Channel(Protocol):
    """What an edge of the job graph puts batches into, whoever takes them further: a channel to another task, or the
    blocks of a batch job."""

    def add(self, batch: Batch, now_ms: float) -> None:
        """Takes a batch that has at least one record. It is not changed and may be given to other channels too."""

    def add_control(self, element: ControlElement) -> None:
        """Takes a control element, whose place is behind everything added before."""


class OutputChannel:
    """The sender's end: a batch under construction, and a queue of finished elements that wait for credit.

    `take_sendable` is the only method that spends credits. The owner stops producing while `backlogged`.
    """

    __slots__ = (
        "_bytes",
        "_count",
        "_max_bytes",
        "_most_credits",
        "_parts",
        "address",
        "batch_size",
        "bytes_made",
        "bytes_out",
        "credits",
        "oldest_ms",
        "queue",
        "queued_batches",
        "records_out",
    )

    MAX_QUEUED = 2  # batches that may wait for credit before the producer has to stop

    def __init__(
        self, address: ChannelAddress, credits: int, batch_size: int, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        self.address = address
        self.credits = credits  # batches that may be sent now, >= 0
        self.batch_size = batch_size  # records after which the batch under construction is finished
        self._max_bytes = max_bytes  # the same in bytes, estimated
        # The receiver gives credits back when half of them are due: a batch must not need more than it can then have.
        self._most_credits = credits // 2 + 1
        self.queue: deque[Element] = deque()  # finished, in order
        self.queued_batches = 0  # batches in `queue`
        self.bytes_out = 0  # of all that was serialised for another slot
        self.records_out = 0  # in all batches that were finished so far
        self.bytes_made = 0  # in all that was added so far, estimated
        self.oldest_ms: float | None = None  # when the batch under construction got its first record; None if empty
        self._parts: list[Batch] = []  # of the batch under construction; they are joined when it is finished
        self._count = 0  # records in them
        self._bytes = 0  # the same in bytes, estimated

    # ------------------------------------------------------------ producing
    @property
    def backlogged(self) -> bool:
        return self.queued_batches >= self.MAX_QUEUED

    def add(self, batch: Batch, now_ms: float) -> None:
        """Append records to the batch under construction, which is finished first when these cannot be joined to it. A
        large batch is sent as it is, without a copy, a very large one in several parts."""
        parts = self._parts
        if parts and not parts[0].joins(batch):
            self.flush()
            parts = self._parts
        if not parts:
            self.oldest_ms = now_ms
        parts.append(batch)
        size = batch.estimated_bytes()
        self.bytes_made += size
        self._bytes += size
        self._count += len(batch)
        if self._count >= self.batch_size or self._bytes >= self._max_bytes:
            self.flush()

    def flush(self) -> None:
        """Finish the batch under construction, if it holds anything. The one place where batches are cut to size: none
        has twice as many records as `batch_size`, or twice as many bytes as `max_bytes` unless it is a single record,
        since a receiver's memory is counted in batches."""
        parts, count, size, heavy = self._parts, self._count, self.batch_size, self._bytes >= 2 * self._max_bytes
        if not parts:
            return
        self._parts, self._count, self._bytes, self.oldest_ms = [], 0, 0, None
        self.records_out += count
        batch = parts[0] if len(parts) == 1 else parts[0].join(parts[1:])
        pieces = [batch]
        if count >= 2 * size:
            pieces = [batch.slice(start, start + size) for start in range(0, count, size)]
        for piece in pieces:
            if heavy:
                self._push_in_pieces(piece)
            else:
                self._push(piece)

    def _push_in_pieces(self, batch: Batch) -> None:
        """Halves, until they are light enough: records of very different sizes need no account of each."""
        count = len(batch)
        if count == 1 or batch.estimated_bytes() < 2 * self._max_bytes:
            self._push(batch)
        else:
            self._push_in_pieces(batch.slice(0, count // 2))
            self._push_in_pieces(batch.slice(count // 2, count))

    def add_control(self, element: ControlElement) -> None:
        """Put a control element behind everything produced so far. A watermark replaces one that still waits at the
        end, so that they do not pile up behind a receiver that stands still."""
        self.flush()
        if isinstance(element, Watermark) and self.queue and isinstance(self.queue[-1], Watermark):
            self.queue.pop()
        self.queue.append(element)

    def overtake(self, barrier: CheckpointBarrier) -> list[Element]:
        """Put an unaligned barrier in front of everything that still waits; return what it overtook, in order.

        The overtaken elements stay queued and are sent later: they belong to the snapshot *and* to the running job.
        A barrier of the same checkpoint that was queued as aligned is replaced.
        """
        self.flush()
        waiting = [e for e in self.queue if not _is_barrier(e, barrier.checkpoint_id)]
        self.queue.clear()
        self.queue.append(barrier)
        self.queue.extend(waiting)
        return [e for e in waiting if not isinstance(e, CheckpointBarrier)]

    def holds_barrier(self, checkpoint_id: int) -> bool:
        """True while a barrier of this checkpoint still waits behind batches without credit."""
        return any(_is_barrier(e, checkpoint_id) for e in self.queue)

    def split_at_barrier(self, checkpoint_id: int) -> list[Element]:
        """The elements queued before the barrier of this checkpoint (everything when it is not queued)."""
        before: list[Element] = []
        for e in self.queue:
            if _is_barrier(e, checkpoint_id):
                break
            before.append(e)
        return before

    def make_unaligned(self, barrier: CheckpointBarrier) -> list[Element]:
        """The alignment timeout passed while the barrier waited here: move it to the front.

        Returns what it overtook (only what stood before it: records behind it belong to the next checkpoint)."""
        before = self.split_at_barrier(barrier.checkpoint_id)
        behind = list(self.queue)[len(before) + 1 :]
        self.queue.clear()
        self.queue.append(barrier)
        self.queue.extend(before)
        self.queue.extend(behind)
        return [e for e in before if not isinstance(e, CheckpointBarrier)]

    def restore(self, elements: list[Element]) -> None:
        """Queue the in-flight elements of a restored snapshot before anything new."""
        for e in elements:
            if isinstance(e, Batch):
                self._push(e)
            else:
                self.queue.append(e)

    # ------------------------------------------------------------ sending
    def take_sendable(self) -> Iterator[tuple[Element, int]]:
        """The elements that may be sent now, in order, each with the credits that it spends as it is taken."""
        queue = self.queue
        while queue:
            head = queue[0]
            cost = 0
            if isinstance(head, Batch):
                if self.credits == 0:
                    return
                cost = self._cost(head)
                if self.credits < cost:
                    return
                self.credits -= cost
                self.queued_batches -= 1
            yield queue.popleft(), cost

    def _cost(self, batch: Batch) -> int:
        return min(max(1, batch.estimated_bytes() // self._max_bytes), self._most_credits)

    def grant(self, credits: int) -> None:
        if credits <= 0:
            raise InternalError(f"channel {self.address}: granted {credits} credits")
        self.credits += credits

    def _push(self, batch: Batch) -> None:
        self.queue.append(batch)
        self.queued_batches += 1

    def check_invariants(self) -> None:
        if self.credits < 0:
            raise InternalError(f"channel {self.address}: negative credits")
        n = sum([isinstance(e, Batch) for e in self.queue]) if self.queue else 0
        if n != self.queued_batches:
            raise InternalError(f"channel {self.address}: {n} batches queued, {self.queued_batches} counted")


class InputChannel:
    """The receiver's end: elements in arrival order, and how many credits are owed back to the sender."""

    __slots__ = (
        "_costs",
        "_recording_for",
        "address",
        "blocked",
        "capacity",
        "end_of_data",
        "held",
        "index",
        "input_index",
        "owed",
        "queue",
        "recording",
        "restored",
    )

    def __init__(self, address: ChannelAddress, index: int, input_index: int, capacity: int) -> None:
        self.address = address
        self.index = index  # position in the task's input gate
        self.input_index = input_index  # input 0 or 1 of the head operator
        self.capacity = capacity  # credits granted to the sender when the channel is new
        self.queue: deque[Element] = deque()
        self.held = 0  # credits of the batches that were received and not yet consumed, <= capacity
        self._costs: deque[int] = deque()  # the same, batch by batch
        self.restored = 0  # batches of a restored snapshot not yet consumed; always at the front of the queue
        self.owed = 0  # credits of consumed batches that were not given back yet; held + owed <= capacity
        self.blocked = False  # alignment: nothing is taken from the queue
        self.end_of_data = False
        self.recording: list[SerializedElement] | None = None  # unaligned: what arrives until the barrier comes
        self._recording_for = 0  # the checkpoint whose barrier ends it

    def receive(self, element: Element, cost: int = 1) -> None:
        """`cost` is what a batch cost its sender."""
        if isinstance(element, Batch):
            self.held += cost
            self._costs.append(cost)
            if self.held + self.owed > self.capacity:  # not `check_internal`: the text would be made each time
                raise InternalError(
                    f"channel {self.address}: {self.held} credits held, {self.owed} owed, {self.capacity} in all"
                )
        if self.recording is not None:
            if not isinstance(element, CheckpointBarrier):
                self.recording.append(serialize(element))
            elif element.checkpoint_id >= self._recording_for:
                self.recording = None
        self.queue.append(element)

    def record(self, into: list[SerializedElement], checkpoint_id: int) -> None:
        """Append what arrives, until a barrier of this checkpoint or a newer one does. It ends here and not when the
        task hears of the barrier: a task that has to catch up first hears of it late, and the barrier has overtaken
        what comes behind it, which its sender's snapshot holds already."""
        self.recording = into
        self._recording_for = checkpoint_id

    def restore(self, elements: list[Element]) -> None:
        """Put restored in-flight elements first. They never had a credit of this attempt, so none is given back."""
        self.queue.extendleft(reversed(elements))
        self.restored += sum(1 for e in elements if isinstance(e, Batch))

    def consumed_batch(self) -> None:
        """The batch at the head was processed to its end."""
        if self.restored:
            self.restored -= 1
        else:
            cost = self._costs.popleft()
            self.held -= cost
            self.owed += cost

    def take_owed(self) -> int:
        owed, self.owed = self.owed, 0
        return owed

    def queued_before_barrier(self, checkpoint_id: int) -> list[Element]:
        """What waits here before the barrier of this checkpoint (everything, when it has not come yet)."""
        found: list[Element] = []
        for e in self.queue:
            if _is_barrier(e, checkpoint_id):
                break
            if not isinstance(e, CheckpointBarrier):
                found.append(e)
        return found

    def remove_barrier(self, checkpoint_id: int) -> None:
        for i, e in enumerate(self.queue):
            if _is_barrier(e, checkpoint_id):
                del self.queue[i]
                return


def _is_barrier(element: Element, checkpoint_id: int) -> bool:
    return isinstance(element, CheckpointBarrier) and element.checkpoint_id == checkpoint_id
